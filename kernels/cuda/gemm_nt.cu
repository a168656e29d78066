// Forward: x [m,k] times w [n,k] transposed.
#include "kernels/cuda/gemm_tile.cuh"

namespace ashlar::kernels::cuda {

void launch_gemm_nt(Element element, const GemmArgs& args, StreamHandle stream) {
  launch_gemm<Stored::kAlongDepth, Stored::kAlongDepth>(element, args, stream);
}

}  // namespace ashlar::kernels::cuda
