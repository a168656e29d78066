// What the kernels' dispatch calls, in builds without CUDA kernels: such a build makes no stream of a GPU, so the first
// of these, place_of, is where a mistake would show.
#include "kernels/cuda/accumulate.h"
#include "kernels/cuda/activation.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/bias.h"
#include "kernels/cuda/cast.h"
#include "kernels/cuda/cross_entropy.h"
#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/dropout.h"
#include "kernels/cuda/embedding.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/layernorm.h"
#include "kernels/cuda/optimizer.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/stream_place.h"
#include "runtime/base/error.h"

namespace ashlar::kernels::cuda {
namespace {

[[noreturn]] void refuse() {
  throw Error(ErrorCode::kUsage,
              "--device cuda: this program was built without kernels for GPUs (the summary of cmake says why)");
}

}  // namespace

StreamPlace place_of(Stream&) {
  refuse();
}
void use_gpu(int) {
  refuse();
}

struct CublasLt::State {};
CublasLt::CublasLt(int, bool, Scratch) {
  refuse();
}
CublasLt::~CublasLt() = default;
bool CublasLt::supports(const MatmulCall&) const {
  refuse();
}
void CublasLt::matmul(const MatmulCall&, StreamHandle) {
  refuse();
}

bool gemm_supports(const MatmulCall&) {
  refuse();
}
size_t gemm_scratch_bytes(const MatmulCall&) {
  refuse();
}
void gemm(const MatmulCall&, Scratch, StreamHandle) {
  refuse();
}
void attention_forward(void*, float*, const AttentionCall&, StreamHandle) {
  refuse();
}
void attention_backward(void*, void*, void*, const void*, const void*, const float*, const AttentionCall&, float*,
                        StreamHandle) {
  refuse();
}
void accumulate(void*, Element, const void*, Element, int64_t, StreamHandle) {
  refuse();
}
void activation_forward(Element, void*, const void*, int64_t, Activation, StreamHandle) {
  refuse();
}
void activation_backward(Element, void*, const void*, const void*, int64_t, Activation, StreamHandle) {
  refuse();
}
void add_bias_residual(Element, void*, const void*, const void*, const void*, int64_t, int64_t, StreamHandle) {
  refuse();
}
size_t bias_backward_scratch_bytes(int64_t, int64_t) {
  refuse();
}
void bias_backward(Element, float*, const void*, int64_t, int64_t, bool, Scratch, StreamHandle) {
  refuse();
}
void cast(void*, Element, const void*, Element, int64_t, StreamHandle) {
  refuse();
}
void cross_entropy_stats(Element, float*, const void*, const int32_t*, int64_t, VocabShard, StreamHandle) {
  refuse();
}
void cross_entropy_finish(Element, float*, void*, const float*, const int32_t*, const float*, int64_t, int64_t,
                          VocabShard, double, bool, StreamHandle) {
  refuse();
}
void dropout_forward(Element, void*, const void*, const void*, const void*, int64_t, int64_t, const Dropout&,
                     const SampleRows&, StreamHandle) {
  refuse();
}
void embedding_forward(Element, void*, const int32_t*, const void*, int64_t, int64_t, int64_t, int64_t, StreamHandle) {
  refuse();
}
void embedding_backward(Element, float*, const void*, const int32_t*, const int32_t*, int64_t, int64_t, int64_t,
                        int64_t, StreamHandle) {
  refuse();
}
void position_forward(Element, void*, const void*, int64_t, int64_t, const SampleRows&, StreamHandle) {
  refuse();
}
void position_backward(Element, float*, const void*, int64_t, int64_t, int64_t, const SampleRows&, bool, StreamHandle) {
  refuse();
}
void layernorm_forward(Element, void*, float*, float*, const void*, const void*, const void*, int64_t, int64_t, double,
                       StreamHandle) {
  refuse();
}
void residual_layernorm_forward(Element, void*, void*, float*, float*, const void*, const void*, const void*,
                                const void*, const void*, int64_t, int64_t, double, StreamHandle) {
  refuse();
}
size_t layernorm_backward_scratch_bytes(int64_t, int64_t) {
  refuse();
}
void layernorm_backward(Element, void*, float*, float*, const void*, const void*, const void*, const void*,
                        const float*, const float*, int64_t, int64_t, Scratch, StreamHandle) {
  refuse();
}
void finish_step(double*, double*, const double*, const double*, int64_t, const StepSettings&, StreamHandle) {
  refuse();
}
void adamw_step(float*, float*, float*, const void*, Element, void*, Element, int64_t, const double*, double,
                StreamHandle) {
  refuse();
}
void sgd_step(float*, const void*, Element, void*, Element, int64_t, const double*, double, StreamHandle) {
  refuse();
}
void sum_of_squares(double*, const void*, Element, int64_t, StreamHandle) {
  refuse();
}
void sum_in_order(double*, const float*, int64_t, StreamHandle) {
  refuse();
}
void sum_in_order(double*, const double*, int64_t, StreamHandle) {
  refuse();
}

}  // namespace ashlar::kernels::cuda
