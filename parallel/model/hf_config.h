// config.json of a Hugging Face model directory, as text.
#pragma once

#include <string>

#include "parallel/model/hf_gpt2.h"

namespace ashlar {

// Pure. Inverse of each other; `place` names the source in errors.
std::string hf_config_text(const HfConfig& config);
HfConfig parse_hf_config(const std::string& text, const std::string& place);

}  // namespace ashlar
