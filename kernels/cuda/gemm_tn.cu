// Weight gradient: dy [k,m] transposed times x [k,n].
#include "kernels/cuda/gemm_tile.cuh"

namespace ashlar::kernels::cuda {

void launch_gemm_tn(Element element, const GemmArgs& args, StreamHandle stream) {
  launch_gemm<Stored::kAcrossDepth, Stored::kAcrossDepth>(element, args, stream);
}

}  // namespace ashlar::kernels::cuda
