#include "parallel/model/hf_gpt2.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "parallel/model/hf_config.h"
#include "runtime/base/error.h"
#include "runtime/checkpoint/safetensors.h"
#include "tests/support/scratch_dir.h"

namespace ashlar {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

const HfConfig kTied{.vocab_size = 7, .n_positions = 3, .n_embd = 4, .n_layer = 2, .n_head = 2, .n_inner = 6};

HfConfig untied() {
  HfConfig config = kTied;
  config.tie_word_embeddings = false;
  return config;
}

struct Layout {
  int tensor = 1;
  int pipeline = 1;
  int data = 1;  // ranks that share out what each of the others holds

  int num_ranks() const { return tensor * pipeline * data; }
};
constexpr Layout kLayouts[] = {{1, 1}, {2, 1}, {1, 2}, {2, 2}, {1, 1, 3}, {2, 1, 2}, {1, 2, 2}};

// A model over tensor x pipeline x data ranks, as a job holds it. Every element is a number of its name and its index
// in the HUGGING FACE file: value(name, index), worked out here from the definition of Conv1D and not by the code under
// test.
class Model {
 public:
  Model(const HfConfig& config, int rank, Layout layout)
      : layout_(layout), tensor_rank_(rank % layout.tensor), data_rank_(rank / layout.tensor % layout.data) {
    const int stage = rank / (layout.tensor * layout.data);
    const int tensor = layout.tensor, pipeline = layout.pipeline;
    const bool first = stage == 0;
    const bool last = stage == pipeline - 1;
    const int64_t width = config.n_embd;
    const int64_t padded = (config.vocab_size + 2 * tensor - 1) / (2 * tensor) * (2 * tensor);
    if (first) {
      add("model/wte.weight", {config.vocab_size, width}, 0, padded);
      add("model/wpe.weight", {config.n_positions, width});
    }
    for (int64_t layer = stage * config.n_layer / pipeline; layer < (stage + 1) * config.n_layer / pipeline; ++layer) {
      const std::string block = "model/h." + std::to_string(layer) + ".";
      for (const char* norm : {"ln_1", "ln_2"}) {
        add(block + norm + ".weight", {width});
        add(block + norm + ".bias", {width});
      }
      add(block + "attn.c_attn.weight", {3, width, width}, 1);
      add(block + "attn.c_attn.bias", {3, width}, 1);
      add(block + "attn.c_proj.weight", {width, width}, 1);
      add(block + "attn.c_proj.bias", {width});
      add(block + "mlp.c_fc.weight", {config.n_inner, width}, 0);
      add(block + "mlp.c_fc.bias", {config.n_inner}, 0);
      add(block + "mlp.c_proj.weight", {width, config.n_inner}, 1);
      add(block + "mlp.c_proj.bias", {width});
    }
    if (last) {
      add("model/ln_f.weight", {width});
      add("model/ln_f.bias", {width});
      if (!config.tie_word_embeddings) {
        add("model/lm_head.weight", {config.vocab_size, width}, 0, padded);
      } else if (!first) {
        const size_t others = slices_.size();
        add("model/wte.weight", {config.vocab_size, width}, 0, padded);  // its second holder
        for (size_t at = others; at < slices_.size(); ++at) {
          slices_[at].owned = false;
        }
      }
    }
  }

  std::vector<NamedSlice>& slices() { return slices_; }

  static float value(const std::string& name, int64_t index_in_file) {
    return static_cast<float>(std::hash<std::string>{}(name) % 1000) + static_cast<float>(index_in_file) / 128;
  }

  void fill() {
    for (NamedSlice& slice : slices_) {
      for_each(slice,
               [&](float& element, const float* expected) { element = expected == nullptr ? -1e30f : *expected; });
    }
  }
  void scribble() {
    for (std::vector<float>& memory : memory_) {
      std::fill(memory.begin(), memory.end(), 777.0f);
    }
  }
  // Each element through `round` (what the file's dtype keeps of it); empty when all are right and padding is zero.
  std::string difference(const std::function<float(float)>& round = [](float x) { return x; }) {
    std::string text;
    for (NamedSlice& slice : slices_) {
      for_each(slice, [&](float& element, const float* expected) {
        const float right = expected == nullptr ? 0.0f : round(*expected);
        if (element != right && text.empty()) {
          text = fmt::format("{}: expected {}, found {}", slice.name, right, element);
        }
      });
    }
    return text;
  }

 private:
  void add(const std::string& name, Shape shape, int split_dim = -1, int64_t padded = 0) {
    const ShardSpec shard = split_dim < 0 ? ShardSpec::replicated(shape)
                                          : ShardSpec::split(shape, split_dim, tensor_rank_, layout_.tensor, padded);
    const int64_t count = shard.local().num_elements();
    // A part of each half, as two buckets give: ranges that begin and end within rows.
    for (int half = 0; half < (layout_.data == 1 ? 1 : 2); ++half) {
      const int64_t parts = layout_.data == 1 ? 1 : 2 * layout_.data, part = half * layout_.data + data_rank_;
      const int64_t begin = count * part / parts, end = count * (part + 1) / parts;
      std::vector<float>& memory = memory_.emplace_back(static_cast<size_t>(end - begin));
      slices_.push_back({.name = name,
                         .shard = shard,
                         .data = view_of(memory.data(), {end - begin}),
                         .owned = split_dim >= 0 || tensor_rank_ == 0,
                         .begin = begin});
    }
  }

  // Visits each local element with what it should be; nullptr for padding.
  void for_each(NamedSlice& slice, const std::function<void(float&, const float*)>& visit) {
    const std::string name = slice.name.substr(6);
    const Shape& global = slice.shard.global;
    const bool conv1d = name.find(".c_") != std::string::npos && name.ends_with(".weight");
    const int64_t in = global[-1];
    const int64_t out = global.num_elements() / in;
    std::vector<bool> valid(static_cast<size_t>(slice.data.num_elements()), false);
    float* data = slice.data.as<float>();
    for_each_run(slice.piece(), [&](int64_t local, int64_t index, int64_t length) {
      for (int64_t i = 0; i < length; ++i) {
        const int64_t ours = index + i;  // [out, in]
        const float expected = value(name, conv1d ? (ours % in) * out + ours / in : ours);
        visit(data[local + i], &expected);
        valid[static_cast<size_t>(local + i)] = true;
      }
    });
    for (size_t i = 0; i < valid.size(); ++i) {
      if (!valid[i]) {
        visit(data[i], nullptr);
      }
    }
  }

  Layout layout_;
  int tensor_rank_;
  int data_rank_;
  std::deque<std::vector<float>> memory_;
  std::vector<NamedSlice> slices_;
};

void save(const fs::path& directory, const HfConfig& config, Layout layout, const StorageOptions& options = {}) {
  run_thread_ranks(layout.num_ranks(), [&](RankContext& rank) {
    Model model(config, rank.world.rank(), layout);
    model.fill();
    save_hf(rank, directory.string(), config, model.slices(), options);
  });
}

// The error or the first wrong number; empty when all is right.
std::string load_problem(
    const fs::path& directory, const HfConfig& config, Layout layout = {},
    const std::function<float(float)>& round = [](float x) { return x; }) {
  std::string problem;
  try {
    run_thread_ranks(layout.num_ranks(), [&](RankContext& rank) {
      Model model(config, rank.world.rank(), layout);
      model.scribble();
      load_hf(rank, directory.string(), model.slices());
      const std::string difference = model.difference(round);
      REQUIRE(difference.empty(), ErrorCode::kInternal, "{}", difference);
    });
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

// A tensor of a file that a test writes itself.
struct FileTensor {
  DType dtype = DType::kF32;
  Shape shape;
  std::vector<float> values;
};
using FileTensors = std::map<std::string, FileTensor>;

// A GPT-2 as transformers stores it, without prefix.
FileTensors tensors_of(const HfConfig& config) {
  FileTensors tensors;
  const int64_t width = config.n_embd;
  const auto put = [&](const std::string& name, Shape shape) {
    FileTensor tensor{DType::kF32, shape, {}};
    for (int64_t i = 0; i < shape.num_elements(); ++i) {
      tensor.values.push_back(Model::value(name, i));
    }
    tensors[name] = tensor;
  };
  put("wte.weight", {config.vocab_size, width});
  put("wpe.weight", {config.n_positions, width});
  put("ln_f.weight", {width});
  put("ln_f.bias", {width});
  for (int64_t layer = 0; layer < config.n_layer; ++layer) {
    const std::string block = "h." + std::to_string(layer) + ".";
    for (const char* norm : {"ln_1", "ln_2"}) {
      put(block + norm + ".weight", {width});
      put(block + norm + ".bias", {width});
    }
    put(block + "attn.c_attn.weight", {width, 3 * width});
    put(block + "attn.c_attn.bias", {3 * width});
    put(block + "attn.c_proj.weight", {width, width});
    put(block + "attn.c_proj.bias", {width});
    put(block + "mlp.c_fc.weight", {width, config.n_inner});
    put(block + "mlp.c_fc.bias", {config.n_inner});
    put(block + "mlp.c_proj.weight", {config.n_inner, width});
    put(block + "mlp.c_proj.bias", {width});
  }
  if (!config.tie_word_embeddings) {
    put("lm_head.weight", {config.vocab_size, width});
  }
  return tensors;
}

void write_file(const fs::path& path, const FileTensors& tensors) {
  std::vector<SafetensorsEntry> entries;
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    entries.push_back({name, tensor.dtype, tensor.shape});
    for (const float value : tensor.values) {
      const uint16_t half = tensor.dtype == DType::kBF16 ? to_bf16(value).bits : to_f16(value).bits;
      if (tensor.dtype == DType::kF32) {
        data.append(reinterpret_cast<const char*>(&value), 4);
      } else {
        data.append(reinterpret_cast<const char*>(&half), 2);
      }
    }
  }
  std::ofstream(path, std::ios::binary) << lay_out_safetensors(entries, {{"format", "pt"}}).header << data;
}

void write_model(const fs::path& directory, const HfConfig& config, const FileTensors& tensors) {
  fs::create_directories(directory);
  std::ofstream(directory / "config.json") << hf_config_text(config);
  write_file(directory / "model.safetensors", tensors);
}

TEST(HfGpt2, ConvolutionWeightsAreTransposedNumberByNumber) {
  ScratchDir scratch;
  const HfConfig config{.vocab_size = 2, .n_positions = 1, .n_embd = 2, .n_layer = 1, .n_head = 1, .n_inner = 3};
  FileTensors tensors = tensors_of(config);
  // [in, out] = [2, 6]: row i has what input i gives to q0 q1 k0 k1 v0 v1
  tensors["h.0.attn.c_attn.weight"].values = {1, 2, 3, 4, 5, 6, 10, 20, 30, 40, 50, 60};
  tensors["h.0.mlp.c_proj.weight"].values = {1, 2, 3, 4, 5, 6};  // [3, 2]
  write_model(scratch / "m", config, tensors);
  run_thread_ranks(1, [&](RankContext& rank) {
    Model model(config, 0, {});
    load_hf(rank, (scratch / "m").string(), model.slices());
    for (const NamedSlice& slice : model.slices()) {
      const float* data = slice.data.as<float>();
      if (slice.name == "model/h.0.attn.c_attn.weight") {  // [3, out, in]: one row an output
        EXPECT_EQ(std::vector<float>(data, data + 12), (std::vector<float>{1, 10, 2, 20, 3, 30, 4, 40, 5, 50, 6, 60}));
      } else if (slice.name == "model/h.0.mlp.c_proj.weight") {  // [out, in] = [2, 3]
        EXPECT_EQ(std::vector<float>(data, data + 6), (std::vector<float>{1, 3, 5, 2, 4, 6}));
      }
    }
  });
}

TEST(HfGpt2, EveryLayoutReadsWhatEveryLayoutWrote) {
  for (const HfConfig& config : {kTied, untied()}) {
    for (const Layout from : kLayouts) {
      ScratchDir scratch;
      save(scratch / "out", config, from);
      for (const Layout to : kLayouts) {
        EXPECT_EQ(load_problem(scratch / "out", config, to), "")
            << from.tensor << from.pipeline << from.data << to.tensor << to.pipeline << to.data;
      }
      EXPECT_EQ(hf_config_text(read_hf_config((scratch / "out").string())), hf_config_text(config));
    }
  }
}

TEST(HfGpt2, TheFileIsTheOneTransformersExpects) {
  for (const HfConfig& config : {kTied, untied()}) {
    ScratchDir scratch;
    save(scratch / "out", config, {2, 2, 2});
    const SafetensorsFile file(scratch / "out" / "model.safetensors");
    EXPECT_EQ(file.metadata().at("format"), "pt");
    const FileTensors expected = tensors_of(config);
    EXPECT_EQ(file.tensors().size(), expected.size());
    for (const auto& [name, tensor] : expected) {
      const SafetensorsFile::Tensor& found = file.find(name == "lm_head.weight" ? name : "transformer." + name);
      EXPECT_EQ(found.dtype, "F32");
      EXPECT_EQ(found.shape, tensor.shape) << name;
      std::vector<float> values(tensor.values.size());
      ASSERT_EQ(found.bytes, values.size() * sizeof(float));
      file.read(found, 0, values.data(), found.bytes);
      EXPECT_EQ(values, tensor.values) << name;
    }
  }
}

TEST(HfGpt2, PrefixesAndMasks) {
  for (const bool prefix : {false, true}) {
    ScratchDir scratch;
    FileTensors tensors;
    for (auto& [name, tensor] : tensors_of(untied())) {
      tensors[prefix && name != "lm_head.weight" ? "transformer." + name : name] = tensor;
    }
    const std::string start = prefix ? "transformer.h.1.attn." : "h.1.attn.";
    tensors[start + "bias"] = {DType::kF32, {1, 1, 3, 3}, std::vector<float>(9, 1)};
    tensors[start + "masked_bias"] = {DType::kF32, {}, {-1e4f}};
    write_model(scratch / "m", untied(), tensors);
    EXPECT_EQ(load_problem(scratch / "m", untied(), {2, 2}), "");
    tensors["h.0.ln_1.bias"] = tensors[prefix ? "transformer.h.0.ln_1.bias" : "h.0.ln_1.bias"];
    tensors["transformer.h.0.ln_1.bias"] = tensors["h.0.ln_1.bias"];
    write_model(scratch / "twice", untied(), tensors);
    EXPECT_THAT(load_problem(scratch / "twice", untied()), HasSubstr("name the same tensor"));
  }
}

TEST(HfGpt2, SixteenBitFiles) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    ScratchDir scratch;
    FileTensors tensors = tensors_of(kTied);
    for (auto& [name, tensor] : tensors) {
      tensor.dtype = dtype;
    }
    write_model(scratch / "m", kTied, tensors);
    const auto round = [&](float x) { return dtype == DType::kBF16 ? to_float(to_bf16(x)) : to_float(to_f16(x)); };
    EXPECT_EQ(load_problem(scratch / "m", kTied, {2, 2}, round), "");
  }
  ScratchDir scratch;
  FileTensors tensors = tensors_of(kTied);
  tensors["ln_f.bias"] = {DType::kF64, {4}, std::vector<float>(16)};  // written as two bytes each: 32 bytes in all
  write_model(scratch / "m", kTied, tensors);
  EXPECT_THAT(load_problem(scratch / "m", kTied), AllOf(HasSubstr("ln_f.bias"), HasSubstr("F64")));
}

TEST(HfGpt2, ShardedFiles) {
  ScratchDir scratch;
  const fs::path directory = scratch / "m";
  const FileTensors tensors = tensors_of(untied());
  FileTensors parts[2];
  json index = {{"metadata", {{"total_size", 1}}}};
  size_t count = 0;
  for (const auto& [name, tensor] : tensors) {
    const size_t part = count++ % 2;
    parts[part]["transformer." + name] = tensor;
    index["weight_map"]["transformer." + name] = fmt::format("model-0000{}-of-00002.safetensors", part + 1);
  }
  for (FileTensors& part : parts) {  // the head goes without prefix
    if (part.contains("transformer.lm_head.weight")) {
      part["lm_head.weight"] = part.extract("transformer.lm_head.weight").mapped();
    }
  }
  index["weight_map"]["lm_head.weight"] = index["weight_map"]["transformer.lm_head.weight"];
  index["weight_map"].erase("transformer.lm_head.weight");
  write_model(directory, untied(), tensors);
  fs::remove(directory / "model.safetensors");
  const auto write_index = [&](const json& document) {
    std::ofstream(directory / "model.safetensors.index.json") << document.dump();
  };
  write_file(directory / "model-00001-of-00002.safetensors", parts[0]);
  write_file(directory / "model-00002-of-00002.safetensors", parts[1]);
  write_index(index);
  EXPECT_EQ(load_problem(directory, untied(), {2, 2}), "");

  json bad = index;
  bad["weight_map"].erase("transformer.wpe.weight");
  write_index(bad);
  EXPECT_THAT(load_problem(directory, untied()), AllOf(HasSubstr("wpe.weight"), HasSubstr("missing")));
  bad = index;
  bad["weight_map"]["transformer.ghost"] = "model-00001-of-00002.safetensors";
  write_index(bad);
  EXPECT_THAT(load_problem(directory, untied()), HasSubstr("ghost"));
  write_index({{"metadata", 1}});
  EXPECT_THAT(load_problem(directory, untied()), HasSubstr("weight_map"));
  write_index(index);
  fs::remove(directory / "model-00002-of-00002.safetensors");
  EXPECT_THAT(load_problem(directory, untied()), HasSubstr("model-00002-of-00002.safetensors"));
}

TEST(HfGpt2, ATiedHeadIsAbsentOrEqual) {
  ScratchDir scratch;
  FileTensors tensors = tensors_of(kTied);
  tensors["lm_head.weight"] = tensors["wte.weight"];
  write_model(scratch / "equal", kTied, tensors);
  EXPECT_EQ(load_problem(scratch / "equal", kTied, {2, 1}), "");
  tensors["lm_head.weight"].values.back() = std::nextafter(tensors["lm_head.weight"].values.back(), 0.0f);
  write_model(scratch / "other", kTied, tensors);
  EXPECT_THAT(load_problem(scratch / "other", kTied, {2, 1}), AllOf(HasSubstr("lm_head.weight"), HasSubstr("ties")));
  tensors["lm_head.weight"] = {DType::kF32, {4, 7}, tensors["wte.weight"].values};
  write_model(scratch / "shape", kTied, tensors);
  EXPECT_THAT(load_problem(scratch / "shape", kTied), AllOf(HasSubstr("lm_head.weight"), HasSubstr("[4,7]")));
}

TEST(HfGpt2, WrongTensorsAreNamed) {
  ScratchDir scratch;
  const fs::path directory = scratch / "m";
  const auto problem_with = [&](const std::function<void(FileTensors&)>& edit) {
    FileTensors tensors = tensors_of(kTied);
    edit(tensors);
    write_model(directory, kTied, tensors);
    return load_problem(directory, kTied, {2, 2});
  };
  EXPECT_EQ(problem_with([](FileTensors&) {}), "");
  EXPECT_THAT(problem_with([](FileTensors& t) { t.erase("h.1.mlp.c_fc.bias"); }),
              AllOf(HasSubstr("\"h.1.mlp.c_fc.bias\""), HasSubstr("missing")));
  EXPECT_THAT(problem_with([](FileTensors& t) { t["h.2.ln_1.bias"] = t["h.1.ln_1.bias"]; }),
              HasSubstr("h.2.ln_1.bias"));
  EXPECT_THAT(problem_with([](FileTensors& t) {
                t["h.0.mlp.c_fc.weight"].shape = {6, 4};
              }),
              AllOf(HasSubstr("h.0.mlp.c_fc.weight"), HasSubstr("[4,6]"), HasSubstr("[6,4]")));
  fs::resize_file(directory / "model.safetensors", 600);
  EXPECT_THAT(load_problem(directory, kTied), HasSubstr("model.safetensors"));
  fs::remove(directory / "model.safetensors");
  EXPECT_THAT(load_problem(directory, kTied), HasSubstr("model.safetensors"));
  fs::remove(directory / "config.json");
  EXPECT_THAT(load_problem(directory, kTied), HasSubstr("config.json"));
}

TEST(HfGpt2, AJobOfAnotherModelIsRefused) {
  ScratchDir scratch;
  write_model(scratch / "m", kTied, tensors_of(kTied));
  HfConfig job = kTied;
  job.n_layer = 1;
  EXPECT_THAT(load_problem(scratch / "m", job), AllOf(HasSubstr("h.1."), HasSubstr("n_layer 2")));
  job.n_layer = 3;
  EXPECT_THAT(load_problem(scratch / "m", job), HasSubstr("h.2."));
  EXPECT_THAT(load_problem(scratch / "m", untied()), HasSubstr("lm_head.weight"));
  job = kTied;
  job.n_positions = 5;
  EXPECT_THAT(load_problem(scratch / "m", job), AllOf(HasSubstr("wpe.weight"), HasSubstr("[3,4]"), HasSubstr("[5,4]")));
}

TEST(HfGpt2, NothingIsOverwritten) {
  ScratchDir scratch;
  fs::create_directories(scratch / "empty");
  save(scratch / "empty" / "", kTied, {1, 1});  // a slash at the end
  EXPECT_EQ(load_problem(scratch / "empty", kTied), "");
  try {
    save(scratch / "empty", kTied, {2, 1});
    ADD_FAILURE() << "overwritten";
  } catch (const Error& problem) {
    EXPECT_EQ(problem.code(), ErrorCode::kUsage);
    EXPECT_THAT(problem.what(), AllOf(HasSubstr("--save-hf"), HasSubstr("empty")));
  }
  std::ofstream(scratch / "file") << "x";
  EXPECT_THROW(save(scratch / "file", kTied, {1, 1}), Error);
}

TEST(HfGpt2, AFullDiskLeavesNothing) {
  ScratchDir scratch;
  fs::create_directory(scratch / "d");
  int num_failures = 0;
  for (int64_t k = 0;; k += 97) {
    const fs::path target = scratch / "d" / "out";
    try {
      save(target, kTied, {2, 1}, {.fail_after = k});
      break;
    } catch (const Error& problem) {
      EXPECT_EQ(problem.code(), ErrorCode::kCheckpoint);
      EXPECT_THAT(problem.what(), HasSubstr("No space left"));
      EXPECT_TRUE(fs::is_empty(scratch / "d")) << k;
      ++num_failures;
    }
  }
  EXPECT_GT(num_failures, 20);
  EXPECT_EQ(load_problem(scratch / "d" / "out", kTied), "");
}

}  // namespace
}  // namespace ashlar
