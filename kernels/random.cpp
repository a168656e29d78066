#include "kernels/random.h"

#include "kernels/checks.h"
#include "kernels/cpu/random.h"
#include "kernels/cuda/random.h"
#include "kernels/dispatch.h"

namespace ashlar::kernels {
namespace {

PhiloxKey key_of(const PhiloxStream& random) {
  return {{random.key()[0], random.key()[1]}, {random.high()[0], random.high()[1]}};
}

}  // namespace

void fill_normal(TensorView out, const PhiloxStream& random, uint64_t first, double mean, double std, Stream& stream) {
  constexpr std::string_view kOp = "fill_normal";
  const int64_t n = out.num_elements();
  check_view(kOp, "out", out, DType::kF32, n);
  if (const GpuStream* gpu = gpu_of(stream, kOp)) {
    return cuda::fill_normal(out.as<float>(), key_of(random), first, mean, std, n, gpu->handle());
  }
  launch(stream, kOp, [=, out = out.as<float>()] { cpu::fill_normal(out, random, first, mean, std, n); });
}

void fill_uniform(TensorView out, const PhiloxStream& random, uint64_t first, Stream& stream) {
  constexpr std::string_view kOp = "fill_uniform";
  const int64_t n = out.num_elements();
  check_view(kOp, "out", out, DType::kF32, n);
  if (const GpuStream* gpu = gpu_of(stream, kOp)) {
    return cuda::fill_uniform(out.as<float>(), key_of(random), first, n, gpu->handle());
  }
  launch(stream, kOp, [=, out = out.as<float>()] { cpu::fill_uniform(out, random, first, n); });
}

}  // namespace ashlar::kernels
