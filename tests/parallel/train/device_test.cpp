// The same training on GPUs that the emulator and the stand-ins play: layers, pipeline, optimizer, checkpoints and
// grids, against the CPU's run. Emulated kernels are some thousand times slower than real ones, so the model is tiny.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <optional>
#include <thread>

#include "kernels/prepare.h"
#include "parallel/train/test_faults.h"
#include "parallel/train/train_checkpoint.h"
#include "parallel/train/verify_layout.h"
#include "tests/emulation/bridge/played_machine.h"
#include "tests/parallel/train/device_run.h"
#include "tests/support/scratch_dir.h"

namespace ashlar {
namespace {

using namespace test;

class OnDevice : public testing::TestWithParam<DeviceBackend> {};

void expect_the_cpus_run(const TrainOptions& options, const GridShape& grid, DeviceBackend backend, const RunTrace& cpu,
                         int64_t steps, double loss = kLoss, double norm = kNorm) {
  const RunTrace gpu = run_steps(options, grid, source_of(options), steps, on_gpus(backend));
  EXPECT_LE(worst_difference(gpu.losses, cpu.losses), loss) << grid.text() << " " << name_of(backend);
  EXPECT_LE(worst_difference(gpu.grad_norms, cpu.grad_norms), norm) << grid.text() << " " << name_of(backend);
}

TEST_P(OnDevice, EveryGridTrainsLikeTheCpu) {
  const TrainOptions options = model_xxs();
  const RunTrace cpu = run_steps(options, {1, 1, 1}, source_of(options), 2);
  for (const GridShape& grid : {GridShape{1, 1, 1}, GridShape{2, 1, 1}, GridShape{1, 2, 1}, GridShape{1, 1, 2},
                                GridShape{2, 1, 2}, GridShape{1, 2, 2}, GridShape{2, 2, 1}, GridShape{2, 2, 2}}) {
    expect_the_cpus_run(options, grid, GetParam(), cpu, 2);
  }
}

// Layer by layer: the gradient of every tensor, and what one update makes of weights and moments.
TEST_P(OnDevice, EveryGradientIsTheCpus) {
  const TrainOptions options = model_xxs();
  const TinySource source = source_of(options);
  const auto after_one_step = [&](const GridShape& grid, const ThreadRankOptions& ranks) {
    std::map<TensorKind, LogicalTensors> all;
    std::mutex mutex;
    run_ranks(
        grid.num_ranks(),
        [&](RankContext& rank) {
          Training training(rank, with_grid(options, grid));
          train_step(training, source);
          for (const TensorKind kind : {TensorKind::kGrad, TensorKind::kFirstMoment, TensorKind::kSecondMoment}) {
            LogicalTensors tensors = gather_logical(training, kind);
            const std::lock_guard lock(mutex);
            all[kind] = std::move(tensors);
          }
        },
        ranks);
    for (auto& [kind, tensors] : all) {  // the key third of its gradient is 0 but for rounding
      for (auto& [name, values] : tensors) {
        if (name.ends_with("attn.c_attn.bias")) {
          std::fill_n(values.begin() + static_cast<std::ptrdiff_t>(values.size() / 3), values.size() / 3, 0.0f);
        }
      }
    }
    return all;
  };
  const auto cpu = after_one_step({1, 1, 1}, {});
  const auto gpu = after_one_step({2, 2, 1}, on_gpus(GetParam()));
  for (const auto& [kind, tensors] : gpu) {
    EXPECT_GT(tensors.size(), 20u);
    EXPECT_LE(worst_difference(tensors, cpu.at(kind)), 1e-5) << static_cast<int>(kind);
  }
}

TEST_P(OnDevice, RecomputationChangesNoBit) {
  TrainOptions options = model_xxs();
  options.hidden_dropout = options.attention_dropout = 0.1;
  const RunTrace kept = run_steps(options, {2, 1, 1}, source_of(options), 2, on_gpus(GetParam()));
  EXPECT_LE(worst_difference(run_steps(options, {1, 1, 1}, source_of(options), 2).losses, kept.losses), kLoss);
  TrainOptions again = options;
  again.recompute_granularity = "full";
  again.recompute_method = "uniform";
  again.recompute_num_layers = 2;
  EXPECT_TRUE(run_steps(again, {2, 1, 1}, source_of(options), 2, on_gpus(GetParam())).same_bits(kept));
  again = options;
  again.recompute_granularity = "selective";
  again.recompute_modules = {"core_attn", "layernorm", "mlp_act"};
  EXPECT_TRUE(run_steps(again, {2, 1, 1}, source_of(options), 2, on_gpus(GetParam())).same_bits(kept));
}

// Parts of the rows on each tensor rank: the CPU's run, and the same bits with activations that are made again.
TEST_P(OnDevice, SequenceParallelTrainsLikeTheCpu) {
  TrainOptions options = model_xxs();
  options.hidden_dropout = options.attention_dropout = 0.1;
  const RunTrace cpu = run_steps(options, {1, 1, 1}, source_of(options), 2);
  options.sequence_parallel = true;
  const RunTrace ours = run_steps(options, {2, 1, 1}, source_of(options), 2, on_gpus(GetParam()));
  EXPECT_LE(worst_difference(ours.losses, cpu.losses), kLoss);
  EXPECT_LE(worst_difference(ours.grad_norms, cpu.grad_norms), kNorm);
  options.recompute_granularity = "selective";
  options.recompute_modules = {"core_attn", "layernorm", "mlp_act"};
  EXPECT_TRUE(run_steps(options, {2, 1, 1}, source_of(options), 2, on_gpus(GetParam())).same_bits(ours));
}

TEST_P(OnDevice, RunsRepeatToTheLastBit) {
  TrainOptions options = model_xxs();
  const GridShape grid{2, 2, 1};
  const RunTrace once = run_steps(options, grid, source_of(options), 2, on_gpus(GetParam()));
  EXPECT_TRUE(run_steps(options, grid, source_of(options), 2, on_gpus(GetParam())).same_bits(once));
  options.pipeline_schedule = "gpipe";
  EXPECT_TRUE(run_steps(options, grid, source_of(options), 2, on_gpus(GetParam())).same_bits(once));
}

// Steps that are put on the stream before the one in front of them is done.
TEST_P(OnDevice, ResultsReadOneStepLateAreTheSame) {
  const TrainOptions options = with_grid(model_xxs(), {1, 2, 1});
  const TinySource source = source_of(options);
  const RunTrace expected = run_steps(model_xxs(), {1, 2, 1}, source, 3, on_gpus(GetParam()));
  run_ranks(
      2,
      [&](RankContext& rank) {
        Training training(rank, options);
        EXPECT_EQ(result_lag(training), 1u);
        std::vector<double> losses;
        for (int step = 0; step < 3; ++step) {
          submit_step(training, source);
          while (training.results.num_pending() > (step < 2 ? result_lag(training) : 0)) {
            const StepResult result = take_result(training);
            EXPECT_EQ(result.step, static_cast<int64_t>(losses.size()) + 1);
            losses.push_back(result.loss);
          }
        }
        EXPECT_EQ(losses, expected.losses);
        EXPECT_EQ(training.sync.values().hash_values(),
                  expected.weight_hashes[static_cast<size_t>(rank.world.rank())].back());
      },
      on_gpus(GetParam()));
}

// The step behind a bad one is on the stream already when the host learns of it: neither changes a weight.
TEST_P(OnDevice, NonFiniteStepAndTheOneBehindItChangeNothing) {
  const GridShape grid{1, 2, 1};
  const TrainOptions options = with_grid(model_xxs(), grid);
  const TinySource source = source_of(options);
  run_ranks(
      grid.num_ranks(),
      [&](RankContext& rank) {
        Training training(rank, options);
        EXPECT_TRUE(train_step(training, source).finite);
        const uint64_t before = training.sync.values().hash_values();
        Buffer not_a_number = rank.device.allocate_host(sizeof(float), "test");
        *reinterpret_cast<float*>(not_a_number.data()) = std::nanf("");
        ExecutorHooks hooks;
        hooks.on_activation = [&](int stage, int microbatch, int layer, bool is_output, TensorView activation) {
          if (training.state.iteration == 1 && stage == 1 && microbatch == 1 && layer == 0 && !is_output) {
            training.stream->copy(activation.data, not_a_number.data(), sizeof(float));
          }
        };
        training.executor.set_hooks(hooks);
        submit_step(training, source);  // step 2, with the fault
        submit_step(training, source);  // step 3
        const StepResult bad = take_result(training);
        EXPECT_FALSE(bad.finite);
        EXPECT_EQ(bad.step, 2);
        EXPECT_EQ(training.results.num_pending(), 0u);
        EXPECT_EQ(training.state.iteration, 1);
        EXPECT_EQ(training.optimizer.num_updates(), 1);
        EXPECT_EQ(training.sync.values().hash_values(), before);
        const std::string where = find_non_finite(training, source);
        EXPECT_NE(where.find("stage 1, in the input of h.1, micro-batch 1"), std::string::npos) << where;
        training.executor.set_hooks({});
        EXPECT_TRUE(train_step(training, source).finite);
        EXPECT_NE(training.sync.values().hash_values(), before);
      },
      on_gpus(GetParam()));
}

// When the host learns of a bad gradient, those of the step behind it lie in its place: the search makes them again.
TEST_P(OnDevice, ABadGradientIsNamedThoughAnotherStepFollowed) {
  const GridShape grid{1, 2, 1};
  const TrainOptions options = with_grid(model_xxs(), grid);
  const TinySource source = source_of(options);
  run_ranks(
      grid.num_ranks(),
      [&](RankContext& rank) {
        Training training(rank, options);
        EXPECT_TRUE(train_step(training, source).finite);
        Buffer infinite = rank.device.allocate_host(sizeof(float), "test");
        *reinterpret_cast<float*>(infinite.data()) = std::numeric_limits<float>::infinity();
        const Parameter& parameter = *training.chunks.front()->layers().front()->parameters().front();
        ExecutorHooks hooks;
        hooks.on_gradients = [&](int stage, int microbatch, size_t layer) {
          if (training.state.iteration == 1 && stage == 1 && microbatch == 0 && layer == 0) {
            training.stream->copy(parameter.grad.data, infinite.data(), sizeof(float));
          }
        };
        training.executor.set_hooks(hooks);
        submit_step(training, source);  // step 2, with the fault
        submit_step(training, source);  // step 3
        const StepResult bad = take_result(training);
        EXPECT_FALSE(bad.finite);
        EXPECT_TRUE(std::isfinite(bad.loss));
        const std::string where = find_non_finite(training, source);
        EXPECT_NE(where.find("all activations are finite; rank 1 "), std::string::npos) << where;
        EXPECT_NE(where.find("the gradient of h.1."), std::string::npos) << where;
      },
      on_gpus(GetParam()));
}

// fp16: an overflow on one GPU lowers the scale of all, changes no weight, and the run goes on as the CPU's does.
TEST_P(OnDevice, AnOverflowIsSkippedAndTheRunGoesOn) {
  const GridShape grid{2, 1, 2};
  TrainOptions wanted = model_xxs();
  wanted.fp16 = true;
  wanted.initial_loss_scale = 4096;
  wanted.hysteresis = 1;
  wanted.loss_scale_window = 2;
  wanted.zero_stage = 1;
  wanted.test_overflow = "rank=3,step=2,tensor=h.1.attn.c_attn.weight";
  const TrainOptions options = with_grid(wanted, grid);
  const TinySource source = source_of(options);
  struct Line {
    double loss, scale;
    StepOutcome outcome;
    uint64_t weights;
  };
  const auto lines_on = [&](const ThreadRankOptions& ranks) {
    std::vector<Line> lines;
    run_ranks(
        grid.num_ranks(),
        [&](RankContext& rank) {
          Training training(rank, options);
          TestFaults faults(options);
          faults.install(training);
          EXPECT_EQ(result_lag(training), 0u);
          for (int step = 0; step < 4; ++step) {
            const StepResult result = train_step(training, source);
            const uint64_t weights = training.sync.values().hash_values();
            if (rank.world.rank() == 0) {
              lines.push_back({result.loss, result.loss_scale, result.outcome, weights});
            }
          }
        },
        ranks);
    return lines;
  };
  const std::vector<Line> cpu = lines_on({}), gpu = lines_on(on_gpus(GetParam()));
  ASSERT_EQ(gpu.size(), 4u);
  EXPECT_EQ(gpu[1].outcome, StepOutcome::kSkipped);
  EXPECT_EQ(gpu[1].weights, gpu[0].weights);
  EXPECT_NE(gpu[2].weights, gpu[1].weights);
  EXPECT_EQ(gpu[1].scale, 2048);
  EXPECT_EQ(gpu[3].scale, 4096);
  for (size_t at = 0; at < 4; ++at) {
    EXPECT_EQ(gpu[at].outcome, cpu[at].outcome) << at;
    EXPECT_EQ(gpu[at].scale, cpu[at].scale) << at;
    EXPECT_LE(relative_difference(gpu[at].loss, cpu[at].loss), 5e-4) << at;
  }
}

TEST_P(OnDevice, AStepAllocatesNothing) {
  const GridShape grid{1, 2, 1};
  const TrainOptions options = with_grid(model_xxs(), grid);
  const TinySource source = source_of(options);
  run_ranks(
      grid.num_ranks(),
      [&](RankContext& rank) {
        Training training(rank, options);
        train_step(training, source);
        train_step(training, source);
        const int64_t allocations = rank.device.num_allocations();
        train_step(training, source);
        EXPECT_EQ(rank.device.num_allocations(), allocations);
      },
      on_gpus(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Backends, OnDevice, testing::Values(DeviceBackend::kStaged, DeviceBackend::kNccl),
                         [](const auto& instance) { return name_of(instance.param); });

// What a GPU saves a CPU goes on from, and the other way round; the same grid of GPUs goes on with the same bits.
TEST(DeviceCheckpoints, MoveBetweenDevicesAndResume) {
  const GridShape grid{2, 1, 1};
  const TrainOptions options = model_xxs();
  const TinySource source = source_of(options);
  const ThreadRankOptions gpus = on_gpus(DeviceBackend::kStaged);
  const ScratchDir scratch;
  const auto part = [&](const GridShape& shape, const ThreadRankOptions& ranks, const std::string& load, int64_t steps,
                        const std::string& save) {
    RunTrace trace;
    std::mutex mutex;
    run_ranks(
        shape.num_ranks(),
        [&](RankContext& rank) {
          Training training(rank, with_grid(options, shape));
          if (!load.empty()) {
            load_training(training, load, 1);
          }
          for (int64_t step = 0; step < steps; ++step) {
            const StepResult result = train_step(training, source);
            if (rank.world.rank() == 0) {
              trace.losses.push_back(result.loss);
            }
          }
          if (!save.empty()) {
            save_training(training, save, 1);
          }
          LogicalTensors weights = gather_logical(training, TensorKind::kValue);
          const std::lock_guard lock(mutex);
          trace.weights = std::move(weights);
        },
        ranks);
    return trace;
  };
  const RunTrace whole = part(grid, gpus, "", 2, "");
  part(grid, gpus, "", 1, scratch / "gpu");
  const RunTrace resumed = part(grid, gpus, scratch / "gpu", 1, "");
  EXPECT_EQ(resumed.losses.front(), whole.losses.back());
  EXPECT_EQ(hash_of(resumed.weights), hash_of(whole.weights));
  const RunTrace on_cpu = part({1, 1, 2}, {}, scratch / "gpu", 1, "");
  EXPECT_LE(worst_difference(on_cpu.losses, resumed.losses), kLoss);
  part({1, 1, 1}, {}, "", 1, scratch / "cpu");
  const RunTrace from_cpu = part(grid, gpus, scratch / "cpu", 1, "");
  EXPECT_LE(worst_difference(from_cpu.losses, {whole.losses.back()}), kLoss);
}

// Our own matrix products and attention, in bf16 and fp16: the CPU's run to rounding.
void check_own_kernels(bool fp16) {
  TrainOptions options = model_xxs();
  options.hidden_size = 128;  // heads of 64, which the tensor cores' attention takes
  options.num_attention_heads = 2;
  options.bf16 = !fp16;
  options.fp16 = fp16;
  options.loss_scale = fp16 ? 4096 : 0;
  options.gemm = "own";
  options.make_vocab_size_divisible_by = 8;  // rows of 16 bytes
  const RunTrace cpu = run_steps(options, {1, 1, 1}, source_of(options), 2);
  for (const GridShape& grid : {GridShape{1, 1, 1}, GridShape{2, 1, 1}}) {
    expect_the_cpus_run(options, grid, DeviceBackend::kNccl, cpu, 2, 2e-3, 2e-2);
  }
}
TEST(DeviceBf16, OwnKernelsTrainLikeTheCpu) {
  check_own_kernels(false);
}
TEST(DeviceFp16, OwnKernelsTrainLikeTheCpu) {
  check_own_kernels(true);
}

TEST(DeviceVerifyLayout, GridEqualsOneGpu) {
  const GridShape grid{2, 1, 1};
  const TrainOptions options = with_grid(model_xxs(), grid);
  run_ranks(
      grid.num_ranks(),
      [&](RankContext& rank) {
        const LayoutReport report = verify_layout(rank, options, source_of(options), 2);
        EXPECT_TRUE(report.equal) << report.first_difference;
      },
      on_gpus(DeviceBackend::kStaged));
}

// Two steps go onto the stream while the device stands still: nothing in a step waits for it. With 16 micro-batches
// they hold over 256 collectives of the tensor group.
TEST(DeviceOrder, TheHostDoesNotWaitWithinAStep) {
  struct Case {
    GridShape grid;
    int64_t samples;
  };
  for (const auto& [grid, samples] :
       {Case{{1, 1, 1}, 4}, Case{{2, 1, 1}, 4}, Case{{1, 2, 1}, 4}, Case{{2, 1, 1}, 16}}) {
    TrainOptions small = model_xxs();
    small.global_batch_size = samples;
    const TrainOptions options = with_grid(small, grid);
    const TinySource source = source_of(options);
    const std::string text = fmt::format("{}, {} samples", grid.text(), samples);
    const auto body = [&](RankContext& rank) {
      Training training(rank, options);
      train_step(training, source);
      std::mutex mutex;
      std::condition_variable opens;
      bool is_open = false, opened_in_time = false;
      enqueue_on_gpu(*training.stream, "a gate", [&] {
        std::unique_lock lock(mutex);
        opened_in_time = opens.wait_for(lock, std::chrono::seconds(20), [&] { return is_open; });
      });
      submit_step(training, source);
      submit_step(training, source);
      {
        const std::lock_guard lock(mutex);
        is_open = true;
      }
      opens.notify_all();
      EXPECT_TRUE(take_result(training).finite);
      EXPECT_TRUE(take_result(training).finite);
      EXPECT_TRUE(opened_in_time) << text;
    };
    run_ranks(grid.num_ranks(), body, on_gpus(DeviceBackend::kNccl));
  }
}

// Something else holds rank 1's memory when its communicators are there: all ranks say so, before any arena is taken.
TEST(DeviceRoom, APlanThatNoLongerFitsEndsAllRanks) {
  const TrainOptions options = with_grid(model_xxs(), {2, 1, 1});
  constexpr size_t kHog = size_t{8} << 20;
  play_memory(kernels::kernel_workspace_bytes(DeviceKind::kCuda) + kHog + (size_t{64} << 10));
  std::array<std::string, 2> heard;
  const auto body = [&](RankContext& rank) {
    const Buffer held = rank.device.allocate(rank.world.rank() == 1 ? kHog : 0, "something else");
    try {
      const Training training(rank, options);
    } catch (const AgreedError& error) {
      heard[static_cast<size_t>(rank.world.rank())] = error.what();
    }
  };
  run_ranks(2, body, on_gpus(DeviceBackend::kNccl));
  play_memory();
  for (const std::string& text : heard) {
    EXPECT_TRUE(text.find("rank 1: GPU 1 needs ") != std::string::npos) << text;
    EXPECT_TRUE(text.find(" more for the plan of this run, and ") != std::string::npos) << text;
  }
}

// An error leaves in the middle of a step: what the device still uses is freed behind it.
TEST(DeviceOrder, AnErrorWithinAStepFreesNothingInUse) {
  take_machine_reports();
  const TrainOptions options = with_grid(model_xxs(), {1, 1, 1});
  const auto body = [&](RankContext& rank) {
    Training training(rank, options);
    enqueue_on_gpu(*training.stream, "work that lasts",
                   [] { std::this_thread::sleep_for(std::chrono::milliseconds(200)); });
    submit_step(training, source_of(options));
    throw Error(ErrorCode::kData, "an unreadable sample");
  };
  EXPECT_THROW(run_ranks(1, body, on_gpus(DeviceBackend::kStaged)), Error);
  for (const std::string& report : take_machine_reports()) {
    ADD_FAILURE() << report;
  }
}

// Whatever moment the work of a stream runs at, the bits are the same.
TEST(DeviceOrder, RandomDelaysChangeNoBit) {
  TrainOptions options = model_xxs();
  options.num_layers = 2;
  options.seq_length = 4;
  options.hidden_size = 8;
  options.ffn_hidden_size = 8;
  options.global_batch_size = 2;
  const GridShape grid{1, 2, 1};
  const TinySource source = source_of(options);
  std::optional<RunTrace> first;
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    play_random_delays(seed);
    const DeviceBackend backend = seed % 2 == 0 ? DeviceBackend::kStaged : DeviceBackend::kNccl;
    const RunTrace trace = run_steps(options, grid, source, 2, on_gpus(backend));
    first = first ? first : trace;
    ASSERT_TRUE(trace.same_bits(*first)) << "seed " << seed << " " << name_of(backend);
    ASSERT_TRUE(take_machine_reports().empty());
  }
}

}  // namespace
}  // namespace ashlar
