#include <algorithm>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "parallel/model/hf_layout.h"
#include "runtime/base/error.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/tensor/host_copy.h"

namespace ashlar {
namespace fs = std::filesystem;

namespace {

constexpr size_t kChunkElements = size_t{1} << 18;

// All files of a model as one table of tensors under our names.
class HfFiles {
 public:
  using Tensor = SafetensorsFile::Tensor;

  explicit HfFiles(const fs::path& directory) {
    const fs::path single = directory / "model.safetensors";
    const fs::path index = directory / "model.safetensors.index.json";
    if (path_exists(single)) {
      files_.emplace_back(single);
      for (const auto& [name, tensor] : files_.front().tensors()) {
        add(name, 0);
      }
      return;
    }
    REQUIRE(path_exists(index), ErrorCode::kCheckpoint,
            "{} has neither model.safetensors nor model.safetensors.index.json; only safetensors are read (in Python: "
            "GPT2LMHeadModel.from_pretrained(DIR).save_pretrained(DIR, safe_serialization=True))",
            directory.string());
    open_index(directory, index);
  }

  // Empty when there is none.
  const Tensor* find(const std::string& name) const {
    const auto found = places_.find(name);
    return found == places_.end() ? nullptr : &files_[found->second.file].find(found->second.name);
  }
  std::string place(const std::string& name) const {
    const Place& at = places_.at(name);
    return fmt::format("{}: tensor \"{}\"", files_[at.file].path().string(), at.name);
  }
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& [name, at] : places_) {
      all.push_back(name);
    }
    return all;
  }
  void read(const std::string& name, uint64_t begin, void* data, size_t bytes) const {
    files_[places_.at(name).file].read(*find(name), begin, data, bytes);
  }

  // Elements [begin, begin + count) as fp32.
  void read_floats(const std::string& name, int64_t begin, int64_t count, float* out) const {
    const DType dtype = *dtype_of_safetensors(find(name)->dtype);
    const size_t element_bytes = dtype_bytes(dtype);
    if (dtype == DType::kF32) {
      read(name, static_cast<uint64_t>(begin) * element_bytes, out, static_cast<size_t>(count) * element_bytes);
      return;
    }
    std::vector<uint16_t> halves(std::min(static_cast<size_t>(count), kChunkElements));
    for (int64_t done = 0; done < count;) {
      const size_t chunk = std::min(static_cast<size_t>(count - done), kChunkElements);
      read(name, static_cast<uint64_t>(begin + done) * element_bytes, halves.data(), chunk * element_bytes);
      for (size_t i = 0; i < chunk; ++i) {
        *out++ = dtype == DType::kBF16 ? to_float(BFloat16{halves[i]}) : to_float(Float16{halves[i]});
      }
      done += static_cast<int64_t>(chunk);
    }
  }

 private:
  struct Place {
    size_t file = 0;
    std::string name;  // in the file
  };

  void open_index(const fs::path& directory, const fs::path& path) {
    const nlohmann::json index = nlohmann::json::parse(read_file(path), nullptr, /*allow_exceptions=*/false);
    REQUIRE(index.is_object() && index.contains("weight_map") && index["weight_map"].is_object(),
            ErrorCode::kCheckpoint, "{}: expected a JSON object with a \"weight_map\"", path.string());
    std::map<std::string, size_t> opened;
    for (const auto& [name, file] : index["weight_map"].items()) {
      REQUIRE(file.is_string() && file.get<std::string>().find('/') == std::string::npos, ErrorCode::kCheckpoint,
              "{}: weight_map \"{}\": expected a file name, found {}", path.string(), name, file.dump());
      const auto [at, is_new] = opened.try_emplace(file.get<std::string>(), files_.size());
      if (is_new) {
        files_.emplace_back(directory / file.get<std::string>());
      }
      files_[at->second].find(name);
      add(name, at->second);
    }
  }

  void add(const std::string& name, size_t file) {
    const std::string ours = name.starts_with("transformer.") ? name.substr(12) : name;
    // Masks of the attention, which older versions of transformers stored.
    if (ours.starts_with("h.") && (ours.ends_with(".attn.bias") || ours.ends_with(".attn.masked_bias"))) {
      return;
    }
    REQUIRE(places_.try_emplace(ours, Place{file, name}).second, ErrorCode::kCheckpoint,
            "{} and {} name the same tensor in {}", name, places_.at(ours).name, files_[file].path().string());
  }

  std::vector<SafetensorsFile> files_;
  std::map<std::string, Place> places_;
};

// A tied model's file has no lm_head.weight, or the same bits again.
void check_tied_head(const HfFiles& files) {
  const HfFiles::Tensor* head = files.find("lm_head.weight");
  const HfFiles::Tensor* table = files.find("wte.weight");
  if (head == nullptr || table == nullptr) {
    return;
  }
  REQUIRE(head->dtype == table->dtype && head->shape == table->shape, ErrorCode::kCheckpoint,
          "{}: config.json ties it to wte.weight: expected {} {}, found {} {}", files.place("lm_head.weight"),
          table->dtype, table->shape.text(), head->dtype, head->shape.text());
  std::vector<std::byte> a(std::min<size_t>(head->bytes, kChunkElements));
  std::vector<std::byte> b(a.size());
  for (uint64_t begin = 0; begin < head->bytes; begin += a.size()) {
    const size_t chunk = std::min<size_t>(a.size(), head->bytes - begin);
    files.read("lm_head.weight", begin, a.data(), chunk);
    files.read("wte.weight", begin, b.data(), chunk);
    REQUIRE(std::memcmp(a.data(), b.data(), chunk) == 0, ErrorCode::kCheckpoint,
            "{}: config.json ties it to wte.weight, but their numbers differ in bytes [{}, {}); a model with a head of "
            "its own has \"tie_word_embeddings\": false",
            files.place("lm_head.weight"), begin, begin + chunk);
  }
}

void check_files(const HfFiles& files, const HfConfig& config, const std::string& directory) {
  std::map<std::string, Shape> expected = hf_shapes(config);
  for (const auto& [name, shape] : expected) {
    const HfFiles::Tensor* tensor = files.find(name);
    REQUIRE(tensor != nullptr, ErrorCode::kCheckpoint, "{}: tensor \"{}\" {} is missing", directory, name,
            shape.text());
    REQUIRE(tensor->shape == shape, ErrorCode::kCheckpoint, "{}: expected shape {} by config.json, found {}",
            files.place(name), shape.text(), tensor->shape.text());
    REQUIRE(tensor->dtype == "F32" || tensor->dtype == "BF16" || tensor->dtype == "F16", ErrorCode::kCheckpoint,
            "{}: expected dtype F32, BF16 or F16, found {}", files.place(name), tensor->dtype);
  }
  for (const std::string& name : files.names()) {
    REQUIRE(expected.contains(name) || (config.tie_word_embeddings && name == "lm_head.weight"), ErrorCode::kCheckpoint,
            "{} has no place in a GPT-2 of {} layers", files.place(name), config.n_layer);
  }
}

// `out` [n] in host memory.
void fill(const HfFiles& files, const NamedSlice& slice, float* out) {
  const HfSlice in_file = hf_slice(slice);
  std::vector<float> scratch(in_file.transposed ? static_cast<size_t>(slice.data.num_elements()) : 0);
  float* as_in_file = in_file.transposed ? scratch.data() : out;
  std::fill_n(as_in_file, slice.data.num_elements(), 0.0f);
  for_each_file_run(in_file, [&](int64_t position, int64_t global, int64_t length) {
    files.read_floats(in_file.name, global, length, as_in_file + position);
  });
  if (in_file.transposed) {
    from_file_order(in_file, out, scratch.data());
  }
}

}  // namespace

void load_hf(RankContext& rank, const std::string& directory, std::span<const NamedSlice> slices) {
  HfConfig config;
  agree(rank.world, [&] { config = read_hf_config(directory); });
  check_hf_slices(rank, config, slices, /*owned_only=*/false);
  agree(rank.world, [&] {
    const HfFiles files(directory);
    check_files(files, config, directory);
    if (config.tie_word_embeddings && rank.world.rank() == 0) {
      check_tied_head(files);
    }
    HostCopy copy(rank.device);
    std::vector<float> values;
    for (const NamedSlice& slice : slices) {
      values.resize(static_cast<size_t>(slice.data.num_elements()));
      fill(files, slice, values.data());
      copy.to_device(slice.in_memory(SliceUse::kWrite).data, values.data(), slice.data.bytes());
    }
  });
}

}  // namespace ashlar
