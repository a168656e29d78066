// What CublasLt keeps per kind of call, and that products are work of their stream.
#include <gmock/gmock.h>

#include "runtime/base/error.h"
#include "tests/emulation/standins/cublaslt/support.h"

namespace ashlar::kernels::cuda {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

class CublasLtPlans : public testing::Test {
 protected:
  CublasLtPlans() {
    standin::reset();
    standin::reset_cublaslt();
  }
  ~CublasLtPlans() override { EXPECT_THAT(standin::cublaslt_leaks(), IsEmpty()); }
};

TEST_F(CublasLtPlans, OnlyTheFirstCallOfAKindMakesAnything) {
  Bench bench;
  std::vector<MatmulCall> calls;
  for (const bool add : {false, true}) {
    for (const Element input : {Element::kF32, Element::kBf16}) {
      calls.push_back(make_call(bench, {.input = input, .m = 16, .n = 24, .k = 32, .add = add}));
      calls.push_back(make_call(bench, {.input = input, .m = 24, .n = 16, .k = 32, .transpose_b = true, .add = add}));
    }
  }
  calls.push_back(make_call(bench, {.m = 16, .n = 24, .k = 32, .epilogue = Epilogue::kBias}));
  calls.push_back(make_call(bench, {.input = Element::kF16, .output = Element::kF16, .m = 16, .n = 24, .k = 32}));
  const auto run = [&] {
    for (const MatmulCall& call : calls) {
      bench.library.matmul(call, bench.handle());
    }
  };
  run();
  const standin::CublasLtCounts first = standin::cublaslt_counts();
  EXPECT_EQ(first.handles, 1);
  EXPECT_EQ(first.searches, static_cast<int>(calls.size()));
  EXPECT_EQ(first.descriptions, static_cast<int>(calls.size()));
  EXPECT_EQ(first.rounding_searches, 0);
  const int64_t allocations = bench.device->num_allocations();
  for (MatmulCall& call : calls) {  // other matrices of the same kinds
    call = make_call(bench, call);
  }
  const int64_t of_matrices = bench.device->num_allocations() - allocations;
  run();
  standin::CublasLtCounts again = standin::cublaslt_counts();
  EXPECT_EQ(again.products, 2 * first.products);
  again.products = first.products;
  EXPECT_TRUE(again == first);
  EXPECT_EQ(bench.device->num_allocations(), allocations + of_matrices);
}

// The pointer of a bias is part of a descriptor, which several calls share.
TEST_F(CublasLtPlans, EachCallReadsItsOwnBias) {
  Bench bench;
  const MatmulCall first = make_call(bench, {.m = 4, .n = 8, .k = 8, .epilogue = Epilogue::kBias});
  MatmulCall second = first;
  second.c = bench.matrix(Element::kF32, 32, 5);
  second.bias = bench.matrix(Element::kF32, 8, 6);
  bench.library.matmul(first, bench.handle());
  bench.library.matmul(second, bench.handle());
  const auto c = bench.values(first.c, Element::kF32, 32), other = bench.values(second.c, Element::kF32, 32);
  const auto bias = bench.values(first.bias, Element::kF32, 8),
             other_bias = bench.values(second.bias, Element::kF32, 8);
  for (size_t i = 0; i < 32; ++i) {
    EXPECT_NEAR(c[i] - bias[i % 8], other[i] - other_bias[i % 8], 1e-5) << i;
  }
}

TEST_F(CublasLtPlans, LessAlignedMatricesGetAnAlgorithmOfTheirOwn) {
  Bench bench;
  const MatmulCall call{.input = Element::kBf16, .output = Element::kBf16, .m = 8, .n = 8, .k = 8};
  bench.library.matmul(make_call(bench, call), bench.handle());
  bench.library.matmul(make_call(bench, call, 8), bench.handle());  // 16 bytes further: as good
  EXPECT_EQ(standin::cublaslt_counts().searches, 1);
  bench.library.matmul(make_call(bench, call, 1), bench.handle());
  EXPECT_EQ(standin::cublaslt_counts().searches, 2);
}

TEST_F(CublasLtPlans, EqualCallsGiveEqualBitsWhateverTheDelays) {
  std::vector<double> first;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    for (const auto delays : {standin::Delays::kNone, standin::Delays::kRandom, standin::Delays::kLate}) {
      standin::reset({.seed = seed, .delays = delays});
      Bench bench;
      const MatmulCall call = make_call(bench, {.input = Element::kBf16, .m = 65, .n = 70, .k = 300, .add = true});
      bench.library.matmul(call, bench.handle());
      bench.library.matmul(call, bench.handle());
      const auto found = bench.values(call.c, Element::kF32, call.m * call.n);
      if (first.empty()) {
        first = found;
      }
      EXPECT_EQ(found, first);
    }
  }
}

TEST_F(CublasLtPlans, WorksOnAnyGpuFromAThreadWhoseCurrentGpuIsAnother) {
  Bench first(false, 0), second(false, 1);
  const MatmulCall on_second = make_call(second, {.m = 4, .n = 4, .k = 4});
  const MatmulCall on_first = make_call(first, {.m = 4, .n = 4, .k = 4});
  second.library.matmul(on_second, second.handle());
  first.library.matmul(on_first, first.handle());
  EXPECT_EQ(first.values(on_first.c, Element::kF32, 16), second.values(on_second.c, Element::kF32, 16));
}

// One stream makes a, another multiplies with it.
std::vector<std::string> reports_of(bool forget_to_wait, bool share_workspace) {
  try {
    Bench first;
    const auto other_stream = first.device->create_stream();
    const auto done = first.device->create_event();
    const MatmulCall call = make_call(first, {.m = 16, .n = 16, .k = 16});
    first.stream->fill_zero(const_cast<void*>(call.a), 16 * 16 * 4);
    if (share_workspace) {
      const MatmulCall unrelated = make_call(first, {.m = 16, .n = 16, .k = 16});
      first.stream->record(*done);
      other_stream->wait(*done);
      first.library.matmul(unrelated, first.handle());
    }
    first.stream->record(*done);
    if (!forget_to_wait && !share_workspace) {
      other_stream->wait(*done);
    }
    first.library.matmul(call, cuda_stream(*other_stream).handle());
    other_stream->synchronize();
    first.stream->synchronize();
  } catch (const Error&) {
    EXPECT_TRUE(forget_to_wait || share_workspace);  // after a report, the device's calls fail
  }
  return standin::take_reports();
}

TEST_F(CublasLtPlans, AForgottenWaitIsReportedWithTheCallsName) {
  EXPECT_THAT(reports_of(false, false), IsEmpty());
  EXPECT_THAT(reports_of(true, false), Contains(HasSubstr("cublasLtMatmul")));
  standin::reset();
  EXPECT_THAT(reports_of(false, true), Contains(HasSubstr("cublasLtMatmul")));  // only the workspace is in common
  standin::reset();
}

}  // namespace
}  // namespace ashlar::kernels::cuda
