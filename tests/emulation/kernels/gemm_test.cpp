// Our matrix products: fp32 sums against a double oracle, then every epilogue, to the bit, against what the fp32 sums
// and the elementwise kernels give.
#include "kernels/cuda/gemm.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <optional>

#include "kernels/cuda/activation.h"
#include "runtime/base/error.h"
#include "tests/emulation/kernels/support.h"

namespace ashlar::kernels {
namespace {

using cuda::Epilogue;
using cuda::MatmulCall;

template <typename T>
constexpr Element kElement = Element::kF32;
template <>
constexpr Element kElement<__nv_bfloat16> = Element::kBf16;
template <>
constexpr Element kElement<__half> = Element::kF16;

template <typename T>
std::vector<T> rounded(const std::vector<float>& values) {
  return std::vector<T>(values.begin(), values.end());
}
template <typename T>
std::vector<float> as_float(const std::vector<T>& values) {
  return std::vector<float>(values.begin(), values.end());
}

struct Product {
  bool transpose_a, transpose_b;
  int64_t m, n, k;

  std::string name() const {
    return fmt::format("{}{} [{},{},{}]", transpose_a ? 't' : 'n', transpose_b ? 't' : 'n', m, n, k);
  }
};

// Forward, input gradient, weight gradient. A tile is 128 x 128 and a step 32 deep; the last of each layout is split.
constexpr Product kProducts[] = {
    {false, true, 1, 8, 8},      {false, true, 31, 40, 40},    {false, true, 129, 128, 32},
    {false, true, 200, 136, 72}, {false, true, 33, 40, 1200},  {false, false, 1, 8, 8},
    {false, false, 33, 8, 136},  {false, false, 129, 128, 64}, {false, false, 31, 136, 72},
    {false, false, 1, 40, 1208}, {true, false, 8, 8, 1},       {true, false, 40, 40, 31},
    {true, false, 128, 8, 33},   {true, false, 200, 136, 72},  {true, false, 136, 40, 1201},
};
// Epilogues see rows and columns of c, and whether its sums were split.
constexpr Product kTails[] = {{false, true, 200, 136, 72}, {false, false, 31, 40, 40}, {true, false, 40, 40, 1201}};

// The operands of one product, on the host.
template <typename T>
struct Operands {
  Product product;
  std::vector<T> a, b, bias, pre;
  std::vector<float> before;  // of c, where a product is added to it

  explicit Operands(const Product& p)
      : product(p),
        a(rounded<T>(random_values<float>(p.m * p.k, 1))),
        b(rounded<T>(random_values<float>(p.k * p.n, 2))),
        bias(rounded<T>(random_values<float>(p.n, 3))),
        pre(rounded<T>(random_values<float>(p.m * p.n, 4, 2))),
        before(random_values<float>(p.m * p.n, 6)) {}

  double a_at(int64_t row, int64_t depth) const {
    return static_cast<double>(static_cast<float>(
        a[static_cast<size_t>(product.transpose_a ? depth * product.m + row : row * product.k + depth)]));
  }
  double b_at(int64_t depth, int64_t column) const {
    return static_cast<double>(static_cast<float>(
        b[static_cast<size_t>(product.transpose_b ? column * product.k + depth : depth * product.n + column)]));
  }
};

template <typename T>
struct Result {
  std::vector<T> c, pre;
  std::vector<float> c_f32;
};

struct Variant {
  bool to_f32 = false, add = false;
  Epilogue epilogue = Epilogue::kNone;
  Activation activation = Activation::kGeluTanh;
  bool has_bias = true;
};

// Runs a product under several orders of threads.
template <typename T>
Result<T> run(const Operands<T>& host, const Variant& variant) {
  const Product& p = host.product;
  const std::string what = fmt::format("{} {} epilogue {}", p.name(), kElement<T> == Element::kBf16 ? "bf16" : "fp16",
                                       static_cast<int>(variant.epilogue));
  Result<T> result;
  const auto size = static_cast<size_t>(p.m * p.n);
  const auto outputs = under_every_order(what, [&] {
    const OnDevice<T> a(host.a), b(host.b), bias(host.bias);
    const OnDevice<T> c(size), written_pre(size), read_pre(host.pre);
    const OnDevice<float> c_f32(host.before);
    MatmulCall call;
    call.input = kElement<T>;
    call.output = variant.to_f32 ? Element::kF32 : call.input;
    call.c = variant.to_f32 ? static_cast<void*>(c_f32.get()) : c.get();
    call.a = a.get();
    call.b = b.get();
    call.m = p.m;
    call.n = p.n;
    call.k = p.k;
    call.transpose_a = p.transpose_a;
    call.transpose_b = p.transpose_b;
    call.add = variant.add;
    call.epilogue = variant.epilogue;
    call.activation = variant.activation;
    call.bias = variant.has_bias ? bias.get() : nullptr;
    call.pre = variant.epilogue == Epilogue::kBiasActivation ? written_pre.get() : read_pre.get();
    EXPECT_TRUE(cuda::gemm_supports(call)) << what;
    const OnDevice<float> scratch(cuda::gemm_scratch_bytes(call) / sizeof(float));
    cuda::gemm(call, {scratch.get(), cuda::gemm_scratch_bytes(call)}, nullptr);
    result = {c.values(), written_pre.values(), c_f32.values()};
    // As floats, which compare by bits.
    return std::array{result.c_f32, as_float(result.c), as_float(result.pre)};
  });
  return result;
}

template <typename T>
std::vector<float> sums_of(const Operands<T>& host) {
  return run(host, {.to_f32 = true}).c_f32;
}

// x + y, elementwise; y repeats when it is shorter.
std::vector<float> plus(std::vector<float> x, const std::vector<float>& y) {
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] += y[i % y.size()];
  }
  return x;
}

std::vector<float> activated(const std::vector<float>& x, Activation activation) {
  const OnDevice<float> device(x);
  cuda::activation_forward(Element::kF32, device.get(), device.get(), static_cast<int64_t>(x.size()), activation,
                           nullptr);
  return device.values();
}
std::vector<float> activated_backward(const std::vector<float>& dy, const std::vector<float>& x,
                                      Activation activation) {
  const OnDevice<float> device_x(x), device(dy);
  cuda::activation_backward(Element::kF32, device.get(), device.get(), device_x.get(), static_cast<int64_t>(x.size()),
                            activation, nullptr);
  return device.values();
}

template <typename T>
class CudaGemm : public testing::Test {};
using Types = testing::Types<__nv_bfloat16, __half>;
TYPED_TEST_SUITE(CudaGemm, Types);

TYPED_TEST(CudaGemm, SumsAreThoseOfADoubleOracle) {
  for (const Product& p : kProducts) {
    const Operands<TypeParam> host(p);
    const std::vector<float> sums = sums_of(host);
    const std::vector<float> added = run(host, {.to_f32 = true, .add = true}).c_f32;
    EXPECT_TRUE(same_bits(added, plus(host.before, sums))) << p.name();
    EXPECT_TRUE(same_bits(run(host, {}).c, rounded<TypeParam>(sums))) << p.name();
    int wrong = 0;
    for (int64_t i = 0; i < p.m * p.n; ++i) {
      double expected = 0;
      double magnitude = 0;
      for (int64_t depth = 0; depth < p.k; ++depth) {
        const double term = host.a_at(i / p.n, depth) * host.b_at(depth, i % p.n);
        expected += term;
        magnitude += std::abs(term);
      }
      // Rounding errors of fp32 sums grow with the root of their length; 4e-7 is 6 units of the last place.
      const double error = std::abs(static_cast<double>(sums[static_cast<size_t>(i)]) - expected);
      wrong += error <= 4e-7 * magnitude ? 0 : 1;
    }
    EXPECT_EQ(wrong, 0) << p.name();
  }
}

TYPED_TEST(CudaGemm, TheBiasIsAddedInFp32) {
  for (const Product& p : kTails) {
    const Operands<TypeParam> host(p);
    const std::vector<float> sums = sums_of(host);
    const std::vector<float> with_bias = plus(sums, as_float(host.bias));
    EXPECT_TRUE(same_bits(run(host, {.epilogue = Epilogue::kBias}).c, rounded<TypeParam>(with_bias))) << p.name();
    EXPECT_TRUE(same_bits(run(host, {.epilogue = Epilogue::kBias, .has_bias = false}).c, rounded<TypeParam>(sums)))
        << p.name();
  }
}

TYPED_TEST(CudaGemm, FusedActivationsHaveTheBitsOfTheUnfused) {
  for (const Product& p : kTails) {
    const Operands<TypeParam> host(p);
    const std::vector<TypeParam> sums = rounded<TypeParam>(sums_of(host));
    const std::vector<TypeParam> pre = run(host, {.epilogue = Epilogue::kBias}).c;
    for (const Activation activation : {Activation::kGeluTanh, Activation::kGeluErf}) {
      const auto forward = run(host, {.epilogue = Epilogue::kBiasActivation, .activation = activation});
      EXPECT_TRUE(same_bits(forward.pre, pre)) << p.name();
      EXPECT_TRUE(same_bits(forward.c, rounded<TypeParam>(activated(as_float(pre), activation)))) << p.name();
      const auto backward = run(host, {.epilogue = Epilogue::kActivationBackward, .activation = activation});
      EXPECT_TRUE(
          same_bits(backward.c, rounded<TypeParam>(activated_backward(as_float(sums), as_float(host.pre), activation))))
          << p.name();
    }
  }
}

TEST(CudaGemmPlan, SplitsDependOnTheShapeAlone) {
  const auto splits = [](int64_t m, int64_t n, int64_t k) {
    MatmulCall call;
    call.m = m;
    call.n = n;
    call.k = k;
    const size_t bytes = cuda::gemm_scratch_bytes(call);
    return bytes == 0 ? size_t{1} : bytes / static_cast<size_t>(m * n) / sizeof(float);
  };
  // Weight gradients of GPT-2 124M over 65536 tokens: projection, QKV, MLP; then shapes that fill a GPU, or are short.
  EXPECT_EQ(splits(768, 768, 65536), 6u);
  EXPECT_EQ(splits(2304, 768, 65536), 2u);
  EXPECT_EQ(splits(3072, 768, 65536), 3u);
  EXPECT_EQ(splits(65536, 768, 768), 1u);
  EXPECT_EQ(splits(8192, 8192, 8192), 1u);
  EXPECT_EQ(splits(128, 128, 512), 1u);
}

TEST(CudaGemmPlan, ScratchIsBounded) {
  MatmulCall call;
  call.k = 1 << 20;
  bool is_split = false;
  for (call.m = 128; call.m <= 4096; call.m += 136) {
    for (call.n = 128; call.n <= 8192; call.n += 264) {
      EXPECT_LE(cuda::gemm_scratch_bytes(call), cuda::kGemmMostScratchBytes) << call.m << ' ' << call.n;
      is_split = is_split || cuda::gemm_scratch_bytes(call) > 0;
    }
  }
  EXPECT_TRUE(is_split);
}

TEST(CudaGemmPlan, NoSplitIsEmpty) {
  MatmulCall call;
  call.m = 128;
  call.n = 128;
  for (call.k = 1; call.k < 5000; call.k += 31) {
    const auto splits = static_cast<int64_t>(cuda::gemm_scratch_bytes(call) / (128 * 128 * sizeof(float)));
    const int64_t steps = (call.k + 31) / 32;
    EXPECT_LE(splits, 16);
    if (splits > 1) {
      const int64_t per_split = (steps + splits - 1) / splits;
      EXPECT_GT(steps, per_split * (splits - 1)) << call.k;
    }
  }
}

TEST(CudaGemmPlan, WhatCannotBeDoneIsRefused) {
  const OnDevice<float> memory(size_t{64 * 64});
  MatmulCall good;
  good.input = Element::kBf16;
  good.output = Element::kBf16;
  good.c = memory.get();
  good.a = memory.get() + 512;
  good.b = memory.get() + 1024;
  good.m = 3;
  good.n = 16;
  good.k = 24;
  good.transpose_b = true;
  ASSERT_TRUE(cuda::gemm_supports(good));
  const auto refused = [&](auto change, const char* because) {
    MatmulCall call = good;
    change(call);
    EXPECT_FALSE(cuda::gemm_supports(call)) << because;
    std::optional<Error> error;
    try {
      cuda::gemm(call, {}, nullptr);
    } catch (const Error& e) {
      error.emplace(e);
    }
    ASSERT_TRUE(error.has_value()) << because;
    EXPECT_EQ(error->code(), ErrorCode::kUsage);
    EXPECT_NE(std::string(error->what()).find(because), std::string::npos) << error->what();
  };
  refused([](MatmulCall& c) { c.input = Element::kF32; }, "operands of 16 bits");
  refused([](MatmulCall& c) { c.output = Element::kF16; }, "operands' type or fp32");
  refused([](MatmulCall& c) { c.transpose_a = true; }, "at most one transposed");
  refused([](MatmulCall& c) { c.output = Element::kF32, c.epilogue = Epilogue::kBias; }, "no epilogue");
  refused([](MatmulCall& c) { c.add = true; }, "an fp32 result");
  refused([](MatmulCall& c) { c.k = 0; }, "at least 1");
  refused([](MatmulCall& c) { c.m = int64_t{1} << 31; }, "fewer rows");
  refused([](MatmulCall& c) { c.n = 20; }, "multiple of 8");
  refused([](MatmulCall& c) { c.k = 20; }, "multiple of 8");
  refused([](MatmulCall& c) { c.transpose_a = true, c.transpose_b = false; }, "multiple of 8");  // rows of 3
  refused([](MatmulCall& c) { c.a = static_cast<const char*>(c.a) + 8; }, "multiple of 16");
  refused([](MatmulCall& c) { c.c = static_cast<char*>(c.c) + 2; }, "multiple of 16");
  refused([](MatmulCall& c) { c.bias = static_cast<char*>(c.c) + 4; }, "multiple of 16");
  refused([](MatmulCall& c) { c.epilogue = Epilogue::kBiasActivation; }, "all operands");
}

}  // namespace
}  // namespace ashlar::kernels
