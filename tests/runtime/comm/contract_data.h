// Operands for the contract: every rank can compute every other rank's, and so the right answer.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "runtime/comm/launch.h"

namespace ashlar {

template <typename T>
T from_double(double value) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return to_bf16(static_cast<float>(value));
  } else if constexpr (std::is_same_v<T, Float16>) {
    return to_f16(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}

// Numbers of both signs whose sums round: 1 + hash/2^20, times a sign, of different size on different ranks.
template <typename T>
std::vector<T> operand(int rank, int64_t count, uint64_t salt = 0) {
  std::vector<T> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    uint64_t hash = (i + 1) * 0x9E3779B97F4A7C15ull + static_cast<uint64_t>(rank + 1) * 0xC2B2AE3D27D4EB4Full + salt;
    hash = (hash ^ (hash >> 29)) * 0xBF58476D1CE4E5B9ull;
    const double magnitude = 1.0 + static_cast<double>(hash >> 44) / 1048576.0 * (rank % 3 == 1 ? 100 : 1);
    values[i] = from_double<T>((hash & 1) != 0 && !std::is_same_v<T, uint8_t> ? -magnitude : magnitude);
  }
  return values;
}

template <typename T>
struct Accumulate {
  using Type = T;
};
template <>
struct Accumulate<BFloat16> {
  using Type = float;
};
template <>
struct Accumulate<Float16> {
  using Type = float;
};

template <typename T>
typename Accumulate<T>::Type widen(T value) {
  if constexpr (std::is_arithmetic_v<T>) {
    return value;
  } else {
    return to_float(value);
  }
}
template <typename T>
T narrow(typename Accumulate<T>::Type value) {
  if constexpr (std::is_arithmetic_v<T>) {
    return value;
  } else {
    return from_double<T>(value);
  }
}

// The definition: one element after the other, ranks in ascending order.
template <typename T>
std::vector<T> reduced(const std::vector<std::vector<T>>& by_rank, ReduceOp op) {
  std::vector<T> result(by_rank[0].size());
  for (size_t i = 0; i < result.size(); ++i) {
    auto sum = widen(by_rank[0][i]);
    for (size_t rank = 1; rank < by_rank.size(); ++rank) {
      const auto value = widen(by_rank[rank][i]);
      sum = op == ReduceOp::kSum ? sum + value : (value > sum ? value : sum);
    }
    result[i] = narrow<T>(sum);
  }
  return result;
}

template <typename T>
std::vector<std::vector<T>> operands(const Communicator& comm, int64_t count, uint64_t salt = 0) {
  std::vector<std::vector<T>> all;
  for (const int world_rank : comm.world_ranks()) {
    all.push_back(operand<T>(world_rank, count, salt));
  }
  return all;
}

template <typename T>
TensorView view(std::vector<T>& values) {
  return view_of(values.data(), {static_cast<int64_t>(values.size())});
}

// Values in memory of the rank's device, written and read in the order of one stream.
template <typename T>
class OnDevice {
 public:
  OnDevice(RankContext& rank, Stream& stream, const std::vector<T>& values)
      : stream_(stream),
        size_(values.size()),
        staging_(rank.device.allocate_host(size_ * sizeof(T), "test data")),
        buffer_(rank.device.allocate(size_ * sizeof(T), "test data")) {
    write(values);
  }
  ~OnDevice() { stream_.synchronize(); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  void write(const std::vector<T>& values) {
    stream_.synchronize();  // a copy from the staging memory may be under way
    std::copy(values.begin(), values.end(), reinterpret_cast<T*>(staging_.data()));
    stream_.copy(buffer_.data(), staging_.data(), size_ * sizeof(T));
  }
  std::vector<T> read() const {
    stream_.copy(staging_.data(), buffer_.data(), size_ * sizeof(T));
    stream_.synchronize();
    const T* values = reinterpret_cast<const T*>(staging_.data());
    return {values, values + size_};
  }
  TensorView view() const { return {buffer_.data(), DTypeOf<T>::value, {static_cast<int64_t>(size_)}}; }

 private:
  Stream& stream_;
  size_t size_;
  Buffer staging_;
  Buffer buffer_;
};

template <typename T>
TensorView view(const OnDevice<T>& values) {
  return values.view();
}

// Bit equality, with the first difference in the message.
template <typename T>
testing::AssertionResult same(const std::vector<T>& got, const std::vector<T>& expected) {
  if (got.size() != expected.size()) {
    return testing::AssertionFailure() << got.size() << " elements instead of " << expected.size();
  }
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::memcmp(&got[i], &expected[i], sizeof(T)) != 0) {
      return testing::AssertionFailure() << "element " << i << " of " << got.size() << " is " << +widen(got[i])
                                         << " instead of " << +widen(expected[i]);
    }
  }
  return testing::AssertionSuccess();
}

}  // namespace ashlar
