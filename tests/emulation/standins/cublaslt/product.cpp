// The arithmetic of a product.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <bit>
#include <cstring>
#include <vector>

#include "kernels/cpu/gemm_plain.h"
#include "tests/emulation/standins/cublaslt/state.h"

namespace ashlar::standin {
namespace {

template <typename T>
float to_float(T x) {
  return static_cast<float>(x);
}
template <>
float to_float(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
template <>
float to_float(__half x) {
  return __half2float(x);
}

template <typename T>
T from_float(float x) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16(x);
  } else if constexpr (std::is_same_v<T, __half>) {
    return __float2half(x);
  } else {
    return x;
  }
}

template <typename Body>
void with_type(cudaDataType_t type, Body body) {
  switch (type) {
    case CUDA_R_16BF:
      return body(__nv_bfloat16{});
    case CUDA_R_16F:
      return body(__half{});
    default:
      return body(float{});
  }
}

// To the nearest of TF32's values: 10 bits of mantissa stay, ties go away from zero (cvt.rna.tf32.f32).
float round_to_tf32(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return (bits & 0x7f800000u) == 0x7f800000u ? x : std::bit_cast<float>((bits + 0x1000u) & 0xffffe000u);
}

// Column after column, without gaps.
std::vector<float> load(const void* memory, const Layout& layout) {
  std::vector<float> values(layout.rows * layout.columns);
  with_type(layout.type, [&]<typename T>(T) {
    for (uint64_t column = 0; column < layout.columns; ++column) {
      const T* from = static_cast<const T*>(memory) + column * static_cast<uint64_t>(layout.leading);
      for (uint64_t row = 0; row < layout.rows; ++row) {
        values[column * layout.rows + row] = to_float(from[row]);
      }
    }
  });
  return values;
}

void store(void* memory, const Layout& layout, const std::vector<float>& values) {
  with_type(layout.type, [&]<typename T>(T) {
    for (uint64_t column = 0; column < layout.columns; ++column) {
      T* to = static_cast<T*>(memory) + column * static_cast<uint64_t>(layout.leading);
      for (uint64_t row = 0; row < layout.rows; ++row) {
        to[row] = from_float<T>(values[column * layout.rows + row]);
      }
    }
  });
}

}  // namespace

void compute_product(const Problem& p, const void* a, const void* b, float beta, const void* c, void* d) {
  std::vector<float> a_values = load(a, p.a), b_values = load(b, p.b);
  if (p.description.compute == CUBLAS_COMPUTE_32F_FAST_TF32) {
    for (auto* values : {&a_values, &b_values}) {
      for (float& x : *values) {
        x = round_to_tf32(x);
      }
    }
  }
  const uint64_t depth = p.description.transpose_a != CUBLAS_OP_N ? p.a.rows : p.a.columns;
  // Column after column is row after row of the transposed matrix, and d^T = op(b)^T op(a)^T.
  std::vector<float> values(p.d.rows * p.d.columns);
  kernels::cpu::gemm_plain(p.description.transpose_b != CUBLAS_OP_N, p.description.transpose_a != CUBLAS_OP_N,
                           static_cast<int64_t>(p.d.columns), static_cast<int64_t>(p.d.rows),
                           static_cast<int64_t>(depth), b_values.data(), a_values.data(), false, values.data());
  if (beta != 0) {
    const std::vector<float> before = load(c, p.c);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] += beta * before[i];
    }
  }
  if (p.description.epilogue == CUBLASLT_EPILOGUE_BIAS) {
    const std::vector<float> bias = load(p.description.bias, {p.d.type, p.d.rows, 1, static_cast<int64_t>(p.d.rows)});
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] += bias[i % p.d.rows];
    }
  }
  store(d, p.d, values);
}

}  // namespace ashlar::standin
