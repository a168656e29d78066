#include "runtime/metrics/metrics_file.h"

#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/base/error.h"

namespace ashlar {
namespace {

using Json = nlohmann::ordered_json;  // keeps the fields in the order they are written in

constexpr std::string_view kLineStart = "{\"kind\":\"";

Json number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

// The step of one of our own lines; -1 for anything else.
int64_t step_of_line(const std::string& line) {
  const Json object = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object() || !object.contains("kind") || !object.contains("step")) return -1;
  return object["step"].is_number_integer() ? object["step"].get<int64_t>() : -1;
}

// Number of bytes at the front of the file that hold lines of steps up to `resumed_step`.
std::uintmax_t bytes_to_keep(const std::filesystem::path& path, int64_t resumed_step) {
  std::ifstream in(path, std::ios::binary);
  REQUIRE(in.good(), ErrorCode::kUsage, "--metrics-file {}: cannot be read: {}", path.string(), std::strerror(errno));
  std::uintmax_t keep = 0;
  bool beyond = false;
  std::string line;
  for (int64_t line_number = 1; std::getline(in, line); ++line_number) {
    const int64_t step = step_of_line(line);
    const bool complete = !in.eof();
    const bool torn = !complete && line.substr(0, kLineStart.size()) == kLineStart.substr(0, line.size());
    REQUIRE(
        step >= 0 || torn, ErrorCode::kUsage,
        "--metrics-file {}: line {} is not a line of metrics; the file is left alone, give another name or remove it",
        path.string(), line_number);
    beyond = beyond || !complete || step > resumed_step;
    if (!beyond) keep += line.size() + 1;
  }
  return keep;
}

}  // namespace

MetricsFile::MetricsFile(std::filesystem::path path, int64_t resumed_step) : path_(std::move(path)) {
  std::error_code ignored;  // a path that cannot be asked about cannot be opened either, and fopen says why
  if (std::filesystem::is_regular_file(path_, ignored)) {
    const std::uintmax_t keep = bytes_to_keep(path_, resumed_step);
    std::error_code failed;
    if (keep != std::filesystem::file_size(path_)) std::filesystem::resize_file(path_, keep, failed);
    REQUIRE(!failed, ErrorCode::kUsage, "--metrics-file {}: cannot be written: {}", path_.string(), failed.message());
  }
  file_.reset(std::fopen(path_.c_str(), "ab"));
  REQUIRE(file_ != nullptr, ErrorCode::kUsage, "--metrics-file {}: cannot be written: {}", path_.string(),
          std::strerror(errno));
}

void MetricsFile::write(const StepMetrics& m) {
  Json object = {{"kind", "train"},
                 {"step", m.step},
                 {"loss", number(m.loss)},
                 {"grad_norm", number(m.grad_norm)},
                 {"learning_rate", number(m.learning_rate)},
                 {"consumed_samples", m.consumed_samples},
                 {"consumed_tokens", m.consumed_tokens},
                 {"step_time_s", number(m.step_time_s)},
                 {"tokens_per_s", number(m.tokens_per_s)},
                 {"model_tflops", number(m.model_tflops)},
                 {"flop_formula", m.flop_formula}};
  if (m.scales_loss) {
    object["loss_scale"] = number(m.loss_scale);
    object["skipped_iterations"] = m.total_skipped;
    object["nan_iterations"] = m.total_nan;
  }
  if (!m.weight_hashes.empty()) {
    Json hashes = Json::array();
    for (uint64_t hash : m.weight_hashes) hashes.push_back(fmt::format("{:016x}", hash));
    object["weight_hash"] = std::move(hashes);
  }
  write_line(object.dump());
}

void MetricsFile::write(const ValidationMetrics& m) {
  const Json object = {
      {"kind", "validation"}, {"step", m.step}, {"loss", number(m.loss)}, {"perplexity", number(m.perplexity())}};
  write_line(object.dump());
}

void MetricsFile::write(const RunMetrics& m) {
  const Json object = {{"kind", "run"},
                       {"step", m.step},
                       {"device", m.device},
                       {"ranks", m.num_ranks},
                       {"grid", m.grid},
                       {"parameters", m.num_parameters},
                       {"precision", m.precision},
                       {"zero_stage", m.zero_stage},
                       {"grad_reduce", m.grad_reduce}};
  write_line(object.dump());
}

void MetricsFile::write(const MemoryMetrics& m) {
  Json items = Json::array();
  for (const MemoryMetrics::Item& item : m.items) {
    items.push_back({{"name", item.name},
                     {"on_host", item.on_host},
                     {"planned_bytes", item.planned_bytes},
                     {"peak_bytes", item.peak_bytes}});
  }
  const Json object = {{"kind", "memory"},
                       {"step", m.step},
                       {"rank", m.rank},
                       {"planned_bytes", m.planned_bytes},
                       {"peak_bytes", m.peak_bytes},
                       {"planned_disk_bytes", m.planned_disk_bytes},
                       {"disk_bytes", m.disk_bytes},
                       {"items", std::move(items)}};
  write_line(object.dump());
}

void MetricsFile::write_line(const std::string& line) {
  const bool written = std::fputs(line.c_str(), file_.get()) >= 0 && std::fputc('\n', file_.get()) != EOF &&
                       std::fflush(file_.get()) == 0;
  REQUIRE(written, ErrorCode::kUsage, "--metrics-file {}: cannot be written: {}", path_.string(), std::strerror(errno));
}

}  // namespace ashlar
