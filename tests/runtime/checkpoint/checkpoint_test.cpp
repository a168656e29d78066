#include "runtime/checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/base/error.h"
#include "runtime/base/rng.h"
#include "runtime/checkpoint/manifest.h"
#include "runtime/checkpoint/safetensors.h"
#include "tests/runtime/checkpoint/fake_model.h"
#include "tests/support/scratch_dir.h"

namespace ashlar {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using Grid = FakeModel::Grid;

constexpr uint64_t kBlockBytes = 64;  // so that slices have several blocks, of which a range needs some

void save(const fs::path& directory, int num_ranks, int64_t iteration, Grid grid = Grid::kPlain) {
  run_thread_ranks(num_ranks, [&](RankContext& rank) {
    FakeModel model(rank.world.rank(), num_ranks, grid);
    model.fill(static_cast<uint64_t>(iteration));
    save_checkpoint(rank, {directory.string(), iteration, model.slices(), {}, kBlockBytes},
                    {{"step", iteration}, {"lr", 0.1}});
  });
}

// Loads on another grid and returns the first error or difference; empty when all is as it was saved.
std::string load_problem(const fs::path& directory, int num_ranks, int64_t iteration, Grid grid = Grid::kPlain) {
  try {
    run_thread_ranks(num_ranks, [&](RankContext& rank) {
      FakeModel model(rank.world.rank(), num_ranks, grid);
      model.scribble();
      const nlohmann::json state = load_checkpoint(rank, directory.string(), iteration, model.slices());
      const std::string difference = model.difference(static_cast<uint64_t>(iteration));
      REQUIRE(difference.empty(), ErrorCode::kInternal, "{}", difference);
      REQUIRE(state == nlohmann::json({{"step", iteration}, {"lr", 0.1}}), ErrorCode::kInternal, "{}", state.dump());
    });
    return "";
  } catch (const Error& problem) {
    return problem.what();
  }
}

std::optional<int64_t> find(const fs::path& directory, int num_ranks = 2) {
  std::optional<int64_t> found;
  run_thread_ranks(num_ranks, [&](RankContext& rank) {
    const std::optional<int64_t> mine = find_checkpoint(rank, directory.string());
    if (rank.world.rank() == num_ranks - 1) {
      found = mine;
    }
  });
  return found;
}

void write_text(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

TEST(Checkpoint, EveryGridReadsWhatEveryGridWrote) {
  for (const int from : {1, 2, 4, 7}) {
    for (const Grid saved : {Grid::kPlain, Grid::kTurned, Grid::kShared}) {
      ScratchDir scratch;
      save(scratch.path(), from, 120, saved);
      for (const int to : {1, 2, 4, 6}) {
        for (const Grid loaded : {Grid::kPlain, Grid::kTurned, Grid::kShared}) {
          EXPECT_EQ(load_problem(scratch.path(), to, 120, loaded), "") << from << " to " << to;
        }
      }
    }
  }
}

// Written by the version before ranges: FakeModel on three ranks, as iteration 3.
TEST(Checkpoint, TheFirstFormatIsStillRead) {
  const fs::path directory = ASHLAR_SOURCE_DIR "/tests/golden/checkpoint_v1";
  EXPECT_THAT(read_file(directory / "iter_0000003" / "manifest.json"), HasSubstr("\"version\": 1"));
  EXPECT_EQ(find(directory), 3);
  for (const int to : {1, 3, 4}) {
    for (const Grid loaded : {Grid::kPlain, Grid::kTurned, Grid::kShared}) {
      EXPECT_EQ(load_problem(directory, to, 3, loaded), "") << to;
    }
  }
  ScratchDir scratch;
  fs::copy(directory, scratch / "damaged", fs::copy_options::recursive);
  const fs::path file = scratch / "damaged" / "iter_0000003" / "rank_00001.safetensors";
  std::string bytes = read_file(file);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_text(file, bytes);
  EXPECT_THAT(load_problem(scratch / "damaged", 4, 3, Grid::kShared), HasSubstr("expected hash"));
}

TEST(Checkpoint, ALaterFormatIsRefused) {
  ScratchDir scratch;
  save(scratch.path(), 1, 3);
  const std::string text = read_file(scratch / "iter_0000003" / "manifest.json");
  const std::string version = "\"version\": 2";
  std::string later = text;
  later.replace(later.find(version), version.size(), "\"version\": 3");
  EXPECT_NO_THROW(parse_manifest(text, "here"));
  EXPECT_THROW(parse_manifest(later, "here"), Error);
}

// A rank that wants a part of a slice reads and checks the blocks that hold it, and no others.
TEST(Checkpoint, OnlyTheBlocksOfARangeAreRead) {
  ScratchDir scratch;
  constexpr int64_t kCount = 64, kPerBlock = kBlockBytes / sizeof(float);
  const ShardSpec shard = ShardSpec::replicated({kCount});
  uint64_t offset = 0;
  run_thread_ranks(1, [&](RankContext& rank) {
    std::vector<float> memory(kCount, 1);
    const std::vector<NamedSlice> slices = {{"model/a", shard, view_of(memory.data(), {kCount})}};
    save_checkpoint(rank, {scratch.path().string(), 1, slices, {}, kBlockBytes}, nullptr);
  });
  const fs::path file = scratch / "iter_0000001" / "rank_00000.safetensors";
  offset = SafetensorsFile(file).find("model/a").offset;
  const std::string good = read_file(file);
  for (int64_t damaged = 0; damaged < kCount / kPerBlock; ++damaged) {
    std::string bad = good;
    bad[offset + static_cast<size_t>(damaged) * kBlockBytes] ^= 1;
    write_text(file, bad);
    for (int64_t begin = 0; begin < kCount; begin += 8) {
      const int64_t end = std::min<int64_t>(begin + 12, kCount);
      const bool is_hit = begin < (damaged + 1) * kPerBlock && end > damaged * kPerBlock;
      const auto load = [&] {
        run_thread_ranks(1, [&](RankContext& rank) {
          std::vector<float> memory(static_cast<size_t>(end - begin));
          const std::vector<NamedSlice> slices = {
              {.name = "model/a", .shard = shard, .data = view_of(memory.data(), {end - begin}), .begin = begin}};
          load_checkpoint(rank, scratch.path().string(), 1, slices);
          EXPECT_EQ(memory, std::vector<float>(memory.size(), 1));
        });
      };
      if (is_hit) {
        EXPECT_THROW(load(), Error) << damaged << " " << begin;
      } else {
        EXPECT_NO_THROW(load()) << damaged << " " << begin;
      }
    }
  }
}

// State that is elsewhere: every slice is brought once, in order, and one piece of memory serves all.
TEST(Checkpoint, SlicesAreBroughtOneByOne) {
  ScratchDir scratch;
  constexpr int64_t kCount = 6;
  run_thread_ranks(2, [&](RankContext& rank) {
    std::vector<std::vector<float>> home(3, std::vector<float>(kCount / 2));
    std::vector<float> memory(kCount / 2);
    size_t in_memory = 0;
    bool is_changed = false;
    std::vector<size_t> asked;
    const auto put_back = [&] {
      if (is_changed) {
        home[in_memory] = memory;
      }
    };
    std::vector<NamedSlice> slices;
    for (size_t at = 0; at < home.size(); ++at) {
      std::fill(home[at].begin(), home[at].end(), static_cast<float>(10 * at) + static_cast<float>(rank.world.rank()));
      slices.push_back({.name = "model/" + std::to_string(at),
                        .shard = ShardSpec::replicated({2, 3}),
                        .data = {nullptr, DType::kF32, {kCount / 2}},
                        .begin = rank.world.rank() * kCount / 2,
                        .bring = [&, at](SliceUse use) {
                          put_back();
                          asked.push_back(at);
                          in_memory = at;
                          is_changed = use == SliceUse::kWrite;
                          memory = home[at];
                          return reinterpret_cast<std::byte*>(memory.data());
                        }});
    }
    const auto saved = home;
    save_checkpoint(rank, {scratch.path().string(), 1, slices, {}, 8}, nullptr);
    EXPECT_EQ(asked, (std::vector<size_t>{0, 1, 2}));
    for (auto& values : home) {
      std::fill(values.begin(), values.end(), -1.0f);
    }
    asked.clear();
    load_checkpoint(rank, scratch.path().string(), 1, slices);
    put_back();
    EXPECT_EQ(asked, (std::vector<size_t>{0, 1, 2}));
    EXPECT_EQ(home, saved);
  });
}

TEST(Checkpoint, LiesWhereUsersOfMegatronLookForIt) {
  ScratchDir scratch;
  save(scratch.path(), 2, 120);
  EXPECT_EQ(read_file(scratch / "latest_checkpointed_iteration.txt"), "120");
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(scratch.path())) {
    names.push_back(entry.path().filename());
  }
  EXPECT_THAT(names, testing::UnorderedElementsAre("latest_checkpointed_iteration.txt", "iter_0000120"));
  const SafetensorsFile file(scratch / "iter_0000120" / "rank_00001.safetensors");  // other tools can read it
  EXPECT_EQ(file.find("model/wte.weight").shape, (Shape{5, 6}));
  EXPECT_EQ(file.find("model/h.0.attn.c_attn.weight").shape, (Shape{3, 4, 5}));
}

TEST(Checkpoint, PaddingIsNotStored) {
  ScratchDir scratch;
  save(scratch.path(), 4, 1);
  const Manifest manifest = read_manifest(scratch / "iter_0000001", 1);
  const StoredTensor& table = manifest.tensors.at("model/wte.weight");  // 10 rows, padded to 12
  EXPECT_EQ(table.shape, (Shape{10, 6}));
  ASSERT_EQ(table.slices.size(), 4U);
  EXPECT_EQ(table.slices[3].start, 9);
  EXPECT_EQ(table.slices[3].size, 1);
}

TEST(Checkpoint, FindsTheMarkedIterationOrTheNewestWholeOne) {
  ScratchDir scratch;
  EXPECT_EQ(find(scratch.path()), std::nullopt);
  EXPECT_EQ(find(scratch / "not there"), std::nullopt);
  for (const int64_t iteration : {5, 10, 15}) {
    save(scratch.path(), 2, iteration);
    EXPECT_EQ(find(scratch.path()), iteration);
  }
  const fs::path mark = scratch / "latest_checkpointed_iteration.txt";
  write_text(mark, "10\n");  // a user goes back by hand
  EXPECT_EQ(find(scratch.path()), 10);
  for (const std::string bad : {"", "release", "99", "-1", "10x", "99999999999999999999999"}) {
    write_text(mark, bad);
    EXPECT_EQ(find(scratch.path()), 15) << bad;
  }
  fs::remove(mark);
  EXPECT_EQ(find(scratch.path()), 15);
  fs::resize_file(scratch / "iter_0000015" / "rank_00000.safetensors", 100);
  EXPECT_EQ(find(scratch.path()), 10);
  write_text(mark, "15");
  EXPECT_EQ(find(scratch.path()), 10);
  fs::remove(scratch / "iter_0000010" / "rank_00001.safetensors");
  EXPECT_EQ(find(scratch.path()), 5);
  write_text(scratch / "iter_0000005" / "manifest.json", "{}");
  EXPECT_EQ(find(scratch.path()), std::nullopt);
  fs::create_directory(scratch / "iter_0000020");  // a name alone is no checkpoint
  EXPECT_EQ(find(scratch.path()), std::nullopt);
}

class DamagedBytes : public testing::TestWithParam<Grid> {};

TEST_P(DamagedBytes, AreNoticedAndNamed) {
  const int num_ranks = GetParam() == Grid::kShared ? 4 : 2;
  ScratchDir scratch;
  save(scratch.path(), num_ranks, 3, GetParam());
  const PhiloxStream random(7, RngPurpose::kTest, 1);
  uint64_t draw = 0;
  for (const std::string name :
       {"rank_00000.safetensors", "rank_00001.safetensors", "manifest.json", "manifest.xxh3"}) {
    const fs::path path = scratch / "iter_0000003" / name;
    const std::string good = read_file(path);
    const SafetensorsFile* file = nullptr;
    std::optional<SafetensorsFile> opened;
    if (name.starts_with("rank")) {
      file = &opened.emplace(path);
    }
    for (int i = 0; i < 40; ++i) {
      std::string bad = good;
      const size_t position = random.below(draw++, good.size());
      bad[position] = static_cast<char>(bad[position] ^ (1U << random.below(draw++, 8)));
      write_text(path, bad);
      const std::string problem = load_problem(scratch.path(), num_ranks, 3, GetParam());
      EXPECT_THAT(problem, AllOf(HasSubstr(name.substr(0, 8)), HasSubstr("iter_0000003"))) << position;
      if (file != nullptr) {
        std::string expected = "header";
        for (const auto& [tensor_name, tensor] : file->tensors()) {
          if (position >= tensor.offset && position < tensor.offset + tensor.bytes) {
            expected = "\"" + tensor_name.substr(0, tensor_name.find('[')) + "\"";
          }
        }
        EXPECT_THAT(problem, AllOf(HasSubstr(expected), HasSubstr("expected hash"), HasSubstr("found"))) << position;
      }
    }
    write_text(path, good);
  }
  EXPECT_EQ(load_problem(scratch.path(), num_ranks, 3, GetParam()), "");
}

INSTANTIATE_TEST_SUITE_P(Grids, DamagedBytes, testing::Values(Grid::kPlain, Grid::kShared));

TEST(Checkpoint, TruncatedAndMissingFilesAreNamed) {
  ScratchDir scratch;
  save(scratch.path(), 2, 3);
  for (const std::string name :
       {"rank_00000.safetensors", "rank_00001.safetensors", "manifest.json", "manifest.xxh3"}) {
    const fs::path path = scratch / "iter_0000003" / name;
    const std::string good = read_file(path);
    for (const size_t kept : {size_t{0}, size_t{1}, good.size() / 2, good.size() - 1}) {
      fs::resize_file(path, kept);
      EXPECT_THAT(load_problem(scratch.path(), 2, 3), HasSubstr(name.substr(0, 8))) << kept;
    }
    fs::remove(path);
    EXPECT_THAT(load_problem(scratch.path(), 2, 3), AllOf(HasSubstr(name), HasSubstr("No such file")));
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    EXPECT_THAT(load_problem(scratch.path(), 2, 3), AllOf(HasSubstr(name), HasSubstr("not a regular file")));
    fs::remove(path);
    write_text(path, good);
  }
  EXPECT_THAT(load_problem(scratch.path(), 2, 4), HasSubstr("iter_0000004"));
  fs::rename(scratch / "iter_0000003", scratch / "iter_0000004");
  EXPECT_THAT(load_problem(scratch.path(), 2, 4), AllOf(HasSubstr("iteration 4"), HasSubstr("of 3")));
}

// Changes the manifest and gives it a right hash again, as only a bug or a person could.
void edit_manifest(const fs::path& set, const std::function<void(Manifest&)>& edit) {
  Manifest manifest = read_manifest(set, 3);
  edit(manifest);
  Storage storage;
  write_manifest(storage, set, manifest);
}

TEST(Checkpoint, MissingAndDoubleSlicesAreNamed) {
  for (const Grid grid : {Grid::kPlain, Grid::kShared}) {
    ScratchDir scratch;
    const fs::path set = scratch / "iter_0000003";
    const auto problem_after = [&](const std::function<void(std::vector<StoredSlice>&)>& edit) {
      save(scratch.path(), 4, 3, grid);
      edit_manifest(set, [&](Manifest& m) { edit(m.tensors.at("model/h.0.attn.c_proj.weight").slices); });
      EXPECT_EQ(find(scratch.path()), std::nullopt);
      return load_problem(scratch.path(), 2, 3);
    };
    const auto is_named = HasSubstr("\"model/h.0.attn.c_proj.weight\"");
    for (const int part : {0, 1, 3}) {
      EXPECT_THAT(problem_after([&](auto& slices) { slices.erase(slices.begin() + part); }),
                  AllOf(is_named, HasSubstr("missing")));
    }
    EXPECT_THAT(problem_after([](auto& slices) { slices.push_back(slices[2]); }),
                AllOf(is_named, HasSubstr("overlap")));
    EXPECT_THAT(problem_after([](auto& slices) { slices.clear(); }), AllOf(is_named, HasSubstr("missing")));
    EXPECT_THAT(problem_after([](auto& slices) { slices[1].offset = 1U << 20; }),
                AllOf(is_named, HasSubstr("outside")));
    EXPECT_THAT(problem_after([](auto& slices) { slices[1].file = "other"; }), AllOf(is_named, HasSubstr("other")));
    EXPECT_THAT(problem_after([](auto& slices) { slices[1].hashes.pop_back(); }), AllOf(is_named, HasSubstr("hashes")));
    EXPECT_THAT(problem_after([](auto& slices) { --slices[1].end; }), AllOf(is_named, HasSubstr("missing")));
    EXPECT_THAT(problem_after([](auto& slices) { ++slices[1].end; }), is_named);
    EXPECT_THAT(problem_after([](auto& slices) { slices[0].size += 1; }), is_named);
    EXPECT_THAT(problem_after([](auto& slices) { slices[0].size = -1; }), is_named);
    EXPECT_THAT(problem_after([](auto& slices) { slices.back().size = int64_t{1} << 62; }), is_named);
  }
}

// One float32 tensor per name, saved and loaded by one rank.
std::string load_as(const fs::path& directory, const std::vector<std::pair<std::string, Shape>>& tensors,
                    DType dtype = DType::kF32) {
  try {
    run_thread_ranks(1, [&](RankContext& rank) {
      std::vector<std::byte> memory(4096);
      std::vector<NamedSlice> slices;
      for (const auto& [name, shape] : tensors) {
        slices.push_back({name, ShardSpec::replicated(shape), {memory.data(), dtype, shape}});
      }
      load_checkpoint(rank, directory.string(), 1, slices);
    });
    return "";
  } catch (const Error& problem) {
    EXPECT_EQ(problem.code(), ErrorCode::kCheckpoint);
    return problem.what();
  }
}

TEST(Checkpoint, AnotherModelIsRefused) {
  ScratchDir scratch;
  run_thread_ranks(1, [&](RankContext& rank) {
    std::vector<float> memory(64);
    std::vector<NamedSlice> slices;
    for (const std::string name : {"model/a", "model/b", "adam_m/a", "adam_m/b"}) {
      slices.push_back({name, ShardSpec::replicated({4, 8}), view_of(memory.data(), {4, 8})});
    }
    save_checkpoint(rank, {scratch.path().string(), 1, slices}, nullptr);
  });
  EXPECT_EQ(load_as(scratch.path(), {{"model/a", {4, 8}}, {"model/b", {4, 8}}}), "");  // weights without moments
  EXPECT_THAT(load_as(scratch.path(), {{"model/a", {4, 8}}, {"model/b", {8, 4}}}),
              AllOf(HasSubstr("\"model/b\""), HasSubstr("[8,4]"), HasSubstr("[4,8]")));
  EXPECT_THAT(load_as(scratch.path(), {{"model/a", {4, 8}}, {"model/b", {32}}}), HasSubstr("\"model/b\""));
  EXPECT_THAT(load_as(scratch.path(), {{"model/a", {4, 8}}, {"model/b", {4, 8}}, {"model/c", {2}}}),
              AllOf(HasSubstr("\"model/c\""), HasSubstr("missing")));
  EXPECT_THAT(load_as(scratch.path(), {{"model/a", {4, 8}}}), AllOf(HasSubstr("\"model/b\""), HasSubstr("another")));
  EXPECT_THAT(load_as(scratch.path(), {{"model/a", {4, 8}}, {"model/b", {4, 8}}}, DType::kBF16),
              AllOf(HasSubstr("bf16"), HasSubstr("fp32")));
}

TEST(Checkpoint, ATensorThatNobodyOwnsOrTwoOwnFailsTheSave) {
  for (const bool owned : {false, true}) {
    ScratchDir scratch;
    std::string problem;
    try {
      run_thread_ranks(2, [&](RankContext& rank) {
        std::vector<float> memory(8);
        const std::vector<NamedSlice> slices = {
            {"model/a", ShardSpec::replicated({8}), view_of(memory.data(), {8}), owned}};
        save_checkpoint(rank, {scratch.path().string(), 1, slices}, nullptr);
      });
    } catch (const Error& error) {
      problem = error.what();
    }
    EXPECT_THAT(problem, HasSubstr("\"model/a\""));
    EXPECT_EQ(find(scratch.path()), std::nullopt);
    EXPECT_TRUE(fs::is_empty(scratch.path()));
  }
}

// A tied table: two holders on one rank, one of them the owner.
TEST(Checkpoint, ATensorHeldTwiceByOneRankIsFilledTwice) {
  ScratchDir scratch;
  run_thread_ranks(2, [&](RankContext& rank) {
    std::vector<float> first = {1, 2, 3};
    std::vector<float> second = {1, 2, 3};
    const ShardSpec shard = ShardSpec::split({6}, 0, rank.world.rank(), 2);
    const std::vector<NamedSlice> slices = {{"model/t", shard, view_of(first.data(), {3}), true},
                                            {"model/t", shard, view_of(second.data(), {3}), false}};
    save_checkpoint(rank, {scratch.path().string(), 1, slices}, nullptr);
    first = second = {0, 0, 0};
    load_checkpoint(rank, scratch.path().string(), 1, slices);
    EXPECT_EQ(first, (std::vector<float>{1, 2, 3}));
    EXPECT_EQ(second, first);
  });
}

TEST(Checkpoint, ASaveDirectoryIsProbedAtTheStart) {
  ScratchDir scratch;
  const auto probe = [&](const fs::path& directory) {
    run_thread_ranks(2, [&](RankContext& rank) {
      FakeModel model(rank.world.rank(), 2);
      check_save_directory(rank, directory.string(), model.slices());
    });
  };
  probe(scratch / "new" / "deep");
  EXPECT_TRUE(fs::is_empty(scratch / "new" / "deep"));
  write_text(scratch / "file", "");
  for (const fs::path& wrong : {scratch / "file", scratch / "file" / "below"}) {
    try {
      probe(wrong);
      FAIL() << wrong;
    } catch (const Error& error) {  // bytes would be no reason
      EXPECT_THAT(error.what(), AllOf(HasSubstr("cannot create directory " + wrong.string()), Not(HasSubstr("bytes"))));
    }
  }
}

}  // namespace
}  // namespace ashlar
