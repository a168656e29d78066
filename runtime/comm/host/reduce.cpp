#include "runtime/comm/host/reduce.h"

#include <algorithm>

#include "runtime/base/error.h"

namespace ashlar {
namespace {

template <typename T>
struct Accumulator {
  using Type = T;
  static T load(T value) { return value; }
  static T store(T value) { return value; }
};
template <>
struct Accumulator<BFloat16> {
  using Type = float;
  static float load(BFloat16 value) { return to_float(value); }
  static BFloat16 store(float value) { return to_bf16(value); }
};
template <>
struct Accumulator<Float16> {
  using Type = float;
  static float load(Float16 value) { return to_float(value); }
  static Float16 store(float value) { return to_f16(value); }
};

template <typename T, bool kMaximum>
void reduce_typed(std::byte* dst_bytes, std::span<const std::byte* const> sources, int64_t count) {
  using A = Accumulator<T>;
  using Acc = typename A::Type;
  constexpr int64_t kBlock = 1024;  // 4 KiB of fp32: stays in L1 beside the block of each source
  Acc sum[kBlock];
  T* dst = reinterpret_cast<T*>(dst_bytes);
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t length = std::min(kBlock, count - begin);
    const T* first = reinterpret_cast<const T*>(sources[0]) + begin;
    for (int64_t i = 0; i < length; ++i) {
      sum[i] = A::load(first[i]);
    }
    for (size_t rank = 1; rank < sources.size(); ++rank) {
      const T* source = reinterpret_cast<const T*>(sources[rank]) + begin;
      for (int64_t i = 0; i < length; ++i) {
        const Acc value = A::load(source[i]);
        if constexpr (kMaximum) {
          // A NaN on any rank stays one: a maximum that loses it would hide a broken loss.
          sum[i] = (value > sum[i] || value != value) ? value : sum[i];
        } else {
          sum[i] += value;
        }
      }
    }
    for (int64_t i = 0; i < length; ++i) {
      dst[begin + i] = A::store(sum[i]);
    }
  }
}

template <typename T>
void reduce_op(std::byte* dst, std::span<const std::byte* const> sources, int64_t count, ReduceOp op) {
  if (op == ReduceOp::kSum) {
    reduce_typed<T, false>(dst, sources, count);
  } else {
    reduce_typed<T, true>(dst, sources, count);
  }
}

}  // namespace

void reduce_in_order(std::byte* dst, std::span<const std::byte* const> sources, int64_t count, DType dtype,
                     ReduceOp op) {
  switch (dtype) {
    case DType::kF32:
      return reduce_op<float>(dst, sources, count, op);
    case DType::kF64:
      return reduce_op<double>(dst, sources, count, op);
    case DType::kBF16:
      return reduce_op<BFloat16>(dst, sources, count, op);
    case DType::kF16:
      return reduce_op<Float16>(dst, sources, count, op);
    case DType::kI64:
      return reduce_op<int64_t>(dst, sources, count, op);
    case DType::kI32:
    case DType::kU8:
      break;
  }
  throw Error(ErrorCode::kInternal, fmt::format("a sum or maximum over ranks of {} is not offered: use fp32, fp64, "
                                                "bf16, fp16 or int64",
                                                dtype_name(dtype)));
}

}  // namespace ashlar
