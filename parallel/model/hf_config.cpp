#include "parallel/model/hf_config.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "runtime/base/error.h"

namespace ashlar {

namespace {

using nlohmann::json;

class Fields {
 public:
  Fields(const json& document, std::string place) : document_(document), place_(std::move(place)) {}

  const json* find(const char* name) const {  // null in the file counts as absent
    const auto found = document_.find(name);
    return found == document_.end() || found->is_null() ? nullptr : &*found;
  }

  int64_t size(const char* name) const {
    const json* value = find(name);
    REQUIRE(value != nullptr, ErrorCode::kCheckpoint, "{}: \"{}\" is missing", place_, name);
    REQUIRE(value->is_number_integer() && value->get<int64_t>() > 0, ErrorCode::kCheckpoint,
            "{}: \"{}\": expected a positive number, found {}", place_, name, value->dump());
    return value->get<int64_t>();
  }

  bool flag(const char* name, bool otherwise) const {
    const json* value = find(name);
    REQUIRE(value == nullptr || value->is_boolean(), ErrorCode::kCheckpoint,
            "{}: \"{}\": expected true or false, found {}", place_, name, value == nullptr ? "" : value->dump());
    return value == nullptr ? otherwise : value->get<bool>();
  }

  // One of the values the runtime has; the answer is its index.
  size_t one_of(const char* name, const std::vector<std::string>& supported, bool required) const {
    const json* value = find(name);
    REQUIRE(value != nullptr || !required, ErrorCode::kCheckpoint, "{}: \"{}\" is missing; supported: {}", place_, name,
            json(supported).dump());
    for (size_t i = 0; i < supported.size(); ++i) {
      if (value == nullptr || *value == supported[i]) {
        return i;
      }
    }
    throw Error(ErrorCode::kCheckpoint, fmt::format("{}: \"{}\" is {}, which is not supported; supported: {}", place_,
                                                    name, value->dump(), json(supported).dump()));
  }

  void require_flag(const char* name, bool only) const {
    REQUIRE(flag(name, only) == only, ErrorCode::kCheckpoint, "{}: \"{}\" is {}, only {} is supported", place_, name,
            !only, only);
  }

 private:
  const json& document_;
  std::string place_;
};

}  // namespace

std::string hf_config_text(const HfConfig& config) {
  json document = {{"model_type", "gpt2"},
                   {"architectures", {"GPT2LMHeadModel"}},
                   {"vocab_size", config.vocab_size},
                   {"n_positions", config.n_positions},
                   {"n_ctx", config.n_positions},
                   {"n_embd", config.n_embd},
                   {"n_layer", config.n_layer},
                   {"n_head", config.n_head},
                   {"n_inner", nullptr},
                   {"activation_function", config.gelu_erf ? "gelu" : "gelu_new"},
                   {"resid_pdrop", 0.0},
                   {"embd_pdrop", 0.0},
                   {"attn_pdrop", 0.0},
                   {"layer_norm_epsilon", config.layer_norm_epsilon},
                   {"initializer_range", 0.02},
                   {"tie_word_embeddings", config.tie_word_embeddings},
                   {"torch_dtype", "float32"},
                   {"bos_token_id", nullptr},
                   {"eos_token_id", nullptr}};
  if (config.n_inner != 4 * config.n_embd) {
    document["n_inner"] = config.n_inner;
  }
  if (config.eos_token_id) {  // GPT-2 has one token for both
    document["bos_token_id"] = *config.eos_token_id;
    document["eos_token_id"] = *config.eos_token_id;
  }
  return document.dump(2) + "\n";
}

HfConfig parse_hf_config(const std::string& text, const std::string& place) {
  const json document = json::parse(text, nullptr, /*allow_exceptions=*/false);
  REQUIRE(document.is_object(), ErrorCode::kCheckpoint, "{} is not a JSON object", place);
  const Fields fields(document, place);
  fields.one_of("model_type", {"gpt2"}, /*required=*/true);

  HfConfig config;
  config.vocab_size = fields.size("vocab_size");
  config.n_positions = fields.size("n_positions");
  config.n_embd = fields.size("n_embd");
  config.n_layer = fields.size("n_layer");
  config.n_head = fields.size("n_head");
  config.n_inner = fields.find("n_inner") == nullptr ? 4 * config.n_embd : fields.size("n_inner");
  // Absent means GPT2Config's own default, the first of the list; the second spells the same tanh
  // form another way.
  config.gelu_erf =
      fields.one_of("activation_function", {"gelu_new", "gelu_pytorch_tanh", "gelu"}, /*required=*/false) == 2;
  if (const json* epsilon = fields.find("layer_norm_epsilon")) {
    REQUIRE(epsilon->is_number() && epsilon->get<double>() > 0, ErrorCode::kCheckpoint,
            "{}: \"layer_norm_epsilon\": expected a positive number, found {}", place, epsilon->dump());
    config.layer_norm_epsilon = epsilon->get<double>();
  }
  config.tie_word_embeddings = fields.flag("tie_word_embeddings", true);
  if (const json* eos = fields.find("eos_token_id"); eos != nullptr && eos->is_number_integer()) {
    config.eos_token_id = eos->get<int64_t>();
  }
  // Variants that change what attention computes.
  fields.require_flag("scale_attn_weights", true);
  fields.require_flag("scale_attn_by_inverse_layer_idx", false);
  fields.require_flag("add_cross_attention", false);
  return config;
}

HfConfig read_hf_config(const std::string& directory) {
  const std::filesystem::path path = std::filesystem::path(directory) / "config.json";
  REQUIRE(path_exists(path), ErrorCode::kCheckpoint,
          "{} is missing: expected a Hugging Face model directory with config.json and model.safetensors",
          path.string());
  return parse_hf_config(read_file(path), path.string());
}

}  // namespace ashlar
