// What collectives cost beside a plain copy, on as many ranks as mpirun starts:
//   scripts/run_ranks.sh 2 build/release/bin/bench_comm
// Bus bandwidth on n ranks is what each rank must send and receive at least, over time: of an all_reduce of S bytes
// 2 (n - 1) / n * S, of a reduce_scatter or an all_gather with S bytes on its long side half of that. All figures are
// per rank, with all ranks at work at once. Operations are in place, as training's are.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "runtime/comm/host/reduce.h"
#include "runtime/comm/launch.h"

namespace ashlar {
namespace {

double now() {  // one clock for all ranks of a machine
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// From the first rank's start to the last one's end: with more ranks than cores nobody's own time says what all took.
double seconds_of(Communicator& world, Stream& stream, int repeats, const std::function<void()>& body) {
  double best = 1e30;
  for (int trial = 0; trial < 20; ++trial) {  // short: others use this machine too, and the best is ours alone
    world.barrier();
    double times[2] = {-now(), 0};
    for (int repeat = 0; repeat < repeats; ++repeat) {
      body();
    }
    times[1] = now();
    world.all_reduce(view_of(times, {2}), ReduceOp::kMax, stream).wait(stream);
    best = std::min(best, (times[0] + times[1]) / repeats);
  }
  return best;
}

struct Operation {
  const char* name;
  double bus_share;                                           // bytes on the bus, of those of the whole tensor
  std::function<void(TensorView whole, TensorView own)> run;  // own: this rank's part of the whole
};

int run(RankContext& rank) {
  const std::unique_ptr<Stream> stream = rank.device.create_stream();
  Communicator& world = rank.world;
  const double half = (world.size() - 1.0) / world.size();
  const Operation operations[] = {
      {"all_reduce", 2 * half,
       [&](TensorView whole, TensorView) { world.all_reduce(whole, ReduceOp::kSum, *stream).wait(*stream); }},
      {"reduce_scatter", half,
       [&](TensorView whole, TensorView own) {
         world.reduce_scatter(own, whole, ReduceOp::kSum, *stream).wait(*stream);
       }},
      {"all_gather", half,
       [&](TensorView whole, TensorView own) { world.all_gather(whole, own, *stream).wait(*stream); }}};
  constexpr size_t kLargest = size_t{64} << 20;
  const Tensor x(rank.device, DType::kF32, {static_cast<int64_t>(kLargest / 4)}, "operand");
  const Tensor y(rank.device, DType::kF32, {static_cast<int64_t>(kLargest / 4)}, "copy");
  std::memset(x.view().data, 0, kLargest);
  std::memset(y.view().data, 0, kLargest);
  for (const Operation& operation : operations) {
    for (const size_t bytes : {size_t{64}, size_t{4} << 10, size_t{192} << 10, size_t{4} << 20, kLargest}) {
      const int repeats = static_cast<int>(std::clamp<size_t>((size_t{1} << 20) / bytes, 1, 50));
      const int64_t part = static_cast<int64_t>(bytes / 4) / world.size();
      const TensorView whole = x.view().slice(0, part * world.size());
      const TensorView own = whole.slice(part * world.rank(), part * (world.rank() + 1));
      const double seconds = seconds_of(world, *stream, repeats, [&] { operation.run(whole, own); });
      const double copy = seconds_of(world, *stream, repeats, [&] {
        std::memcpy(y.view().data, x.view().data, bytes);
        asm volatile("" ::: "memory");  // the copy is not optimised away
      });
      if (world.rank() == 0) {
        const double bus = operation.bus_share * static_cast<double>(bytes) / seconds / 1e9;
        const double limit = static_cast<double>(bytes) / copy / 1e9;
        std::printf("%-14s %10zu bytes on %d ranks: %9.1f us, %6.2f GB/s bus; memcpy %6.2f GB/s; ratio %.2f\n",
                    operation.name, bytes, world.size(), seconds * 1e6, bus, limit, bus / limit);
      }
    }
  }
  // The inner loop alone, in cache: dst = a + b over 128 KiB, beside a copy of as much.
  constexpr int64_t kCount = 32768;
  const std::byte* sources[] = {x.view().data, x.view().data + kCount * 4};
  const double add = seconds_of(world, *stream, 20,
                                [&] { reduce_in_order(y.view().data, sources, kCount, DType::kF32, ReduceOp::kSum); });
  const double copy = seconds_of(world, *stream, 20, [&] {
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
