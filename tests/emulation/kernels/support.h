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
#include "tests/emulation/emu/emulator.h"
#include "tests/kernels/pointwise_support.h"

namespace ashlar::kernels {

// Device memory with a copy of `values`. `shift` elements lie before them, so that 1 breaks the alignment to 16 bytes.
template <typename T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& values, size_t shift = 0)
      : size_(values.size()), shift_(shift), memory_(static_cast<T*>(emu::allocate((size_ + shift) * sizeof(T)))) {
    std::copy(values.begin(), values.end(), get());
  }
  explicit OnDevice(size_t size, size_t shift = 0)  // NaN
      : size_(size), shift_(shift), memory_(static_cast<T*>(emu::allocate((size + shift) * sizeof(T)))) {}
  ~OnDevice() { emu::release(memory_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  T* get() const { return memory_ + shift_; }
  std::vector<T> values() const { return std::vector<T>(get(), get() + size_); }

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

// Calls run() in ascending order of threads and under two random orders. It returns all outputs, an array or tuple of
// vectors. Their bits must be the same each time, and the emulator must have nothing to say.
template <typename Run>
auto under_every_order(const std::string& what, Run run) {
  emu::options() = emu::Options{};
  emu::take_reports();
  emu::options().random_order = false;
  const auto outputs = run();
  emu::options().random_order = true;
  for (const uint64_t seed : {11, 12}) {
    emu::options().seed = seed;
    const auto again = run();
    const auto compare = [&](const auto& one, const auto& other, size_t i) {
      EXPECT_TRUE(same_bits(one, other)) << what << " output " << i << " differs between orders of threads";
    };
    [&]<size_t... kOutput>(std::index_sequence<kOutput...>) {
      (compare(std::get<kOutput>(outputs), std::get<kOutput>(again), kOutput), ...);
    }
    (std::make_index_sequence<std::tuple_size_v<decltype(run())>>());
  }
  emu::options() = emu::Options{};
  for (const emu::Report& report : emu::take_reports()) {
    ADD_FAILURE() << what << ": " << emu::describe(report);
  }
  return outputs;
}

}  // namespace ashlar::kernels
