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

template <typename T>
std::vector<double> as_double(const std::vector<T>& values) {
  return std::vector<double>(values.begin(), values.end());
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
