// Checkpoints and exports of runs that share their state out: every rank writes what it owns, files are the same bytes
// at every stage, and nothing whole is put together on the way.
#include <gtest/gtest.h>

#include "parallel/train/train_checkpoint.h"
#include "runtime/checkpoint/manifest.h"
#include "runtime/checkpoint/safetensors.h"
#include "tests/parallel/train/run_trace.h"
#include "tests/support/scratch_dir.h"

namespace ashlar {
namespace {

using namespace test;

constexpr int kStages[] = {0, 1, 2, 3};

// Nothing divides anything; the table has four blocks of the norm, of which data ranks own different numbers, and every
// other tensor has one or less.
TrainOptions odd_options() {
  TrainOptions options = tiny_options();
  options.num_layers = 3;
  options.hidden_size = 36;
  options.num_attention_heads = 4;
  options.ffn_hidden_size = 75;
  options.seq_length = 8;
  options.vocab_size = 367;
  options.make_vocab_size_divisible_by = 1;
  options.global_batch_size = 12;
  return with_sgd(options, 0.05, 1);
}

// Trains two steps, exports, and returns the files' bytes with the loss over the next batch.
struct Exported {
  std::string model, config;
  double next_loss = 0;
  LogicalTensors weights;
};

Exported train_and_export(TrainOptions options, const GridShape& grid, int zero_stage, const std::string& directory) {
  options.zero_stage = zero_stage;
  options.grad_reduce = "micro-batch";  // at every stage, so that bits are equal
  const TinySource source(options.seq_length, options.vocab_size);
  Exported exported;
  run_ranks(grid.num_ranks(), [&](RankContext& rank) {
    Training training(rank, with_grid(options, grid));
    train_step(training, source);
    train_step(training, source);
    save_hf(rank, directory, hf_config(training.config), checkpoint_slices(training, false));
    const double loss = evaluate(training, source, 1);
    LogicalTensors weights = gather_logical(training, TensorKind::kValue);
    if (rank.world.rank() == 0) {
      exported = {"", "", loss, std::move(weights)};
    }
  });
  exported.model = read_file(directory + "/model.safetensors");
  exported.config = read_file(directory + "/config.json");
  return exported;
}

void check_exports(const TrainOptions& options, const std::vector<GridShape>& grids) {
  const ScratchDir scratch;
  const Exported one = train_and_export(options, {1, 1, 1}, 0, scratch / "one");
  for (const GridShape& grid : grids) {
    std::optional<Exported> first;
    for (const int stage : kStages) {
      const std::string where = fmt::format("{} stage {}", grid.text(), stage);
      const std::string directory = scratch / where;
      const Exported exported = train_and_export(options, grid, stage, directory);
      EXPECT_EQ(exported.model.size(), one.model.size()) << where << ": padding, or a tensor more or less";
      EXPECT_EQ(exported.config, one.config) << where;
      EXPECT_LE(worst_difference(exported.weights, one.weights), 1e-6) << where;
      if (first) {
        EXPECT_TRUE(exported.model == first->model) << where << " exports other bytes than stage 0";
      } else {
        first = exported;
      }
      // The table is there once, under the name that transformers ties the head to; an untied head is there too.
      const SafetensorsFile file(directory + "/model.safetensors");
      EXPECT_EQ(file.tensors().contains("lm_head.weight"), options.untie_embeddings_and_output_weights) << where;
      EXPECT_EQ(file.find("transformer.wte.weight").shape, (Shape{options.vocab_size, options.hidden_size})) << where;
      // A run on one rank that begins with the export begins where the other stopped.
      run_ranks(1, [&](RankContext& rank) {
        Training loaded(rank, with_grid(options, {1, 1, 1}));
        load_hf_weights(loaded, directory);
        EXPECT_EQ(hash_of(gather_logical(loaded, TensorKind::kValue)), hash_of(exported.weights)) << where;
        EXPECT_NEAR(evaluate(loaded, TinySource(options.seq_length, options.vocab_size), 1), exported.next_loss, 1e-6);
      });
    }
  }
}

TEST(FewCheckpoints, ExportsAreTheSameBytesAtEveryStage) {
  check_exports(odd_options(), {{1, 1, 2}});
}
TEST(Checkpoints, ExportsAreTheSameBytesAtEveryStage) {
  TrainOptions options = odd_options();
  check_exports(options, {{1, 1, 3}, {1, 1, 4}, {1, 2, 2}});
  options.ffn_hidden_size = 74;
  check_exports(options, {{2, 1, 2}, {2, 2, 2}});
  options.untie_embeddings_and_output_weights = true;
  check_exports(options, {{1, 1, 2}, {1, 2, 2}});
}

// Every data rank writes, no element twice, and no memory of the device is taken for it or for loading.
TEST(FewCheckpoints, EveryOwnerWritesAndNothingIsGathered) {
  TrainOptions options = odd_options();
  options.optimizer = "adam";
  for (const int stage : {1, 3}) {
    options.zero_stage = stage;
    const GridShape grid{1, 2, 2};
    const TinySource source(options.seq_length, options.vocab_size);
    const ScratchDir scratch;
    const std::string directory = scratch / "run";
    run_ranks(grid.num_ranks(), [&](RankContext& rank) {
      Training training(rank, with_grid(options, grid));
      train_step(training, source);
      const int64_t before = rank.device.num_allocations();
      save_training(training, directory, 1);
      save_hf(rank, scratch / "hf", hf_config(training.config), checkpoint_slices(training, false));
      load_training(training, directory, 1);
      load_hf_weights(training, scratch / "hf");
      EXPECT_EQ(rank.device.num_allocations(), before);
    });
    const Manifest manifest = read_manifest(scratch / "run" / "iter_0000001", 1);
    EXPECT_EQ(manifest.files.size(), 4u);
    EXPECT_GE(manifest.tensors.at("adam_v/wte.weight").slices.size(), 2u) << "the case cuts no tensor";
    uint64_t bytes = 0, elements = 0;
    for (const auto& [name, file] : manifest.files) {
      bytes += file.bytes - file.header_bytes;
    }
    for (const auto& [name, tensor] : manifest.tensors) {
      elements += static_cast<uint64_t>(tensor.shape.num_elements());
    }
    EXPECT_EQ(bytes, elements * sizeof(float));
  }
}

}  // namespace
}  // namespace ashlar
