// Matrix products of a GPU by NVIDIA's cuBLASLt.
#pragma once

#include <cstddef>
#include <memory>

#include "kernels/cuda/matmul_call.h"
#include "kernels/cuda/stream_handle.h"

namespace ashlar::kernels::cuda {

// What the library wants on Hopper; 4 MiB would do on an A100 (llm.c, llmc/cublas_common.h).
inline constexpr size_t kCublasLtWorkspaceBytes = size_t{32} << 20;

// The library's handle, and all it keeps per kind of call, for one stream: two streams must not share a workspace, and
// equal bits of equal runs are promised only so. Used from one thread at a time.
class CublasLt {
 public:
  // Blocks the host; loads the library (kUsage where it is missing). The workspace lies on the device, 256-byte
  // aligned, and outlives this. `allow_tf32`: fp32 products may round their operands to TF32's 11 bits.
  CublasLt(int device_index, bool allow_tf32, Scratch workspace);
  ~CublasLt();
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

  // Pure. Whether matmul() takes this call: all but those that store a second matrix or read one, which on an A100 the
  // library takes apart into two kernels anyway. 16-bit rows that are no multiple of 16 bytes are taken, but slow.
  bool supports(const MatmulCall& call) const;

  // Stream-ordered. The first call of a kind makes descriptors and asks for an algorithm, later ones create nothing.
  // Equal calls use one algorithm, the first that the library proposes; none of those is chosen that add partial sums
  // in 16 bits.
  void matmul(const MatmulCall& call, StreamHandle stream);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ashlar::kernels::cuda
