#include "parallel/model/hf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "runtime/base/error.h"

namespace ashlar {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

// The sizes of GPT-2 small as its config.json has them.
json gpt2() {
  return {{"model_type", "gpt2"}, {"architectures", {"GPT2LMHeadModel"}},
          {"vocab_size", 50257},  {"n_positions", 1024},
          {"n_ctx", 1024},        {"n_embd", 768},
          {"n_layer", 12},        {"n_head", 12}};
}

std::string refusal(const json& document) {
  try {
    parse_hf_config(document.dump(), "config.json");
    return "";
  } catch (const Error& problem) {
    EXPECT_EQ(problem.code(), ErrorCode::kCheckpoint);
    return problem.what();
  }
}

TEST(HfConfig, DefaultsOfAbsentFields) {
  const HfConfig config = parse_hf_config(gpt2().dump(), "config.json");
  EXPECT_EQ(config.vocab_size, 50257);
  EXPECT_EQ(config.n_positions, 1024);
  EXPECT_EQ(config.n_embd, 768);
  EXPECT_EQ(config.n_layer, 12);
  EXPECT_EQ(config.n_head, 12);
  EXPECT_EQ(config.n_inner, 3072);
  EXPECT_FALSE(config.gelu_erf);
  EXPECT_EQ(config.layer_norm_epsilon, 1e-5);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_EQ(config.eos_token_id, std::nullopt);
}

TEST(HfConfig, FieldsThatAreGiven) {
  json document = gpt2();
  document.update({{"n_inner", 100},
                   {"activation_function", "gelu"},
                   {"layer_norm_epsilon", 1e-6},
                   {"tie_word_embeddings", false},
                   {"eos_token_id", 50256}});
  const HfConfig config = parse_hf_config(document.dump(), "config.json");
  EXPECT_EQ(config.n_inner, 100);
  EXPECT_TRUE(config.gelu_erf);
  EXPECT_EQ(config.layer_norm_epsilon, 1e-6);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_EQ(config.eos_token_id, 50256);
  document["n_inner"] = nullptr;
  document["activation_function"] = "gelu_pytorch_tanh";
  EXPECT_EQ(parse_hf_config(document.dump(), "").n_inner, 3072);
  EXPECT_FALSE(parse_hf_config(document.dump(), "").gelu_erf);
}

TEST(HfConfig, WhatIsWrittenIsRead) {
  for (const bool other : {false, true}) {
    HfConfig config{.vocab_size = 11, .n_positions = 7, .n_embd = 6, .n_layer = 2, .n_head = 3, .n_inner = 24};
    if (other) {
      config.n_inner = 10;
      config.gelu_erf = true;
      config.layer_norm_epsilon = 1.25e-6;
      config.tie_word_embeddings = false;
      config.eos_token_id = 10;
    }
    const std::string text = hf_config_text(config);
    const HfConfig read = parse_hf_config(text, "config.json");
    EXPECT_EQ(hf_config_text(read), text);
    EXPECT_EQ(read.n_inner, config.n_inner);
    EXPECT_EQ(read.gelu_erf, config.gelu_erf);
    EXPECT_EQ(read.layer_norm_epsilon, config.layer_norm_epsilon);
    EXPECT_EQ(read.tie_word_embeddings, config.tie_word_embeddings);
    EXPECT_EQ(read.eos_token_id, config.eos_token_id);
    const json document = json::parse(text);
    EXPECT_EQ(document["model_type"], "gpt2");
    EXPECT_EQ(document["n_inner"].is_null(), !other);
  }
}

TEST(HfConfig, OtherModelsAreRefusedByName) {
  const auto with = [](const char* key, const json& value) {
    json document = gpt2();
    document[key] = value;
    return refusal(document);
  };
  EXPECT_EQ(refusal(gpt2()), "");
  EXPECT_THAT(with("model_type", "llama"), AllOf(HasSubstr("config.json"), HasSubstr("llama"), HasSubstr("gpt2")));
  EXPECT_THAT(with("model_type", nullptr), HasSubstr("model_type"));
  EXPECT_THAT(with("activation_function", "silu"), AllOf(HasSubstr("silu"), HasSubstr("gelu_new")));
  EXPECT_THAT(with("n_embd", "768"), HasSubstr("n_embd"));
  EXPECT_THAT(with("n_layer", 0), HasSubstr("n_layer"));
  EXPECT_THAT(with("n_inner", -4), HasSubstr("n_inner"));
  EXPECT_THAT(with("vocab_size", nullptr), HasSubstr("vocab_size"));
  EXPECT_THAT(with("layer_norm_epsilon", "small"), HasSubstr("layer_norm_epsilon"));
  EXPECT_THAT(with("tie_word_embeddings", 1), HasSubstr("tie_word_embeddings"));
  EXPECT_THAT(with("scale_attn_weights", false), HasSubstr("scale_attn_weights"));
  EXPECT_THAT(with("scale_attn_by_inverse_layer_idx", true), HasSubstr("scale_attn_by_inverse_layer_idx"));
  EXPECT_THAT(with("add_cross_attention", true), HasSubstr("add_cross_attention"));
  EXPECT_THROW(parse_hf_config("{", "config.json"), Error);
}

}  // namespace
}  // namespace ashlar
