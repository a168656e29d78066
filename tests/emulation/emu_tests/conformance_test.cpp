// Where the emulator puts the elements of fragments, against two published descriptions: the index formulas of the PTX
// ISA (section "Matrix Fragments for mma.m16n8k16" and "ldmatrix"), and the layouts of CuTe (mma_traits_sm80.hpp,
// copy_traits_sm75.hpp), in which coordinate and position are dot products with strides. Kernel authors read neither.
#include "tests/emulation/emu_tests/conformance.h"

#include <cuda_fp16.h>
#include <gtest/gtest.h>

#include <bit>
#include <random>
#include <vector>

#include "tests/emulation/kernels/test_device.h"

namespace ashlar::emu {
namespace {

struct Position {
  int row, column;
};
using FragmentLayout = Position (*)(int lane, int element);

// PTX ISA: groupID = lane >> 2, threadID_in_group = lane % 4.
Position ptx_a(int lane, int i) {
  const int group = lane >> 2;
  return {i < 2 || (i >= 4 && i < 6) ? group : group + 8, lane % 4 * 2 + (i & 1) + (i >= 4 ? 8 : 0)};
}
Position ptx_b(int lane, int i) {
  return {lane % 4 * 2 + (i & 1) + (i >= 2 ? 8 : 0), lane >> 2};
}
Position ptx_d(int lane, int i) {
  return {i < 2 ? lane >> 2 : (lane >> 2) + 8, lane % 4 * 2 + (i & 1)};
}

// CuTe: (thread, value) -> index in a column-major 16x16 (A), an 8x16 of n and k (B), a column-major 16x8 (C).
Position cute_a(int lane, int i) {
  const int index = lane % 4 * 32 + lane / 4 + (i & 1) * 16 + (i >> 1 & 1) * 8 + (i >> 2) * 128;
  return {index % 16, index / 16};
}
Position cute_b(int lane, int i) {
  const int index = lane % 4 * 16 + lane / 4 + (i & 1) * 8 + (i >> 1) * 64;
  return {index / 8, index % 8};
}
Position cute_d(int lane, int i) {
  const int index = lane % 4 * 32 + lane / 4 + (i & 1) * 16 + (i >> 1) * 8;
  return {index % 16, index / 16};
}

// Device memory with its image on the host.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t count)
      : host(count), device_(static_cast<T*>(test_device::allocate(count * sizeof(T)))) {}
  ~DeviceArray() { test_device::release(device_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  T* upload() {
    test_device::write(device_, host.data(), host.size() * sizeof(T));
    return device_;
  }
  void download() { test_device::read(host.data(), device_, host.size() * sizeof(T)); }

  std::vector<T> host;

 private:
  T* device_;
};

uint32_t bits_of(float exact, bool is_bf16) {
  return is_bf16 ? std::bit_cast<uint32_t>(exact) >> 16 : std::bit_cast<uint16_t>(__float2half(exact));
}

void expect_product(bool is_bf16, FragmentLayout layout_a, FragmentLayout layout_b, FragmentLayout layout_d) {
  test_device::begin_run(0);
  std::mt19937 random(1);
  const auto small_integer = [&] { return static_cast<float>(static_cast<int>(random() % 17) - 8); };  // exact in both
  float a[16][16], b[16][8], expected[16][8];
  DeviceArray<MmaFragments> fragments(1);
  MmaFragments& host = fragments.host[0];
  host = {};
  for (auto& row : a) {
    for (float& value : row) value = small_integer();
  }
  for (auto& row : b) {
    for (float& value : row) value = small_integer();
  }
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 8; ++i) {
      const Position at = layout_a(lane, i);
      host.a[lane][i / 2] |= bits_of(a[at.row][at.column], is_bf16) << i % 2 * 16;
    }
    for (int i = 0; i < 4; ++i) {
      const Position at = layout_b(lane, i);
      host.b[lane][i / 2] |= bits_of(b[at.row][at.column], is_bf16) << i % 2 * 16;
      const Position out = layout_d(lane, i);
      host.d[lane][i] = static_cast<float>(out.row * 8 + out.column);  // C
    }
  }
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < 8; ++column) {
      expected[row][column] = static_cast<float>(row * 8 + column);
      for (int k = 0; k < 16; ++k) expected[row][column] += a[row][k] * b[k][column];
    }
  }
  run_mma(fragments.upload(), is_bf16);
  fragments.download();
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 4; ++i) {
      const Position at = layout_d(lane, i);
      EXPECT_EQ(host.d[lane][i], expected[at.row][at.column]) << "lane " << lane << " element " << i;
    }
  }
  EXPECT_TRUE(test_device::end_runs().empty());
}

TEST(Conformance, MmaM16N8K16HasTheFragmentsOfThePtxIsa) {
  for (const bool is_bf16 : {true, false}) {
    expect_product(is_bf16, ptx_a, ptx_b, ptx_d);
  }
}
TEST(Conformance, MmaM16N8K16HasTheFragmentsOfCute) {
  for (const bool is_bf16 : {true, false}) {
    expect_product(is_bf16, cute_a, cute_b, cute_d);
  }
}

// PTX ISA: lane l gets, of matrix i, row l / 4 and columns 2 (l % 4) and the next; transposed, the same of the columns.
// CuTe: bit positions in the 4 matrices of 64 halves of 16 bits.
TEST(Conformance, LdmatrixDealsOutTheRowsAsPublished) {
  test_device::begin_run(0);
  DeviceArray<uint16_t> halves(256);
  DeviceArray<uint32_t> out(128);
  for (int i = 0; i < 256; ++i) {
    halves.host[static_cast<size_t>(i)] = static_cast<uint16_t>(i);
  }
  for (const bool transpose : {false, true}) {
    run_ldmatrix(out.upload(), halves.upload(), transpose);
    out.download();
    for (int lane = 0; lane < 32; ++lane) {
      for (int i = 0; i < 4; ++i) {
        for (int half = 0; half < 2; ++half) {
          const int got = static_cast<int>(out.host[static_cast<size_t>(lane * 4 + i)] >> half * 16 & 0xFFFF);
          const int row = lane / 4;
          const int column = lane % 4 * 2 + half;
          EXPECT_EQ(got, i * 64 + (transpose ? column * 8 + row : row * 8 + column)) << "PTX, lane " << lane;
          const int bit =
              transpose ? lane % 4 * 256 + lane / 4 * 16 + half * 128 + i * 1024 : lane * 32 + half * 16 + i * 1024;
          EXPECT_EQ(got, bit / 16) << "CuTe, lane " << lane;
        }
      }
    }
  }
  EXPECT_TRUE(test_device::end_runs().empty());
}

}  // namespace
}  // namespace ashlar::emu
