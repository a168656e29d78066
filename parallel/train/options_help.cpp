// The texts of --help and --help-flags, from the table of flags.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "parallel/train/flags.h"

namespace ashlar {
namespace {

constexpr const char* kIntroduction = R"(pretrain_gpt: trains a GPT on a tensor x pipeline x data grid of ranks.

On one rank, with data made by preprocess_data:

  pretrain_gpt --num-layers 4 --hidden-size 128 --num-attention-heads 4 --seq-length 64 \
      --micro-batch-size 8 --train-iters 500 --lr 3e-3 --data-path corpus_text_document \
      --log-interval 10 --eval-interval 100 --save checkpoints

On 8 ranks, tensor 2 x pipeline 2 x data 2 (the data size is what is left of the world size):

  mpirun -np 8 pretrain_gpt --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 \
      ...the same flags...

On GPUs, one rank each (--device auto, the default, takes them when every rank has one; README.md: On GPUs):

  mpirun -np 8 --bind-to none pretrain_gpt --device cuda --bf16 ...the same flags...
  mpirun -np 16 --hostfile hosts --map-by ppr:8:node --bind-to none -x LD_LIBRARY_PATH pretrain_gpt ...
  srun --mpi=pmix --nodes=2 --ntasks-per-node=8 --gpus-per-node=8 --cpus-per-task=16 --cpu-bind=none \
      pretrain_gpt ...

Global batch = micro-batch x data size x number of micro-batches. Losses do not depend on the grid.
Values follow their flag as "--lr 3e-3" or "--lr=3e-3". Names are Megatron's where Megatron has one;
--help-flags lists which of Megatron's flags work, have no effect, or are not supported yet.
)";

std::string group_name(FlagGroup group) {
  switch (group) {
    case FlagGroup::kModel:
      return "Model";
    case FlagGroup::kGrid:
      return "Grid";
    case FlagGroup::kDevice:
      return "Device";
    case FlagGroup::kBatch:
      return "Batch";
    case FlagGroup::kOptimizer:
      return "Optimizer";
    case FlagGroup::kData:
      return "Data";
    case FlagGroup::kCheckpoints:
      return "Checkpoints";
    case FlagGroup::kOutput:
      return "Output";
    case FlagGroup::kRun:
      return "Run";
    case FlagGroup::kTest:
      return "Test options";
  }
  return "";
}

std::string default_text(const Flag& flag) {
  if (!flag.default_words.empty()) {
    return flag.default_words;
  }
  return flag.is_switch() ? "off" : shown_value(flag, TrainOptions{});
}

std::string value_text(const Flag& flag) {
  return flag.choices.empty() ? flag.value
                              : fmt::format("{}{}", fmt::join(flag.choices, "|"), flag.is_list() ? " ..." : "");
}

std::string usage_text(const Flag& flag) {
  return flag.is_switch() ? "--" + flag.name : fmt::format("--{} {}", flag.name, value_text(flag));
}

// Puts text into lines of at most `width` characters, each after the first behind `indent` spaces.
std::string wrapped(const std::string& text, size_t width, size_t indent) {
  std::string out;
  size_t column = 0, start = 0;
  while (start < text.size()) {
    const size_t end = std::min(text.find(' ', start), text.size());
    const size_t length = end - start;
    if (column > 0 && column + 1 + length > width) {
      out += "\n" + std::string(indent, ' ');
      column = 0;
    }
    if (column > 0) {
      out += ' ';
      ++column;
    }
    out.append(text, start, length);
    column += length;
    start = end + 1;
  }
  return out;
}

void plain_row(std::string& out, const std::string& left, const std::string& right) {
  constexpr size_t kIndent = 34, kWidth = 110 - kIndent;
  const std::string gap =
      left.size() + 4 > kIndent ? "\n" + std::string(kIndent, ' ') : std::string(kIndent - 2 - left.size(), ' ');
  out += "  " + left + gap + wrapped(right, kWidth, kIndent) + "\n";
}

std::string refused_text(const Flag& flag) {
  return flag.neutral.empty() ? flag.text : fmt::format("{}; {} is accepted", flag.text, fmt::join(flag.neutral, ", "));
}

std::string other_text(const Flag& flag) {
  return flag.status == FlagStatus::kRefused ? refused_text(flag) : flag.text;
}

// '|' would end a cell of the table.
std::string cell(const std::string& text) {
  std::string out;
  for (const char c : text) {
    out += c == '|' ? "\\|" : std::string(1, c);
  }
  return out;
}

}  // namespace

std::string train_help() {
  std::string out = kIntroduction;
  FlagGroup group = FlagGroup::kTest;
  for (const Flag& flag : done_flags()) {
    if (flag.group != group || flag.name == "num-layers") {
      group = flag.group;
      out += fmt::format("\n{}\n", group_name(group));
    }
    plain_row(out, usage_text(flag), fmt::format("{} [{}]", flag.text, default_text(flag)));
  }
  return out;
}

std::string flag_tables(bool markdown) {
  struct Table {
    FlagStatus status;
    const char* title;
    const char* columns;
  };
  constexpr Table kTables[] = {
      {FlagStatus::kDone, "Done", "| flag | default | meaning |\n|---|---|---|\n"},
      {FlagStatus::kNoEffect, "Accepted without effect", "| flag | why nothing changes |\n|---|---|\n"},
      {FlagStatus::kRefused, "Refused: not supported yet", "| flag | what to do |\n|---|---|\n"},
      {FlagStatus::kReplaced, "Refused: names that Megatron replaced", "| flag | what to do |\n|---|---|\n"}};
  std::string out;
  for (const Table& table : kTables) {
    const bool done = table.status == FlagStatus::kDone;
    out += out.empty() ? "" : "\n";
    if (markdown) {  // the long tables of what is not there are folded
      out += fmt::format(fmt::runtime(done ? "**{}**\n\n" : "<details><summary><b>{}</b></summary>\n\n"), table.title);
      out += table.columns;
    } else {
      out += fmt::format("{}\n", table.title);
    }
    for (const Flag& flag : all_flags()) {
      if (flag.status != table.status) {
        continue;
      }
      if (!markdown) {
        plain_row(out, usage_text(flag),
                  done ? fmt::format("{} [{}]", flag.text, default_text(flag)) : other_text(flag));
      } else if (done) {
        out += fmt::format("| `{}` | {} | {} |\n", cell(usage_text(flag)), cell(default_text(flag)), cell(flag.text));
      } else {
        out += fmt::format("| `{}` | {} |\n", cell(usage_text(flag)), cell(other_text(flag)));
      }
    }
    out += markdown && !done ? "\n</details>\n" : "";
  }
  return out;
}

}  // namespace ashlar
