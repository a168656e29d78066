// What collectives cost beside a plain copy, on as many ranks as mpirun starts:
//   scripts/run_ranks.sh 2 build/release/bin/bench_comm
// Bus bandwidth of an all_reduce of S bytes on n ranks is 2 (n - 1) / n * S / time: what each rank must send and
// receive at least. All figures are per rank, with all ranks at work at once.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "runtime/comm/host/reduce.h"
#include "runtime/comm/launch.h"

namespace ashlar {
namespace {

double seconds_of(Communicator& world, int repeats, const std::function<void()>& body) {
  double best = 1e30;
  for (int trial = 0; trial < 50; ++trial) {  // short and many: others use this machine too, and the best is ours alone
    world.barrier();
    const auto start = std::chrono::steady_clock::now();
    for (int repeat = 0; repeat < repeats; ++repeat) {
      body();
    }
    world.barrier();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / repeats);
  }
  return best;
}

int run(RankContext& rank) {
  const std::unique_ptr<Stream> stream = rank.device.create_stream();
  Communicator& world = rank.world;
  const double share = 2.0 * (world.size() - 1) / world.size();
  constexpr size_t kLargest = size_t{64} << 20;
  const Tensor x(rank.device, DType::kF32, {static_cast<int64_t>(kLargest / 4)}, "operand");
  const Tensor y(rank.device, DType::kF32, {static_cast<int64_t>(kLargest / 4)}, "copy");
  std::memset(x.view().data, 0, kLargest);
  std::memset(y.view().data, 0, kLargest);
  for (const size_t bytes : {size_t{4}, size_t{4} << 10, size_t{192} << 10, size_t{4} << 20, kLargest}) {
    const int repeats = static_cast<int>(std::clamp<size_t>((size_t{1} << 20) / bytes, 1, 50));
    const TensorView part = x.view().slice(0, static_cast<int64_t>(bytes / 4));
    const double reduce =
        seconds_of(world, repeats, [&] { world.all_reduce(part, ReduceOp::kSum, *stream).wait(*stream); });
    const double copy = seconds_of(world, repeats, [&] {
      std::memcpy(y.view().data, x.view().data, bytes);
      asm volatile("" ::: "memory");  // the copy is not optimised away
    });
    if (world.rank() == 0) {
      std::printf("all_reduce %10zu bytes on %d ranks: %9.1f us, %6.2f GB/s bus; memcpy %6.2f GB/s; ratio %.2f\n",
                  bytes, world.size(), reduce * 1e6, share * static_cast<double>(bytes) / reduce / 1e9,
                  static_cast<double>(bytes) / copy / 1e9, share * copy / reduce);
    }
  }
  // The inner loop alone, in cache: dst = a + b over 128 KiB, beside a copy of as much.
  constexpr int64_t kCount = 32768;
  const std::byte* sources[] = {x.view().data, x.view().data + kCount * 4};
  const double add =
      seconds_of(world, 20, [&] { reduce_in_order(y.view().data, sources, kCount, DType::kF32, ReduceOp::kSum); });
  const double copy = seconds_of(world, 20, [&] {
    std::memcpy(y.view().data, x.view().data, kCount * 4);
    asm volatile("" ::: "memory");
  });
  if (world.rank() == 0) {
    std::printf("sum of two ranks' fp32: %.2f GB/s written; memcpy %.2f GB/s\n", kCount * 4 / add / 1e9,
                kCount * 4 / copy / 1e9);
  }
  return 0;
}

}  // namespace
}  // namespace ashlar

int main(int argc, char** argv) {
  return ashlar::run_main(argc, argv, ashlar::run);
}
