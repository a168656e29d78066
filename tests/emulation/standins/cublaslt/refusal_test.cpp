// What CublasLt does not take, how failures of the library read, and the stand-in's own refusals: those of the real
// one.
#include <cublasLt.h>
#include <gmock/gmock.h>

#include "runtime/base/error.h"
#include "tests/emulation/standins/cublaslt/support.h"

namespace ashlar::kernels::cuda {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr Element kF32 = Element::kF32, kBf16 = Element::kBf16, kF16 = Element::kF16;

class CublasLtRefusals : public testing::Test {
 protected:
  CublasLtRefusals() {
    standin::reset();
    standin::reset_cublaslt();
  }
};

TEST_F(CublasLtRefusals, SupportsSaysWhatIsTaken) {
  Bench bench;
  const auto takes = [&](MatmulCall call, size_t shift_c = 0) {
    call.a = call.b = bench.workspace.data();
    call.c = bench.workspace.data() + shift_c;
    call.bias = bench.workspace.data();
    return bench.library.supports(call);
  };
  const MatmulCall good{.input = kBf16, .output = kBf16, .m = 8, .n = 8, .k = 8};
  EXPECT_TRUE(takes(good));
  const auto with = [&](auto change) {
    MatmulCall call = good;
    change(call);
    return call;
  };
  EXPECT_TRUE(takes(with([](MatmulCall& c) { c.n = c.k = 7; })));  // slow, but there
  EXPECT_TRUE(takes(with([](MatmulCall& c) { c.epilogue = Epilogue::kBias; })));
  EXPECT_TRUE(takes(with([](MatmulCall& c) { c.output = kF32, c.add = true; })));
  EXPECT_FALSE(takes(with([](MatmulCall& c) { c.add = true; })));  // into 16 bits
  EXPECT_FALSE(takes(with([](MatmulCall& c) { c.output = kF16; })));
  EXPECT_FALSE(takes(with([](MatmulCall& c) { c.input = kF32; })));
  EXPECT_FALSE(takes(with([](MatmulCall& c) { c.output = kF32, c.epilogue = Epilogue::kBias; })));
  EXPECT_FALSE(
      takes(with([](MatmulCall& c) { c.input = c.output = kF32, c.add = true, c.epilogue = Epilogue::kBias; })));
  EXPECT_FALSE(takes(with([](MatmulCall& c) { c.k = 0; })));
  EXPECT_FALSE(takes(with([](MatmulCall& c) { c.m = int64_t{1} << 31; })));
  for (const auto epilogue : {Epilogue::kBiasActivation, Epilogue::kActivationBackward}) {
    EXPECT_FALSE(takes(with([&](MatmulCall& c) { c.epilogue = epilogue; })));
  }
  EXPECT_TRUE(takes(good, 2));
  EXPECT_FALSE(takes(good, 1));
  EXPECT_FALSE(bench.library.supports({.m = 8, .n = 8, .k = 8, .epilogue = Epilogue::kBias}));  // without one
  EXPECT_THROW(bench.library.matmul(with([](MatmulCall& c) { c.add = true; }), bench.handle()), Error);
}

void expect_error(const std::function<void()>& call, const testing::Matcher<std::string>& text) {
  try {
    call();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    EXPECT_THAT(std::string(error.what()), text);
  }
}

TEST_F(CublasLtRefusals, AFailedCallNamesDeviceCallStatusAndShape) {
  Bench bench(false, 1);
  const MatmulCall call = make_call(
      bench,
      {.input = kBf16, .output = kBf16, .m = 16, .n = 32, .k = 8, .transpose_b = true, .epilogue = Epilogue::kBias});
  standin::reset_cublaslt({.fail_products = true});
  expect_error([&] { bench.library.matmul(call, bench.handle()); },  // the handle is forgotten too
               AllOf(HasSubstr("CUDA device 1"), HasSubstr("CUBLAS_STATUS"), HasSubstr("c [16,32] bf16"),
                     HasSubstr("a [16,8]"), HasSubstr("b [32,8] transposed"), HasSubstr("bias")));
}

TEST_F(CublasLtRefusals, AnExecutionFailureIsAnErrorToo) {
  standin::reset_cublaslt({.fail_products = true});
  Bench bench;
  const MatmulCall call = make_call(bench, {.m = 16, .n = 32, .k = 8, .add = true});
  expect_error([&] { bench.library.matmul(call, bench.handle()); },
               AllOf(HasSubstr("cublasLtMatmul: CUBLAS_STATUS_EXECUTION_FAILED"), HasSubstr("c [16,32] fp32 +=")));
}

TEST_F(CublasLtRefusals, NoAlgorithmWithinTheWorkspace) {
  standin::reset_cublaslt({.workspace_bytes = 8192});
  Bench bench(false, 0, 8191);
  const MatmulCall call = make_call(bench, {.m = 16, .n = 32, .k = 8});
  expect_error([&] { bench.library.matmul(call, bench.handle()); },
               AllOf(HasSubstr("no algorithm"), HasSubstr("c [16,32]"), HasSubstr("8191 bytes")));
  Bench larger(false, 0, 8192);
  larger.library.matmul(make_call(larger, call), larger.handle());
}

TEST_F(CublasLtRefusals, MemoryThatIsGoneIsReported) {
  Bench bench;
  MatmulCall call = make_call(bench, {.m = 16, .n = 16, .k = 16});
  call.b = static_cast<const float*>(call.b) + 4;  // the last row ends beyond the matrix
  bench.library.matmul(call, bench.handle());
  EXPECT_THROW(bench.stream->synchronize(), Error);
  EXPECT_THAT(standin::take_reports(), ElementsAre(AllOf(HasSubstr("cublasLtMatmul"), HasSubstr("reads"))));
}

// The library's calls by themselves.
class RawCublasLt : public CublasLtRefusals {
 protected:
  RawCublasLt() {
    EXPECT_EQ(cublasLtCreate(&handle_), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(cublasLtMatmulPreferenceCreate(&preference_), CUBLAS_STATUS_SUCCESS);
    const uint64_t bytes = workspace_.bytes();
    EXPECT_EQ(cublasLtMatmulPreferenceSetAttribute(preference_, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, 8),
              CUBLAS_STATUS_SUCCESS);
  }

  cublasLtMatmulDesc_t description(cublasComputeType_t compute = CUBLAS_COMPUTE_32F) {
    cublasLtMatmulDesc_t made = nullptr;
    EXPECT_EQ(cublasLtMatmulDescCreate(&made, compute, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
    return made;
  }
  cublasLtMatrixLayout_t layout(cudaDataType_t type, uint64_t rows, uint64_t columns, int64_t leading = 0) {
    cublasLtMatrixLayout_t made = nullptr;
    EXPECT_EQ(
        cublasLtMatrixLayoutCreate(&made, type, rows, columns, leading == 0 ? static_cast<int64_t>(rows) : leading),
        CUBLAS_STATUS_SUCCESS);
    return made;
  }
  cublasStatus_t find(cublasLtMatmulDesc_t what, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                      cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d) {
    int found = 0;
    return cublasLtMatmulAlgoGetHeuristic(handle_, what, a, b, c, d, preference_, 1, &result_, &found);
  }
  cublasStatus_t multiply(cublasLtHandle_t handle, cublasLtMatmulDesc_t what, cublasLtMatrixLayout_t a,
                          cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, size_t workspace_bytes,
                          size_t shift = 0) {
    const float one = 1, zero = 0;
    std::byte* data = memory_.data();
    return cublasLtMatmul(handle, what, &one, data + shift, a, data, b, &zero, data + 4096, c, data + 4096, c,
                          &result_.algo, workspace_.data(), workspace_bytes, cuda_stream(*stream_).handle());
  }

  std::unique_ptr<Device> device_ = make_cuda_device(0);
  std::unique_ptr<Stream> stream_ = device_->create_stream();
  Buffer workspace_ = device_->allocate(8192, "workspace"), memory_ = device_->allocate(8192, "memory");
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulPreference_t preference_ = nullptr;
  cublasLtMatmulHeuristicResult_t result_{};
};

TEST_F(RawCublasLt, RefusesHandlesAndDescriptorsThatAreNone) {
  const auto what = description();
  const auto square = layout(CUDA_R_32F, 8, 8);
  ASSERT_EQ(find(what, square, square, square, square), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(multiply(handle_, what, square, square, square, 8192), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(multiply(nullptr, what, square, square, square, 8192), CUBLAS_STATUS_NOT_INITIALIZED);
  EXPECT_EQ(multiply(handle_, nullptr, square, square, square, 8192), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(cublasLtMatrixLayoutDestroy(square), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(multiply(handle_, what, square, square, square, 8192), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(cublasLtMatrixLayoutDestroy(square), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(cublasLtDestroy(handle_), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(cublasLtDestroy(handle_), CUBLAS_STATUS_NOT_INITIALIZED);
  stream_->synchronize();
}

TEST_F(RawCublasLt, RefusesMatricesThatDoNotFit) {
  const auto what = description();
  const auto a = layout(CUDA_R_32F, 8, 4), b = layout(CUDA_R_32F, 4, 6), c = layout(CUDA_R_32F, 8, 6);
  EXPECT_EQ(find(what, a, b, c, c), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(find(what, b, a, c, c), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(find(what, a, b, layout(CUDA_R_32F, 6, 8), c), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(find(what, layout(CUDA_R_32F, 8, 4, 7), b, c, c), CUBLAS_STATUS_INVALID_VALUE);
  const int32_t transpose = CUBLAS_OP_T;
  ASSERT_EQ(cublasLtMatmulDescSetAttribute(what, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, 4), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(find(what, a, b, c, c), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(find(what, layout(CUDA_R_32F, 4, 8, 5), b, c, c), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(cublasLtMatmulDescSetAttribute(what, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, 8),
            CUBLAS_STATUS_INVALID_VALUE);
}

TEST_F(RawCublasLt, RefusesTypesOutsideOfItsTable) {
  const auto status = [&](cublasComputeType_t compute, cudaDataType_t a, cudaDataType_t b, cudaDataType_t d) {
    return find(description(compute), layout(a, 8, 8), layout(b, 8, 8), layout(d, 8, 8), layout(d, 8, 8));
  };
  EXPECT_EQ(status(CUBLAS_COMPUTE_32F, CUDA_R_16BF, CUDA_R_16BF, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(status(CUBLAS_COMPUTE_32F_FAST_TF32, CUDA_R_32F, CUDA_R_32F, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(status(CUBLAS_COMPUTE_32F, CUDA_R_16BF, CUDA_R_16F, CUDA_R_32F), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(status(CUBLAS_COMPUTE_32F, CUDA_R_16BF, CUDA_R_16BF, CUDA_R_16F), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(status(CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_32F, CUDA_R_16BF), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(status(CUBLAS_COMPUTE_32F_FAST_TF32, CUDA_R_16BF, CUDA_R_16BF, CUDA_R_32F), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(status(CUBLAS_COMPUTE_16F, CUDA_R_16F, CUDA_R_16F, CUDA_R_16F), CUBLAS_STATUS_NOT_SUPPORTED);
}

TEST_F(RawCublasLt, RefusesAnotherProblemsAlgorithmAndASmallWorkspace) {
  const auto what = description();
  const auto square = layout(CUDA_R_32F, 8, 8), other = layout(CUDA_R_32F, 8, 8, 9);
  ASSERT_EQ(find(what, square, square, square, square), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(multiply(handle_, what, square, square, square, 4095), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(multiply(handle_, what, other, square, square, 8192), CUBLAS_STATUS_NOT_SUPPORTED);
  result_ = {};
  EXPECT_EQ(multiply(handle_, what, square, square, square, 8192), CUBLAS_STATUS_NOT_SUPPORTED);
}

TEST_F(RawCublasLt, AnEpilogueWithoutItsBiasIsRefused) {
  const auto what = description();
  const auto square = layout(CUDA_R_32F, 8, 8);
  const uint32_t bias = CUBLASLT_EPILOGUE_BIAS, gelu = CUBLASLT_EPILOGUE_GELU;
  ASSERT_EQ(cublasLtMatmulDescSetAttribute(what, CUBLASLT_MATMUL_DESC_EPILOGUE, &bias, 4), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(find(what, square, square, square, square), CUBLAS_STATUS_INVALID_VALUE);
  ASSERT_EQ(cublasLtMatmulDescSetAttribute(what, CUBLASLT_MATMUL_DESC_EPILOGUE, &gelu, 4), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(find(what, square, square, square, square), CUBLAS_STATUS_NOT_SUPPORTED);
}

TEST_F(RawCublasLt, APointerLessAlignedThanDeclaredIsAFault) {
  const auto what = description();
  const auto square = layout(CUDA_R_32F, 8, 8);
  ASSERT_EQ(find(what, square, square, square, square), CUBLAS_STATUS_SUCCESS);  // 256 bytes, unless told otherwise
  EXPECT_EQ(multiply(handle_, what, square, square, square, 8192, 16), CUBLAS_STATUS_SUCCESS);
  EXPECT_THROW(stream_->synchronize(), Error);
  EXPECT_THAT(standin::take_reports(), ElementsAre(AllOf(HasSubstr("A is not aligned"), HasSubstr("256"))));
}

}  // namespace
}  // namespace ashlar::kernels::cuda
