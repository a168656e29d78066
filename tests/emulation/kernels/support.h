// What the tests of CUDA kernels share: device memory, and running a case under several orders of threads. Inputs and
// comparisons are those of the CPU kernels' tests.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <functional>
#include <tuple>
#include <vector>

#include "kernels/cpu/element.h"
#include "kernels/plain_types.h"
#include "runtime/base/dtype.h"
#include "tests/emulation/kernels/test_device.h"
#include "tests/kernels/pointwise_support.h"

namespace ashlar::kernels {

// Device memory with a copy of `values`. `shift` elements lie before them, so that 1 breaks the alignment to 16 bytes.
template <typename T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& values, size_t shift = 0) : OnDevice(values.size(), shift) {
    test_device::write(get(), values.data(), size_ * sizeof(T));
  }
  explicit OnDevice(size_t size, size_t shift = 0)  // NaN
      : size_(size), shift_(shift), memory_(static_cast<T*>(test_device::allocate((size + shift) * sizeof(T)))) {}
  ~OnDevice() { test_device::release(memory_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  T* get() const { return memory_ + shift_; }
  std::vector<T> values() const {
    std::vector<T> read(size_);
    test_device::read(read.data(), get(), size_ * sizeof(T));
    return read;
  }

 private:
  size_t size_, shift_;
  T* memory_;
};

// T: float, BFloat16, Float16 (or double, which stays what it is).
template <typename T>
std::vector<double> as_double(const std::vector<T>& values) {
  std::vector<double> out(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    out[i] = static_cast<double>(cpu::widen(values[i]));
  }
  return out;
}
template <typename T>
std::vector<float> as_float(const std::vector<T>& values) {
  std::vector<float> out(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    out[i] = cpu::widen(values[i]);
  }
  return out;
}
// Each value rounded to T.
template <typename T>
std::vector<T> rounded_to(const std::vector<float>& values) {
  std::vector<T> out(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    out[i] = cpu::narrow<T>(values[i]);
  }
  return out;
}
template <typename T>
std::vector<T> random_elements(int64_t n, uint64_t stream, double scale = 1, double offset = 0) {
  return rounded_to<T>(random_values<float>(n, stream, scale, offset));
}

// Compares numbers that were computed in fp32, with an error of tolerance * max(1, |expected|), and rounded to T once.
template <typename T>
void expect_rounded(const std::vector<T>& actual, const std::vector<double>& expected, double tolerance,
                    const std::string& what) {
  constexpr double kHalfStep = std::is_same_v<T, float> ? 0 : std::is_same_v<T, BFloat16> ? 0x1p-8 : 0x1p-11;
  constexpr double kHalfSubnormal = std::is_same_v<T, Float16> ? 0x1p-25 : 0;
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (size_t i = 0; i < actual.size(); ++i) {
    const auto value = static_cast<double>(cpu::widen(actual[i]));
    const double size = std::abs(expected[i]);
    ASSERT_LE(std::abs(value - expected[i]), tolerance * std::max(1.0, size) + kHalfStep * size + kHalfSubnormal)
        << what << " element " << i << ": " << value << ", expected " << expected[i];
  }
}

// Calls function(T{}) for every element type of GPU kernels.
template <typename Function>
void for_all_elements(Function function) {
  function(float{});
  function(BFloat16{});
  function(Float16{});
}

template <typename T>
constexpr Element element_of() {
  return std::is_same_v<T, float> ? Element::kF32 : std::is_same_v<T, BFloat16> ? Element::kBf16 : Element::kF16;
}

// Calls run() under several orders of threads (on a GPU, twice). It returns all outputs, an array or tuple of vectors.
// Their bits must be the same each time, and the emulator must have nothing to say.
template <typename Run>
auto under_every_order(const std::string& what, Run run) {
  test_device::begin_run(0);
  const auto outputs = run();
  for (int number = 1; number < test_device::num_runs(); ++number) {
    test_device::begin_run(number);
    const auto again = run();
    const auto compare = [&](const auto& one, const auto& other, size_t i) {
      EXPECT_TRUE(same_bits(one, other)) << what << " output " << i << " differs between runs";
    };
    [&]<size_t... kOutput>(std::index_sequence<kOutput...>) {
      (compare(std::get<kOutput>(outputs), std::get<kOutput>(again), kOutput), ...);
    }
    (std::make_index_sequence<std::tuple_size_v<decltype(run())>>());
  }
  for (const std::string& fault : test_device::end_runs()) {
    ADD_FAILURE() << what << ": " << fault;
  }
  return outputs;
}

}  // namespace ashlar::kernels
