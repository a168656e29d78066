// What the tests of the row and element kernels share: repeatable numbers, a stream, finite differences, thread counts.
#pragma once

#include <gtest/gtest.h>

#ifdef _OPENMP
#include <omp.h>
#endif

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/rng.h"
#include "runtime/device/cpu/cpu_device.h"
#include "runtime/tensor/tensor.h"

namespace ashlar::kernels {

// n normal numbers times `scale` plus `offset`; the same for float (rounded) and double.
template <typename T>
std::vector<T> random_values(int64_t n, uint64_t stream, double scale = 1, double offset = 0) {
  const PhiloxStream random(7, RngPurpose::kTest, stream);
  std::vector<T> values(static_cast<size_t>(n));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<T>(offset + scale * static_cast<double>(random.normal(i)));
  }
  return values;
}

template <typename T>
TensorView view(std::vector<T>& values) {
  return view_of(values.data(), {static_cast<int64_t>(values.size())});
}
template <typename T>
ConstTensorView view(const std::vector<T>& values) {
  return view_of(values.data(), {static_cast<int64_t>(values.size())});
}
template <typename T>
TensorView view(std::vector<T>& values, Shape shape) {
  return view_of(values.data(), shape);
}
template <typename T>
ConstTensorView view(const std::vector<T>& values, Shape shape) {
  return view_of(values.data(), shape);
}

// Runs work on a queued stream and waits for it, so that every kernel test also shows that nothing happens early or on
// the wrong thread.
inline void on_queued_stream(const std::function<void(Stream&)>& work) {
  CpuDevice device(CpuStreamKind::kQueued);
  const std::unique_ptr<Stream> stream = device.create_stream();
  work(*stream);
  stream->synchronize();
}

// Runs work in this thread with a given number of OpenMP threads (one, in a build without OpenMP).
inline void with_threads([[maybe_unused]] int num_threads, const std::function<void(Stream&)>& work) {
  CpuDevice device(CpuStreamKind::kInline);
  const std::unique_ptr<Stream> stream = device.create_stream();
#ifdef _OPENMP
  const int before = omp_get_max_threads();
  omp_set_num_threads(num_threads);
#endif
  work(*stream);
#ifdef _OPENMP
  omp_set_num_threads(before);
#endif
}

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

// Compares with |actual - expected| <= tolerance * max(1, |expected|); a NaN fails.
template <typename T>
void expect_close(const std::vector<T>& actual, const std::vector<double>& expected, double tolerance,
                  const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double bound = tolerance * std::max(1.0, std::abs(expected[i]));
    ASSERT_LE(std::abs(static_cast<double>(actual[i]) - expected[i]), bound)
        << what << " element " << i << ": " << actual[i] << ", expected " << expected[i];
  }
}

// Central differences of `loss` in every element of `at`, against `gradient`.
inline void expect_gradient(std::vector<double>& at, const std::vector<double>& gradient,
                            const std::function<double()>& loss, const std::string& what) {
  ASSERT_EQ(at.size(), gradient.size()) << what;
  constexpr double kStep = 1e-5;
  for (size_t i = 0; i < at.size(); ++i) {
    const double kept = at[i];
    at[i] = kept + kStep;
    const double above = loss();
    at[i] = kept - kStep;
    const double below = loss();
    at[i] = kept;
    const double slope = (above - below) / (2 * kStep);
    ASSERT_LE(std::abs(slope - gradient[i]), 2e-8 * std::max(1.0, std::abs(slope)))
        << what << " element " << i << ": gradient " << gradient[i] << ", finite difference " << slope;
  }
}

inline double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    sum += a[i] * b[i];
  }
  return sum;
}

}  // namespace ashlar::kernels
