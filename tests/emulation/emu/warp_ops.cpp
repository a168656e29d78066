// Operations that a warp executes as one. Layouts of fragments are those of the PTX ISA (9.7.14.5, mma.m16n8k16, and
// 9.7.14.5.15, ldmatrix); conformance_test.cpp holds them against its formulas.
#include <cuda_fp16.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "tests/emulation/emu/machine.h"

namespace ashlar::emu {
namespace {

// The two elements of a register.
struct Bf16Pair {
  static float low(uint32_t pair) { return std::bit_cast<float>(pair << 16); }
  static float high(uint32_t pair) { return std::bit_cast<float>(pair & 0xFFFF0000u); }
};
struct F16Pair {
  static float low(uint32_t pair) { return __half2float(std::bit_cast<__half>(static_cast<uint16_t>(pair))); }
  static float high(uint32_t pair) { return low(pair >> 16); }
};

// Extra passes over the 32 banks of 4 bytes that 8 rows of 16 bytes need.
unsigned bank_conflicts(const uint32_t (&addresses)[8]) {
  unsigned uses[32] = {};
  unsigned most = 1;
  for (const uint32_t address : addresses) {
    for (unsigned word = 0; word < 4; ++word) {
      most = std::max(most, ++uses[(address / 4 + word) % 32]);
    }
  }
  return most - 1;
}

// D [16,8] += A [16,16] B [16,8]. With g = lane / 4 and t = lane % 4: a0 holds A[g][2t, 2t+1], a1 row g + 8, a2 columns
// + 8, a3 both; b0 holds B[2t, 2t+1][g], b1 rows + 8; d0, d1 are D[g][2t, 2t+1], d2, d3 row g + 8.
// Sums run in ascending k in fp32; the hardware's order and rounding inside one mma are not published.
template <typename Pair>
void mma_m16n8k16(void** slots) {
  float a[16][16], b[16][8], d[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const auto* slot = static_cast<const MmaSlot*>(slots[lane]);
    const int g = lane / 4;
    const int t = lane % 4 * 2;
    for (int i = 0; i < 4; ++i) {
      const int row = g + i % 2 * 8;
      const int column = t + i / 2 * 8;
      a[row][column] = Pair::low(slot->a[i]);
      a[row][column + 1] = Pair::high(slot->a[i]);
      d[g + i / 2 * 8][t + i % 2] = slot->d[i];
    }
    for (int i = 0; i < 2; ++i) {
      b[t + i * 8][g] = Pair::low(slot->b[i]);
      b[t + i * 8 + 1][g] = Pair::high(slot->b[i]);
    }
  }
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < 16; ++k) {
      for (int column = 0; column < 8; ++column) {
        d[row][column] += a[row][k] * b[k][column];
      }
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    auto* slot = static_cast<MmaSlot*>(slots[lane]);
    for (int i = 0; i < 4; ++i) {
      slot->d[i] = d[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
    }
  }
}

}  // namespace

void vote(void** slots, uint32_t mask) {
  uint32_t ballot = 0;
  for (int lane = 0; lane < 32; ++lane) {
    if ((mask >> lane & 1) != 0 && static_cast<VoteSlot*>(slots[lane])->predicate != 0) {
      ballot |= 1u << lane;
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    if ((mask >> lane & 1) != 0) {
      static_cast<VoteSlot*>(slots[lane])->ballot = ballot;
    }
  }
}

void shuffle_outside_mask(int lane, int source) {
  add_report(Fault::kDivergence, {nullptr, machine->operation_site},
             fmt::format("shuffle: lane {} reads lane {}, which is not in the mask", lane, source));
}

// Matrix i is 8 rows of 8 halves; lane 8 i + r gives the address of row r. Lane l receives elements (l / 4, 2 (l % 4))
// and the next of that row, or of that column when transposed. Any lane may receive any row, so all lanes read.
void ldmatrix(void** slots, uint32_t) {
  Machine& m = *machine;
  const auto slot = [&](unsigned lane) { return static_cast<LdmatrixSlot*>(slots[lane]); };
  const unsigned warp = m.current / 32;
  const Place place{nullptr, m.operation_site};
  for (int i = 0; i < slot(0)->num_matrices; ++i) {
    const std::byte* rows[8];
    uint32_t addresses[8];
    for (unsigned r = 0; r < 8; ++r) {
      const unsigned lane = static_cast<unsigned>(i) * 8 + r;
      addresses[r] = slot(lane)->address;
      if (addresses[r] % 16 != 0) {
        add_report(Fault::kMisaligned, place, fmt::format("ldmatrix: address {} of lane {}", addresses[r], lane));
        abort_launch();
      }
      rows[r] = static_cast<const std::byte*>(shared_pointer(addresses[r]));
      shared_access(m, static_cast<size_t>(rows[r] - m.shared), 16, false, warp, ~0u, place);
    }
    ++m.statistics.ldmatrix_phases;
    m.statistics.ldmatrix_conflicts += bank_conflicts(addresses);
    const auto element = [&](unsigned row, unsigned column) {
      uint16_t half;
      std::memcpy(&half, rows[row] + column * 2, sizeof half);
      return half;
    };
    for (unsigned lane = 0; lane < 32; ++lane) {
      const unsigned r = lane / 4;
      const unsigned c = lane % 4 * 2;
      const uint32_t low = slot(lane)->transpose ? element(c, r) : element(r, c);
      const uint32_t high = slot(lane)->transpose ? element(c + 1, r) : element(r, c + 1);
      slot(lane)->registers[i] = low | high << 16;
    }
  }
}

void mma_m16n8k16_bf16(void** slots, uint32_t) {
  mma_m16n8k16<Bf16Pair>(slots);
}
void mma_m16n8k16_f16(void** slots, uint32_t) {
  mma_m16n8k16<F16Pair>(slots);
}

}  // namespace ashlar::emu
