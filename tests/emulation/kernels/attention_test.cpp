// Attention of a GPU against the oracle: fp32 to 1e-5, 16-bit results to the roundings that the algorithm makes.
#include "kernels/cuda/attention.h"

#include "tests/emulation/kernels/attention_oracle.h"
#include "tests/emulation/kernels/support.h"

namespace ashlar::kernels {
namespace {

using Case = AttentionCase;

template <typename T>
cuda::AttentionCall call_of(const Case& c, const T* qkv) {
  cuda::AttentionCall call;
  call.element = element_of<T>();
  call.batch = c.batch;
  call.length = c.length;
  call.num_heads = c.heads;
  call.num_kv_heads = c.kv_heads;
  call.head_dim = c.dim;
  call.q = qkv;
  call.k = qkv + c.heads * c.dim;
  call.v = qkv + (c.heads + c.kv_heads) * c.dim;
  call.q_row = call.kv_row = c.row();
  call.scale = c.scale();
  call.dropout = c.mask();
  return call;
}

template <typename T>
void compare_with_oracle(const Case& c) {
  auto qkv = random_elements<T>(c.batch * c.length * c.row(), 1, c.size);
  const auto dout = random_elements<T>(c.batch * c.length * c.heads * c.dim, 2);
  const AttentionOracle want(c, as_float(qkv), as_float(dout));
  const std::string what =
      fmt::format("element {} B {} T {} H {}/{} D {} dropout {} shift {}", static_cast<int>(element_of<T>()), c.batch,
                  c.length, c.heads, c.kv_heads, c.dim, c.dropout, c.shift);
  const auto outputs = under_every_order(what, [&] {
    const OnDevice<T> device_qkv(qkv, c.shift), device_dout(dout, c.shift);
    const OnDevice<T> device_out(dout.size(), c.shift);
    const T unwritten = cpu::narrow<T>(c.gap == 0 ? NAN : 0.0f);  // a gap stays 0, as in the oracle
    const OnDevice<T> device_dqkv(std::vector<T>(qkv.size(), unwritten), c.shift);
    const OnDevice<float> lse(want.lse.value.size()), delta(lse.values().size());
    const cuda::AttentionCall call = call_of(c, device_qkv.get());
    cuda::attention_forward(device_out.get(), lse.get(), call, nullptr);
    T* dqkv = device_dqkv.get();
    cuda::attention_backward(dqkv, dqkv + c.heads * c.dim, dqkv + (c.heads + c.kv_heads) * c.dim, device_dout.get(),
                             device_out.get(), lse.get(), call, delta.get(), nullptr);
    return std::array{as_float(device_out.values()), lse.values(), as_float(device_dqkv.values())};
  });
  expect_rounded<T>(outputs[0], want.out, want.largest_score, what + " out");
  expect_rounded<float>(outputs[1], want.lse, want.largest_score, what + " lse");
  expect_rounded<T>(outputs[2], want.dqkv, want.largest_score, what + " dqkv");
}

TEST(CudaAttention, Bf16EqualsTheOracle) {
  for (const Case& c : {Case{2, 1, 2, 2, 64}, Case{1, 31, 3, 3, 32}, Case{2, 33, 1, 1, 64}, Case{1, 64, 1, 1, 80},
                        Case{1, 100, 2, 2, 64}, Case{1, 129, 1, 1, 128}, Case{1, 129, 1, 1, 64}, Case{1, 260, 1, 1, 64},
                        Case{1, 64, 1, 1, 8}, Case{1, 31, 1, 1, 128}}) {
    compare_with_oracle<BFloat16>(c);
  }
}

TEST(CudaAttention, Bf16WithDropoutEqualsTheOracle) {
  for (const Case& c : {Case{2, 100, 2, 2, 64, 0.1}, Case{2, 129, 1, 1, 128, 0.1}, Case{1, 33, 3, 3, 32, 0.5},
                        Case{1, 1, 1, 1, 80, 0.1}}) {
    compare_with_oracle<BFloat16>(c);
  }
}

TEST(CudaAttention, Bf16SharesKeysAmongHeads) {
  for (const Case& c : {Case{2, 33, 6, 2, 64}, Case{1, 129, 3, 1, 64, 0.1}, Case{1, 100, 2, 1, 128, 0.1}}) {
    compare_with_oracle<BFloat16>(c);
  }
}

TEST(CudaAttention, F16EqualsTheOracle) {
  for (const Case& c : {Case{1, 31, 2, 2, 64}, Case{1, 129, 1, 1, 64}, Case{1, 100, 2, 1, 80, 0.1},
                        Case{1, 129, 1, 1, 128}, Case{1, 64, 1, 1, 64, 0.1}}) {
    compare_with_oracle<Float16>(c);
  }
}

TEST(CudaAttention, F32EqualsTheOracle) {
  for (const Case& c :
       {Case{2, 1, 2, 2, 64}, Case{2, 31, 2, 2, 32}, Case{1, 33, 3, 3, 64}, Case{1, 64, 1, 1, 80},
        Case{1, 100, 2, 2, 32, 0.1}, Case{1, 129, 1, 1, 32}, Case{1, 33, 1, 1, 128}, Case{1, 33, 4, 2, 80, 0.1},
        Case{2, 35, 2, 2, 7}, Case{1, 34, 1, 1, 256}, Case{1, 33, 1, 1, 200, 0.3}}) {
    compare_with_oracle<float>(c);
  }
}

// Heads wider than the tensor cores' tiles, rows that 16-byte accesses cannot follow.
TEST(CudaAttention, TakesEveryHeadSizeAndAlignmentIn16Bits) {
  compare_with_oracle<BFloat16>({1, 34, 2, 1, 136, 0.1});
  compare_with_oracle<BFloat16>({1, 33, 1, 1, 12});
  compare_with_oracle<BFloat16>({1, 33, 1, 1, 64, 0, 1, 1});
  compare_with_oracle<BFloat16>({1, 33, 1, 1, 64, 0, 1, 0, 4});
  compare_with_oracle<Float16>({1, 40, 1, 1, 256});
  compare_with_oracle<Float16>({1, 33, 2, 2, 33});
}

// Tensor ranks hold some of the heads each. Here they read and write slices of one qkv, so rows are further apart than
// the heads of a call are long.
template <typename T>
void compare_halves_with_whole(const Case& whole) {
  Case half = whole;
  half.heads = whole.heads / 2;
  half.kv_heads = whole.kv_heads / 2;
  const int64_t tokens = whole.batch * whole.length;
  const auto qkv = random_elements<T>(tokens * whole.row(), 1);
  const auto dout = random_elements<T>(tokens * whole.heads * whole.dim, 2);
  const auto heads_of = [&](const std::vector<T>& from, int64_t first) {
    std::vector<T> to;
    for (int64_t t = 0; t < tokens; ++t) {
      const auto begin = from.begin() + (t * whole.heads + first) * whole.dim;
      to.insert(to.end(), begin, begin + half.heads * whole.dim);
    }
    return to;
  };
  const OnDevice<T> device_qkv(qkv), whole_dqkv(qkv.size()), halves_dqkv(qkv.size());
  const OnDevice<float> lse(static_cast<size_t>(tokens * whole.heads)),
      delta(static_cast<size_t>(tokens * whole.heads));
  const auto run = [&](const Case& c, int64_t first, const OnDevice<T>& dqkv) {
    const OnDevice<T> out(static_cast<size_t>(tokens * c.heads * c.dim));
    const OnDevice<T> device_dout(c.heads == whole.heads ? dout : heads_of(dout, first));
    const int64_t k = (whole.heads + first / (whole.heads / whole.kv_heads)) * c.dim;
    const int64_t v = k + whole.kv_heads * c.dim;
    cuda::AttentionCall call = call_of(c, device_qkv.get());
    call.q = device_qkv.get() + first * c.dim;
    call.k = device_qkv.get() + k;
    call.v = device_qkv.get() + v;
    call.q_row = call.kv_row = whole.row();
    call.dropout.first_head += first;
    cuda::attention_forward(out.get(), lse.get(), call, nullptr);
    cuda::attention_backward(dqkv.get() + first * c.dim, dqkv.get() + k, dqkv.get() + v, device_dout.get(), out.get(),
                             lse.get(), call, delta.get(), nullptr);
    return out.values();
  };
  const std::vector<T> out = run(whole, 0, whole_dqkv);
  for (const int64_t first : {int64_t{0}, half.heads}) {
    EXPECT_TRUE(same_bits(run(half, first, halves_dqkv), heads_of(out, first))) << "heads from " << first;
  }
  EXPECT_TRUE(same_bits(whole_dqkv.values(), halves_dqkv.values()));
  for (const std::string& fault : test_device::end_runs()) {
    ADD_FAILURE() << fault;
  }
}

TEST(CudaAttention, GivesAHeadTheSameBitsOnEveryGrid) {
  compare_halves_with_whole<BFloat16>({2, 70, 4, 2, 64, 0.2});
  compare_halves_with_whole<float>({1, 40, 4, 4, 16, 0.2});
}

// Scores of some hundreds: exp overflows unless the largest is taken off first, and most probabilities vanish.
TEST(CudaAttention, TakesLargeScores) {
  compare_with_oracle<Float16>({1, 150, 1, 1, 64, 0, 8});
  compare_with_oracle<float>({1, 70, 1, 1, 16, 0, 8});
}

}  // namespace
}  // namespace ashlar::kernels
