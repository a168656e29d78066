#include "kernels/embedding.h"

#include "kernels/checks.h"
#include "kernels/cpu/embedding.h"
#include "kernels/cuda/embedding.h"
#include "kernels/dispatch.h"
#include "kernels/stat_dtype.h"

namespace ashlar::kernels {

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

void position_forward(TensorView y, ConstTensorView table, Stream& stream) {
  constexpr std::string_view kOp = "position_forward";
  DCHECK(y.shape.num_dims() == 3, "{}: y is {}, expected [B,T,C]", kOp, y.shape.text());
  const int64_t batch = y.shape[0];
  const int64_t length = y.shape[1];
  const int64_t columns = y.shape[2];
  check_view(kOp, "y", y, table.dtype, batch * length * columns);
  check_view(kOp, "table", table, table.dtype, table.shape[0] * columns);
  DCHECK(length <= table.shape[0], "{}: {} positions of a table with {}", kOp, length, table.shape[0]);
  if (const GpuStream* gpu = gpu_of(stream, kOp)) {
    return cuda::position_forward(element_of(kOp, y.dtype), y.data, table.data, batch, length, columns, gpu->handle());
  }
  with_compute_type(table.dtype, kOp, [&](auto zero) {
    using T = decltype(zero);
    launch(stream, kOp, [y_data = y.as<T>(), table_data = table.as<T>(), batch, length, columns] {
      cpu::position_forward(y_data, table_data, batch, length, columns);
    });
  });
}

void position_backward(TensorView dtable, ConstTensorView dy, Write write, Stream& stream) {
  constexpr std::string_view kOp = "position_backward";
  DCHECK(dy.shape.num_dims() == 3, "{}: dy is {}, expected [B,T,C]", kOp, dy.shape.text());
  const int64_t batch = dy.shape[0];
  const int64_t length = dy.shape[1];
  const int64_t columns = dy.shape[2];
  const int64_t table_length = dtable.shape[0];
  check_view(kOp, "dy", dy, dy.dtype, batch * length * columns);
  check_view(kOp, "dtable", dtable, stat_dtype(dy.dtype), table_length * columns);
  DCHECK(length <= table_length, "{}: {} positions of a table with {}", kOp, length, table_length);
  if (const GpuStream* gpu = gpu_of(stream, kOp)) {
    return cuda::position_backward(element_of(kOp, dy.dtype), dtable.as<float>(), dy.data, batch, length, table_length,
                                   columns, write == Write::kAdd, gpu->handle());
  }
  with_compute_type(dy.dtype, kOp, [&](auto zero) {
    using T = decltype(zero);
    launch(stream, kOp,
           [dtable_data = dtable.as<cpu::Compute<T>>(), dy_data = dy.as<T>(), batch, length, table_length, columns,
            is_add = write == Write::kAdd] {
             cpu::position_backward(dtable_data, dy_data, batch, length, table_length, columns, is_add);
           });
  });
}

}  // namespace ashlar::kernels
