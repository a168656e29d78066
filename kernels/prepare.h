// What a stream needs before its first kernel.
#pragma once

#include "kernels/plain_types.h"
#include "runtime/device/device.h"

namespace ashlar::kernels {

// Blocks the host. Once per stream, before its first kernel: on a GPU the handles of its libraries and its workspace;
// on the CPU nothing. Throws when the GPU's memory is out.
void prepare_kernels(Stream& stream, const KernelOptions& options);

// Bytes of device memory that prepare_kernels takes for a stream, for the memory plan. Pure.
size_t kernel_workspace_bytes(DeviceKind kind);

}  // namespace ashlar::kernels
