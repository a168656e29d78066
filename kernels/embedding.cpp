#include "kernels/embedding.h"

#include "kernels/checks.h"
#include "kernels/cpu/embedding.h"
#include "kernels/cuda/embedding.h"
#include "kernels/dispatch.h"
#include "kernels/stat_dtype.h"

namespace ashlar::kernels {
namespace {

void check_place(std::string_view op, const SampleRows& place, int64_t table_length) {
  DCHECK(place.first >= 0 && place.length > 0 && place.length <= table_length,
         "{}: rows from {} on of samples of {}, and a table with {} positions", op, place.first, place.length,
         table_length);
}

}  // namespace

void embedding_forward(TensorView y, ConstTensorView tokens, ConstTensorView table, int64_t vocab_begin,
                       int64_t num_valid, Stream& stream) {
  constexpr std::string_view kOp = "embedding_forward";
  const int64_t num_tokens = tokens.num_elements();
  const int64_t columns = table.shape[-1];
  check_view(kOp, "tokens", tokens, DType::kI32, num_tokens);
  check_view(kOp, "table", table, table.dtype, table.shape[0] * columns);
  check_view(kOp, "y", y, table.dtype, num_tokens * columns);
  DCHECK(num_valid >= 0 && num_valid <= table.shape[0], "{}: {} valid rows of {}", kOp, num_valid, table.shape[0]);
  if (const GpuStream* gpu = gpu_of(stream, kOp)) {
    return cuda::embedding_forward(element_of(kOp, table.dtype), y.data, tokens.as<int32_t>(), table.data, num_tokens,
                                   columns, vocab_begin, num_valid, gpu->handle());
  }
  with_compute_type(table.dtype, kOp, [&](auto zero) {
    using T = decltype(zero);
    launch(stream, kOp,
           [y_data = y.as<T>(), token_data = tokens.as<int32_t>(), table_data = table.as<T>(), num_tokens, columns,
            vocab_begin, num_valid] {
             cpu::embedding_forward(y_data, token_data, table_data, num_tokens, columns, vocab_begin, num_valid);
           });
  });
}

void embedding_backward(TensorView dtable, ConstTensorView dy, ConstTensorView tokens, ConstTensorView order,
                        int64_t vocab_begin, int64_t num_valid, Stream& stream) {
  constexpr std::string_view kOp = "embedding_backward";
  const int64_t num_tokens = tokens.num_elements();
  const int64_t columns = dtable.shape[-1];
  check_view(kOp, "tokens", tokens, DType::kI32, num_tokens);
  if (order.data != nullptr) {
    check_view(kOp, "order", order, DType::kI32, num_tokens);
  }
  check_view(kOp, "dtable", dtable, stat_dtype(dy.dtype), dtable.shape[0] * columns);
  check_view(kOp, "dy", dy, dy.dtype, num_tokens * columns);
  DCHECK(num_valid >= 0 && num_valid <= dtable.shape[0], "{}: {} valid rows of {}", kOp, num_valid, dtable.shape[0]);
  if (const GpuStream* gpu = gpu_of(stream, kOp)) {
    DCHECK(order.data != nullptr || num_tokens == 0, "{}: a GPU needs the order of the tokens", kOp);
    return cuda::embedding_backward(element_of(kOp, dy.dtype), dtable.as<float>(), dy.data, tokens.as<int32_t>(),
                                    order.as<int32_t>(), num_tokens, columns, vocab_begin, num_valid, gpu->handle());
  }
  with_compute_type(dy.dtype, kOp, [&](auto zero) {
    using T = decltype(zero);
    launch(stream, kOp,
           [dtable_data = dtable.as<cpu::Compute<T>>(), dy_data = dy.as<T>(), token_data = tokens.as<int32_t>(),
            num_tokens, columns, vocab_begin, num_valid] {
             cpu::embedding_backward(dtable_data, dy_data, token_data, num_tokens, columns, vocab_begin, num_valid);
           });
  });
}

void position_forward(TensorView y, ConstTensorView table, const SampleRows& place, Stream& stream) {
  constexpr std::string_view kOp = "position_forward";
  const int64_t columns = table.shape[-1];
  const int64_t rows = y.num_elements() / columns;
  check_view(kOp, "y", y, table.dtype, rows * columns);
  check_view(kOp, "table", table, table.dtype, table.shape[0] * columns);
  check_place(kOp, place, table.shape[0]);
  if (const GpuStream* gpu = gpu_of(stream, kOp)) {
    return cuda::position_forward(element_of(kOp, y.dtype), y.data, table.data, rows, columns, place, gpu->handle());
  }
  with_compute_type(table.dtype, kOp, [&](auto zero) {
    using T = decltype(zero);
    launch(stream, kOp, [y_data = y.as<T>(), table_data = table.as<T>(), rows, columns, place] {
      cpu::position_forward(y_data, table_data, rows, columns, place);
    });
  });
}

void position_backward(TensorView dtable, ConstTensorView dy, const SampleRows& place, Write write, Stream& stream) {
  constexpr std::string_view kOp = "position_backward";
  const int64_t columns = dtable.shape[-1];
  const int64_t rows = dy.num_elements() / columns;
  const int64_t table_length = dtable.shape[0];
  check_view(kOp, "dy", dy, dy.dtype, rows * columns);
  check_view(kOp, "dtable", dtable, stat_dtype(dy.dtype), table_length * columns);
  check_place(kOp, place, table_length);
  if (const GpuStream* gpu = gpu_of(stream, kOp)) {
    return cuda::position_backward(element_of(kOp, dy.dtype), dtable.as<float>(), dy.data, rows, table_length, columns,
                                   place, write == Write::kAdd, gpu->handle());
  }
  with_compute_type(dy.dtype, kOp, [&](auto zero) {
    using T = decltype(zero);
    launch(stream, kOp,
           [dtable_data = dtable.as<cpu::Compute<T>>(), dy_data = dy.as<T>(), rows, table_length, columns, place,
            is_add = write == Write::kAdd] {
             cpu::position_backward(dtable_data, dy_data, rows, table_length, columns, place, is_add);
           });
  });
}

}  // namespace ashlar::kernels
