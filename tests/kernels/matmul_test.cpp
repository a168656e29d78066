// Matrix products against a naive loop in double, in every transposition, and the gradients against finite differences.
#include "kernels/matmul.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "kernels/cpu/gemm_plain.h"
#include "runtime/device/cpu/cpu_device.h"

namespace ashlar::kernels {
namespace {

template <typename T>
std::vector<T> random_values(int64_t n, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  std::vector<T> values(static_cast<size_t>(n));
  std::generate(values.begin(), values.end(), [&] { return static_cast<T>(normal(generator)); });
  return values;
}

// c [m,n] += op(a) op(b), in double.
template <typename T>
std::vector<double> oracle(const std::vector<T>& c, const std::vector<T>& a, bool flip_a, const std::vector<T>& b,
                           bool flip_b, int64_t m, int64_t n, int64_t k) {
  std::vector<double> result(c.begin(), c.end());
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t l = 0; l < k; ++l) {
        result[i * n + j] += static_cast<double>(a[flip_a ? l * m + i : i * k + l]) *
                             static_cast<double>(b[flip_b ? j * k + l : l * n + j]);
      }
    }
  }
  return result;
}

// Terms are of size 1: k roundings of partial sums of size sqrt(k) add up to about k epsilon.
template <typename T>
void expect_close(const std::vector<T>& got, const std::vector<double>& want, int64_t k) {
  const double tolerance = 2.0 * std::numeric_limits<T>::epsilon() * static_cast<double>(k + 8);
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_NEAR(static_cast<double>(got[i]), want[i], tolerance) << "element " << i;
  }
}

struct Sizes {
  int64_t m, n, k;
};
const std::vector<Sizes> kSizes = {{1, 1, 1},    {1, 31, 33},   {31, 1, 7},    {33, 31, 1},   {8, 32, 64},
                                   {65, 33, 31}, {33, 65, 257}, {64, 64, 256}, {70, 67, 300}, {3, 130, 515}};

enum class Path { kContract, kPlain };

template <typename T>
void check_all_transpositions(Path path) {
  CpuDevice device;
  const auto stream = device.create_stream();
  for (const Sizes& s : kSizes) {
    const auto a = random_values<T>(s.m * s.k, 1);
    const auto b = random_values<T>(s.k * s.n, 2);
    const auto start = random_values<T>(s.m * s.n, 3);
    for (const bool flip_a : {false, true}) {
      for (const bool flip_b : {false, true}) {
        const std::vector<double> sum = oracle(start, a, flip_a, b, flip_b, s.m, s.n, s.k);
        for (const bool add : {false, true}) {
          SCOPED_TRACE(fmt::format("{} x {} x {}, transposed {} {}, add {}", s.m, s.n, s.k, flip_a, flip_b, add));
          std::vector<T> c = start;
          if (!add) {  // overwriting must not read what was there
            std::fill(c.begin(), c.end(), std::numeric_limits<T>::quiet_NaN());
          }
          if (path == Path::kContract) {
            matmul(view_of(c.data(), {s.m, s.n}),
                   flip_a ? view_of(a.data(), {s.k, s.m}) : view_of(a.data(), {s.m, s.k}),
                   flip_a ? Transpose::kYes : Transpose::kNo,
                   flip_b ? view_of(b.data(), {s.n, s.k}) : view_of(b.data(), {s.k, s.n}),
                   flip_b ? Transpose::kYes : Transpose::kNo, add ? Write::kAdd : Write::kOverwrite, *stream);
            stream->synchronize();
          } else {
            cpu::gemm_plain(flip_a, flip_b, s.m, s.n, s.k, a.data(), b.data(), add, c.data());
          }
          std::vector<double> want = sum;
          if (!add) {
            std::transform(sum.begin(), sum.end(), start.begin(), want.begin(),
                           [](double x, T y) { return x - static_cast<double>(y); });
          }
          expect_close(c, want, s.k);
        }
      }
    }
  }
}

TEST(Matmul, AllTranspositionsInFp32) {
  check_all_transpositions<float>(Path::kContract);
}
TEST(Matmul, AllTranspositionsInFp64) {
  check_all_transpositions<double>(Path::kContract);
}
TEST(Matmul, PlainLoopsInFp32WhateverIsLinked) {
  check_all_transpositions<float>(Path::kPlain);
}

// Runs linear layers of one set of sizes. Results start as NaN where they are overwritten.
template <typename T>
struct Linear {
  int64_t r, n, k;
  std::vector<T> x = random_values<T>(r * k, 4);
  std::vector<T> w = random_values<T>(n * k, 5);
  std::vector<T> bias = random_values<T>(n, 6);
  std::vector<T> dy = random_values<T>(r * n, 7);

  std::vector<T> forward(Stream& stream, bool with_bias) {
    std::vector<T> y(r * n, std::numeric_limits<T>::quiet_NaN());
    linear_forward(view_of(y.data(), {r, n}), view_of(x.data(), {r, k}), view_of(w.data(), {n, k}),
                   with_bias ? ConstTensorView(view_of(bias.data(), {n})) : ConstTensorView{}, stream);
    stream.synchronize();
    return y;
  }
  double loss(Stream& stream) {
    const auto y = forward(stream, true);
    double sum = 0;
    for (size_t i = 0; i < y.size(); ++i) {
      sum += static_cast<double>(dy[i]) * static_cast<double>(y[i]);
    }
    return sum;
  }
};

TEST(Linear, ForwardAddsTheBiasWhenThereIsOne) {
  CpuDevice device;
  const auto stream = device.create_stream();
  for (const Sizes& s : kSizes) {
    Linear<float> linear{s.m, s.n, s.k};
    std::vector<float> rows;
    for (int64_t i = 0; i < s.m; ++i) {
      rows.insert(rows.end(), linear.bias.begin(), linear.bias.end());
    }
    expect_close(linear.forward(*stream, true), oracle(rows, linear.x, false, linear.w, true, s.m, s.n, s.k), s.k);
    std::fill(rows.begin(), rows.end(), 0.0f);
    expect_close(linear.forward(*stream, false), oracle(rows, linear.x, false, linear.w, true, s.m, s.n, s.k), s.k);
  }
}

TEST(Linear, GradientsAgreeWithFiniteDifferences) {
  CpuDevice device;
  const auto stream = device.create_stream();
  Linear<double> linear{33, 7, 31};
  std::vector<double> dx(linear.x.size());
  std::vector<double> dw(linear.w.size(), 1.0);
  std::vector<double> db(linear.bias.size(), 2.0);
  const auto dy = view_of(linear.dy.data(), {33, 7});
  linear_backward_input(view_of(dx.data(), {33, 31}), dy, view_of(linear.w.data(), {7, 31}), *stream);
  linear_backward_weight(view_of(dw.data(), {7, 31}), dy, view_of(linear.x.data(), {33, 31}), Write::kAdd, *stream);
  bias_backward(view_of(db.data(), {7}), dy, Write::kAdd, *stream);
  stream->synchronize();
  const auto expect_gradient = [&](std::vector<double>& values, const std::vector<double>& gradient, double start) {
    for (size_t i = 0; i < values.size(); i += std::max<size_t>(1, values.size() / 50)) {
      const double h = 1e-3;  // the layer is linear: no truncation error, so a wide step loses nothing
      const double saved = values[i];
      values[i] = saved + h;
      const double up = linear.loss(*stream);
      values[i] = saved - h;
      const double down = linear.loss(*stream);
      values[i] = saved;
      EXPECT_NEAR(gradient[i] - start, (up - down) / (2 * h), 1e-9) << "element " << i;
    }
  };
  expect_gradient(linear.x, dx, 0.0);
  expect_gradient(linear.w, dw, 1.0);
  expect_gradient(linear.bias, db, 2.0);
}

TEST(Linear, BiasGradientOverwritesOrAddsTheColumnSums) {
  CpuDevice device;
  const auto stream = device.create_stream();
  for (const int64_t rows : {1, 31, 64, 65, 1000}) {
    for (const int64_t columns : {1, 33, 256, 257}) {
      const auto dy = random_values<float>(rows * columns, 8);
      std::vector<double> want(columns);
      for (int64_t i = 0; i < rows * columns; ++i) {
        want[i % columns] += static_cast<double>(dy[i]);
      }
      std::vector<float> db(columns, std::numeric_limits<float>::quiet_NaN());
      bias_backward(view_of(db.data(), {columns}), view_of(dy.data(), {rows, columns}), Write::kOverwrite, *stream);
      stream->synchronize();
      expect_close(db, want, rows);
      bias_backward(view_of(db.data(), {columns}), view_of(dy.data(), {rows, columns}), Write::kAdd, *stream);
      stream->synchronize();
      std::for_each(want.begin(), want.end(), [](double& x) { x *= 2; });
      expect_close(db, want, rows);
    }
  }
}

// All of a layer's kernels in a row on one stream, without waiting in between.
template <typename T>
std::vector<T> layer_results(CpuStreamKind kind) {
  constexpr int64_t kRows = 130, kOut = 192, kIn = 270;
  CpuDevice device(kind);
  const auto stream = device.create_stream();
  Linear<T> linear{kRows, kOut, kIn};
  std::vector<T> y(kRows * kOut), dx(kRows * kIn), dw(kOut * kIn), db(kOut);
  const auto x = view_of(linear.x.data(), {kRows, kIn});
  const auto w = view_of(linear.w.data(), {kOut, kIn});
  const auto y_view = view_of(y.data(), {kRows, kOut});
  linear_forward(y_view, x, w, view_of(linear.bias.data(), {kOut}), *stream);
  linear_backward_input(view_of(dx.data(), {kRows, kIn}), y_view, w, *stream);
  linear_backward_weight(view_of(dw.data(), {kOut, kIn}), y_view, x, Write::kOverwrite, *stream);
  linear_backward_weight(view_of(dw.data(), {kOut, kIn}), y_view, view_of(dx.data(), {kRows, kIn}), Write::kAdd,
                         *stream);
  bias_backward(view_of(db.data(), {kOut}), y_view, Write::kOverwrite, *stream);
  stream->synchronize();
  for (const auto& part : {dx, dw, db}) {
    y.insert(y.end(), part.begin(), part.end());
  }
  return y;
}

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

TEST(Linear, KeepsTheOrderOfAQueuedStreamAndRepeatsBitForBit) {
  const auto first = layer_results<float>(CpuStreamKind::kInline);
  EXPECT_TRUE(same_bits(layer_results<float>(CpuStreamKind::kQueued), first));
  EXPECT_TRUE(same_bits(layer_results<float>(CpuStreamKind::kInline), first));
}

// What oneDNN does not promise (see the contract), our own loops do.
TEST(Linear, PlainLoopsAndBiasGradientGiveTheSameBitsWithAnyNumberOfThreads) {
#ifdef _OPENMP
  const int threads = omp_get_max_threads();
  const auto dy = random_values<float>(70 * 300, 9);
  const auto b = random_values<float>(70 * 200, 10);
  const auto results = [&](int n) {
    omp_set_num_threads(n);
    CpuDevice device;
    const auto stream = device.create_stream();
    std::vector<float> sums(300), product(300 * 200);
    bias_backward(view_of(sums.data(), {300}), view_of(dy.data(), {70, 300}), Write::kOverwrite, *stream);
    cpu::gemm_plain(true, false, 300, 200, 70, dy.data(), b.data(), false, product.data());
    sums.insert(sums.end(), product.begin(), product.end());
    return std::pair(sums, layer_results<double>(CpuStreamKind::kInline));
  };
  const auto one = results(1);
  for (const int n : {2, 3, 8}) {
    const auto many = results(n);
    EXPECT_TRUE(same_bits(many.first, one.first)) << n << " threads, fp32";
    EXPECT_TRUE(same_bits(many.second, one.second)) << n << " threads, fp64";
  }
  omp_set_num_threads(threads);
#else
  GTEST_SKIP() << "built without OpenMP";
#endif
}

TEST(Matmul, RefusesShapesThatDoNotFit) {
  CpuDevice device;
  const auto stream = device.create_stream();
  std::vector<float> data(64);
  std::vector<double> wrong_type(64);
  const auto view = [&](int64_t rows, int64_t columns) { return view_of(data.data(), {rows, columns}); };
  EXPECT_THROW(matmul(view(2, 3), view(2, 4), Transpose::kYes, view(4, 3), Transpose::kNo, Write::kAdd, *stream),
               Error);
  EXPECT_THROW(matmul(view(2, 3), view(2, 4), Transpose::kNo, view(3, 3), Transpose::kNo, Write::kAdd, *stream), Error);
  EXPECT_THROW(matmul(view(2, 3), view_of(wrong_type.data(), {2, 4}), Transpose::kNo, view(4, 3), Transpose::kNo,
                      Write::kAdd, *stream),
               Error);
  EXPECT_THROW(linear_forward(view(2, 3), view(2, 4), view(3, 4), view(1, 4), *stream), Error);
  EXPECT_THROW(bias_backward(view(1, 4), view(2, 3), Write::kAdd, *stream), Error);
}

}  // namespace
}  // namespace ashlar::kernels
