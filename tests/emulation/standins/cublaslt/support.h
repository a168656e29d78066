// What the tests of CublasLt share: matrices on a device of the stand-in, random values of every type, and the product
// of theirs in double.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "kernels/cuda/cublaslt.h"
#include "runtime/device/cuda/cuda_device.h"
#include "runtime/device/cuda/cuda_stream.h"
#include "tests/emulation/standins/cublaslt/standin.h"
#include "tests/emulation/standins/cudart/standin.h"

namespace ashlar::kernels::cuda {

inline size_t bytes_of(Element element) {
  return element == Element::kF32 ? 4 : 2;
}

// Reads and writes one value of a type in host memory.
inline double read(const void* memory, Element element, size_t i) {
  switch (element) {
    case Element::kF32:
      return static_cast<const float*>(memory)[i];
    case Element::kBf16:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(memory)[i]);
    case Element::kF16:
      return __half2float(static_cast<const __half*>(memory)[i]);
  }
  return 0;
}
inline void write(void* memory, Element element, size_t i, double value) {
  switch (element) {
    case Element::kF32:
      static_cast<float*>(memory)[i] = static_cast<float>(value);
      break;
    case Element::kBf16:
      static_cast<__nv_bfloat16*>(memory)[i] = __float2bfloat16(static_cast<float>(value));
      break;
    case Element::kF16:
      static_cast<__half*>(memory)[i] = __float2half(static_cast<float>(value));
      break;
  }
}

// A device with one stream and its library state; matrices are made through pinned memory.
struct Bench {
  explicit Bench(bool allow_tf32 = false, int index = 0, size_t workspace_bytes = 64 << 10)
      : device(make_cuda_device(index)),
        stream(device->create_stream()),
        workspace(device->allocate(workspace_bytes, "workspace")),
        library(index, allow_tf32, Scratch{workspace.data(), workspace.bytes()}) {}
  ~Bench() {
    try {
      stream->synchronize();
    } catch (const std::exception&) {  // a test that provoked an error has seen it
    }
  }

  StreamHandle handle() const { return cuda_stream(*stream).handle(); }

  // `count` random values; `shift` elements lie before them.
  std::byte* matrix(Element element, int64_t count, uint64_t seed, size_t shift = 0) {
    const size_t bytes = (static_cast<size_t>(count) + shift) * bytes_of(element);
    const Buffer host = device->allocate_host(bytes, "host");
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal;
    for (size_t i = 0; i < static_cast<size_t>(count) + shift; ++i) {
      write(host.data(), element, i, normal(random));
    }
    memory.push_back(device->allocate(bytes, "matrix"));
    stream->copy(memory.back().data(), host.data(), bytes);
    stream->synchronize();
    return memory.back().data() + shift * bytes_of(element);
  }

  std::vector<double> values(const void* data, Element element, int64_t count) {
    const size_t bytes = static_cast<size_t>(count) * bytes_of(element);
    const Buffer host = device->allocate_host(bytes, "host");
    stream->copy(host.data(), data, bytes);
    stream->synchronize();
    std::vector<double> found;
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
      found.push_back(read(host.data(), element, i));
    }
    return found;
  }

  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
  Buffer workspace;
  std::vector<Buffer> memory;
  CublasLt library;
};

// A call with matrices of its sizes and flags.
inline MatmulCall make_call(Bench& bench, MatmulCall call, size_t shift = 0) {
  call.a = bench.matrix(call.input, call.m * call.k, 1, shift);
  call.b = bench.matrix(call.input, call.k * call.n, 2, shift);
  call.c = bench.matrix(call.output, call.m * call.n, 3, shift);
  if (call.epilogue == Epilogue::kBias) {
    call.bias = bench.matrix(call.input, call.n, 4, shift);
  }
  return call;
}

}  // namespace ashlar::kernels::cuda
