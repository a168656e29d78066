// Products of CublasLt, on the stand-in, against sums in double: every layout, every pair of types.
#include "tests/emulation/standins/cublaslt/support.h"
#include "tests/emulation/standins/cudart/clean_exit.h"

namespace ashlar::kernels::cuda {
namespace {

std::vector<double> expected_of(Bench& bench, const MatmulCall& call) {
  const auto a = bench.values(call.a, call.input, call.m * call.k);
  const auto b = bench.values(call.b, call.input, call.k * call.n);
  auto c = bench.values(call.c, call.output, call.m * call.n);
  const auto bias = call.bias == nullptr ? std::vector<double>(static_cast<size_t>(call.n))
                                         : bench.values(call.bias, call.input, call.n);
  const auto at = [](int64_t i) { return static_cast<size_t>(i); };
  for (int64_t row = 0; row < call.m; ++row) {
    for (int64_t column = 0; column < call.n; ++column) {
      double sum = call.add ? c[at(row * call.n + column)] : 0;
      for (int64_t i = 0; i < call.k; ++i) {
        sum += a[at(call.transpose_a ? i * call.m + row : row * call.k + i)] *
               b[at(call.transpose_b ? column * call.k + i : i * call.n + column)];
      }
      c[at(row * call.n + column)] = sum + bias[at(column)];
    }
  }
  return c;
}

double tolerance_of(Element output, bool tf32) {
  return tf32 ? 3e-3 : output == Element::kF32 ? 2e-6 : output == Element::kBf16 ? 4e-3 : 5e-4;
}

void expect_product(Bench& bench, const MatmulCall& call, bool tf32 = false) {
  const std::string what = fmt::format("[{},{}] k {} transposed {} {} add {} bias {} types {} {}", call.m, call.n,
                                       call.k, call.transpose_a, call.transpose_b, call.add, call.bias != nullptr,
                                       static_cast<int>(call.input), static_cast<int>(call.output));
  ASSERT_TRUE(bench.library.supports(call)) << what;
  const auto expected = expected_of(bench, call);
  bench.library.matmul(call, bench.handle());
  const auto found = bench.values(call.c, call.output, call.m * call.n);
  const double tolerance = tolerance_of(call.output, tf32);
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(found[i], expected[i], tolerance * (std::fabs(expected[i]) + std::sqrt(static_cast<double>(call.k))))
        << what << " at " << i;
  }
}

TEST(CublasLtProduct, EqualsSumsInDouble) {
  const std::pair<Element, Element> types[] = {{Element::kF32, Element::kF32},
                                               {Element::kBf16, Element::kBf16},
                                               {Element::kBf16, Element::kF32},
                                               {Element::kF16, Element::kF16},
                                               {Element::kF16, Element::kF32}};
  Bench bench;
  for (const auto& [input, output] : types) {
    for (const bool transpose_a : {false, true}) {
      for (const bool transpose_b : {false, true}) {
        for (const auto& [m, n, k] : {std::array{33, 65, 130}, std::array{1, 1, 1}, std::array{8, 1, 300}}) {
          MatmulCall call{.input = input, .output = output, .m = m, .n = n, .k = k};
          call.transpose_a = transpose_a;
          call.transpose_b = transpose_b;
          expect_product(bench, make_call(bench, call));
          call.add = output == Element::kF32;
          expect_product(bench, make_call(bench, call, 1));  // the lowest alignment
          call.add = false;
          if (input == output) {
            call.epilogue = Epilogue::kBias;
            expect_product(bench, make_call(bench, call));
          }
        }
      }
    }
  }
}

TEST(CublasLtProduct, RoundsOperandsToTf32OnlyWhereItIsAllowed) {
  const MatmulCall sizes{.m = 20, .n = 30, .k = 400};
  const auto worst = [&](bool allow_tf32, Element element) {
    Bench bench(allow_tf32);
    MatmulCall call = sizes;
    call.input = call.output = element;
    call = make_call(bench, call);
    const auto expected = expected_of(bench, call);
    expect_product(bench, call, true);
    const auto found = bench.values(call.c, element, call.m * call.n);
    double error = 0;
    for (size_t i = 0; i < found.size(); ++i) {
      error = std::max(error, std::fabs(found[i] - expected[i]));
    }
    return error;
  };
  EXPECT_LT(worst(false, Element::kF32), 1e-4);
  EXPECT_GT(worst(true, Element::kF32), 1e-3);
  EXPECT_EQ(worst(true, Element::kBf16), worst(false, Element::kBf16));
}

TEST(CublasLtProduct, InfinityStaysInItsRowAndColumn) {
  Bench bench;
  const MatmulCall call = make_call(bench, {.m = 3, .n = 4, .k = 5});
  const Buffer host = bench.device->allocate_host(4, "infinity");
  write(host.data(), Element::kF32, 0, INFINITY);
  bench.stream->copy(const_cast<float*>(static_cast<const float*>(call.a)) + 5, host.data(), 4);  // row 1
  bench.library.matmul(call, bench.handle());
  const auto found = bench.values(call.c, Element::kF32, 12);
  for (size_t i = 0; i < 12; ++i) {
    EXPECT_EQ(std::isfinite(found[i]), i / 4 != 1) << i;
  }
}

}  // namespace
}  // namespace ashlar::kernels::cuda
