// One matrix product as the libraries and kernels of a GPU take it: everything about a call but its stream.
#pragma once

#include <cstdint>

#include "kernels/plain_types.h"

namespace ashlar::kernels::cuda {

// What happens to a sum before it is stored, in this order of operations; all of it in fp32.
enum class Epilogue {
  kNone,
  kBias,                // c = sum + bias
  kBiasActivation,      // pre = sum + bias; c = act(pre as stored)
  kActivationBackward,  // c = (sum as it would be stored) * act'(pre)
};

// c [m,n] = op(a) [m,k] op(b) [k,n], or c += with `add`. All row-major and dense: a row of an operand follows the one
// before. fp32 operands give fp32 results; 16-bit ones give their own type or fp32. Sums are taken in fp32.
struct MatmulCall {
  Element input = Element::kF32;   // of a and b, and of bias and pre
  Element output = Element::kF32;  // of c
  void* c = nullptr;
  const void* a = nullptr;  // [m,k], or [k,m] where transpose_a
  const void* b = nullptr;  // [k,n], or [n,k] where transpose_b
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  bool add = false;  // needs output fp32
  Epilogue epilogue = Epilogue::kNone;
  Activation activation{};
  const void* bias = nullptr;  // [n]
  void* pre = nullptr;         // [m,n]: kBiasActivation writes it, kActivationBackward reads it
};

}  // namespace ashlar::kernels::cuda
