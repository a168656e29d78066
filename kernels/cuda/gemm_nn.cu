// Input gradient: dy [m,k] times w [k,n].
#include "kernels/cuda/gemm_tile.cuh"

namespace ashlar::kernels::cuda {

void launch_gemm_nn(Element element, const GemmArgs& args, StreamHandle stream) {
  launch_gemm<Stored::kAlongDepth, Stored::kAcrossDepth>(element, args, stream);
}

}  // namespace ashlar::kernels::cuda
