// Ten training steps that PyTorch made in fp64: losses, pre-clip norms, first gradients and final weights, on one rank
// and on 2 x 2 x 2, with both schedules, with and without masked targets.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>

#include "tests/parallel/train/logical_tensors.h"
#include "tests/parallel/train/tiny_run.h"
#include "tests/support/run_ranks.h"

namespace ashlar {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

struct Case {
  std::string file;
  GridShape grid;
  std::string schedule;

  std::string name() const {
    return fmt::format("{}_t{}p{}d{}_{}", file, grid.tensor, grid.pipeline, grid.data, schedule);
  }
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name();
}

// The generator that the file describes.
class Lcg {
 public:
  explicit Lcg(uint32_t seed) : state_(seed) {}
  uint32_t next() {
    state_ = 1664525u * state_ + 1013904223u;
    return state_;
  }

 private:
  uint32_t state_;
};

class ReferenceSource final : public SampleSource {
 public:
  explicit ReferenceSource(const json& config)
      : seq_(config.at("s")), batch_(config.at("gbs")), masked_(config.value("mask", false)) {
    Lcg random(5000);
    for (int64_t at = 0; at < 10 * batch_ * seq_ + 1; ++at) {
      stream_.push_back(static_cast<int32_t>((random.next() >> 8) % config.at("V").get<uint32_t>()));
    }
  }
  int64_t seq_length() const override { return seq_; }
  int64_t samples_per_epoch() const override { return 10 * batch_; }
  void read(int64_t sample, std::span<int32_t> tokens, std::span<int32_t> targets,
            std::span<float> mask) const override {
    const int64_t step = sample / batch_, row = sample % batch_;
    const int64_t counted = masked_ ? 1 + (5 * row + 3 * step) % seq_ : seq_;
    for (int64_t at = 0; at < seq_; ++at) {
      tokens[static_cast<size_t>(at)] = stream_[static_cast<size_t>(sample * seq_ + at)];
      targets[static_cast<size_t>(at)] = stream_[static_cast<size_t>(sample * seq_ + at + 1)];
      mask[static_cast<size_t>(at)] = at < counted ? 1.0f : 0.0f;
    }
  }
  std::string description() const override { return "reference"; }

 private:
  int64_t seq_;
  int64_t batch_;
  bool masked_;
  std::vector<int32_t> stream_;
};

test::LogicalTensors reference_weights(const json& file) {
  test::LogicalTensors weights;
  uint32_t seed = 1000;
  for (const json& parameter : file.at("parameters")) {
    Lcg random(seed++);
    int64_t count = 1;
    for (const json& size : parameter.at("shape")) {
      count *= size.get<int64_t>();
    }
    std::vector<float>& values = weights[parameter.at("name")];
    for (int64_t at = 0; at < count; ++at) {
      const double draw = random.next() / 4294967296.0 - 0.5;
      values.push_back(
          static_cast<float>(parameter.at("centre").get<double>() + draw * 2 * parameter.at("scale").get<double>()));
    }
  }
  return weights;
}

TrainOptions reference_options(const json& config, const Case& c) {
  TrainOptions options = test::tiny_options();
  options.num_layers = config.at("L");
  options.hidden_size = config.at("h");
  options.num_attention_heads = config.at("a");
  options.ffn_hidden_size = config.at("ffn");
  options.seq_length = config.at("s");
  options.vocab_size = config.at("V");
  options.make_vocab_size_divisible_by = 1;
  options.global_batch_size = config.at("gbs");
  options.train_iters = 10;
  options.lr = 1e-3;
  options.adam_beta2 = 0.95;
  options.weight_decay = 0.1;
  options.pipeline_schedule = c.schedule;
  return test::with_grid(options, c.grid);
}

double l2(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) {
    sum += static_cast<double>(value) * static_cast<double>(value);
  }
  return std::sqrt(sum);
}

double relative(double ours, double theirs) {
  return std::abs(ours - theirs) / std::abs(theirs);
}

// The largest errors seen, for the test's record.
struct Worst {
  double loss = 0, norm = 0, grad = 0, after = 0;
};

class PytorchReference : public testing::TestWithParam<Case> {};

TEST_P(PytorchReference, TenSteps) {
  const Case& c = GetParam();
  const fs::path path =
      fs::path(ASHLAR_SOURCE_DIR) / ".." / "shared" / "data" / "pytorch_reference" / (c.file + ".json");
  if (!fs::exists(path)) {
    GTEST_SKIP() << "no shared data";
  }
  const json file = json::parse(std::ifstream(path));
  const ReferenceSource source(file.at("config"));
  const TrainOptions options = reference_options(file.at("config"), c);
  Worst worst;

  run_ranks(c.grid.num_ranks(), [&](RankContext& rank) {
    Training training(rank, options);
    test::set_values(training, reference_weights(file));
    const bool speaks = rank.world.rank() == 0;
    for (const json& expected : file.at("steps")) {
      const StepResult step = train_step(training, source);
      if (speaks) {
        worst.loss = std::max(worst.loss, relative(step.loss, expected.at("loss")));
        worst.norm = std::max(worst.norm, relative(step.grad_norm, expected.at("grad_norm")));
      }
      if (!expected.contains("grad_l2")) {
        continue;
      }
      // The buffers hold sums over targets divided by the number of all positions.
      const double scale = static_cast<double>(options.global_batch_size * options.seq_length) / step.num_targets;
      for (const auto& [name, values] : test::gather_logical(training, test::TensorKind::kGrad)) {
        if (speaks) {
          const double theirs = expected.at("grad_l2").at(name);
          worst.grad = std::max(worst.grad, relative(scale * l2(values), theirs));
          for (size_t at = 0; at < 8; ++at) {
            EXPECT_NEAR(scale * static_cast<double>(values[at]),
                        expected.at("grad_first8").at(name).at(at).get<double>(), 1e-4 * theirs)
                << name << " element " << at;
          }
        }
      }
    }
    for (const auto& [name, values] : test::gather_logical(training, test::TensorKind::kValue)) {
      if (!speaks) {
        continue;
      }
      const json& expected = file.at("after").at(name);
      double sum = 0;
      for (const float value : values) {
        sum += static_cast<double>(value);
      }
      // The gradient of the key's bias is zero in exact arithmetic (it moves all scores of a row alike), so Adam makes
      // steps out of rounding there, and the sums over the whole bias tell little: the first eight, queries, tell more.
      const bool has_key_bias = name.ends_with("attn.c_attn.bias");
      EXPECT_NEAR(l2(values), expected.at("l2").get<double>(), has_key_bias ? 1e-3 : 1e-5) << name;
      EXPECT_NEAR(sum, expected.at("sum").get<double>(), has_key_bias ? 32 * 10 * 1e-3 : 1e-4) << name;
      for (size_t at = 0; at < 8; ++at) {
        const double error = std::abs(static_cast<double>(values[at]) - expected.at("first8").at(at).get<double>());
        worst.after = std::max(worst.after, error);
      }
    }
  });
  RecordProperty("loss", fmt::format("{:.1e}", worst.loss));
  RecordProperty("norm", fmt::format("{:.1e}", worst.norm));
  RecordProperty("grad", fmt::format("{:.1e}", worst.grad));
  RecordProperty("after", fmt::format("{:.1e}", worst.after));
  EXPECT_LE(worst.loss, 1e-5);
  EXPECT_LE(worst.norm, 1e-4);
  EXPECT_LE(worst.grad, 1e-4);
  EXPECT_LE(worst.after, 1e-5);
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* file : {"gpt_s", "gpt_masked"}) {
    for (const GridShape& grid : {GridShape{1, 1, 1}, GridShape{2, 2, 2}}) {
      for (const char* schedule : {"1f1b", "gpipe"}) {
        all.push_back({file, grid, schedule});
      }
    }
  }
  return all;
}
std::string case_name(const testing::TestParamInfo<Case>& info) {
  return info.param.name();
}
INSTANTIATE_TEST_SUITE_P(Grids, PytorchReference, testing::ValuesIn(cases()), case_name);

}  // namespace
}  // namespace ashlar
