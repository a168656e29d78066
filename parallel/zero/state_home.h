// Where numbers lie that a rank touches once a step: in memory, or in files from which one chunk after another comes.
#pragma once

#include <array>
#include <filesystem>
#include <memory>
#include <vector>

#include "parallel/zero/flat_layout.h"
#include "runtime/comm/flight_recorder.h"
#include "runtime/disk/async_file.h"
#include "runtime/tensor/tensor.h"

namespace ashlar {

enum class HomeKind {
  kDevice,  // in the memory of the rank's device, with the rest: there is no home
  kHost,    // host memory, beside a GPU
  kFiles,
};

// Elements [begin, end) of what a rank owns, all of one layer.
struct StateChunk {
  int64_t begin = 0;
  int64_t end = 0;
  size_t layer = 0;         // of FlatLayout::layers
  bool ends_layer = false;  // the last of its layer

  int64_t num_elements() const { return end - begin; }
};

// Elements of a chunk at most: 4 MiB of fp32 of each kind keep a disk busy, and three chunks fit into any memory.
inline constexpr int64_t kChunkElements = int64_t{1} << 20;

// Pure. This rank's parts of all buckets with values, in order, in chunks of at most `most` elements.
std::vector<StateChunk> cut_chunks(const FlatLayout& layout, int64_t most = kChunkElements);

// Kinds of numbers that every owned element has: moments, masters.
struct HomeShape {
  std::vector<StateChunk> chunks;
  DType dtype = DType::kF32;
  int num_kinds = 0;

  int64_t num_elements() const { return chunks.empty() ? 0 : chunks.back().end; }
  int64_t largest_chunk() const;
};

// What a home takes of the host's memory and of the disk.
struct HomeBytes {
  int64_t host = 0;
  int64_t disk = 0;

  HomeBytes& operator+=(const HomeBytes& other);
  bool operator==(const HomeBytes&) const = default;
};
// Pure.
HomeBytes home_bytes(HomeKind kind, const HomeShape& shape);

// Starts with zeros. Chunks are brought one after another and in ascending order, or the order is slow; the last
// kNumSlots that were brought or asked for are in memory.
class StateHome {
 public:
  static constexpr size_t kNumSlots = 3;  // one is brought while one is changed and one goes back

  explicit StateHome(HomeShape shape) : shape_(std::move(shape)) {}
  virtual ~StateHome() = default;
  StateHome(const StateHome&) = delete;
  StateHome& operator=(const StateHome&) = delete;

  const HomeShape& shape() const { return shape_; }
  virtual HomeKind kind() const = 0;
  virtual std::string text() const = 0;  // for the log
  virtual int64_t disk_bytes() const { return 0; }

  // A chunk that will be brought next. Blocks the host only while its place holds one that is still being written.
  virtual void expect(size_t) {}
  // Blocks the host until the chunk is in memory: [n] of one kind, of the device's allocate_host().
  virtual TensorView bring(size_t chunk, int kind) = 0;
  // Behind all work on a chunk that was brought and changed.
  virtual void put_back(size_t) {}
  // Blocks the host until everything that was put back is there; throws what failed.
  virtual void flush() {}

 private:
  HomeShape shape_;
};

// Blocks the host. `what` names the use in the out-of-memory error.
std::unique_ptr<StateHome> make_host_home(Device& device, const HomeShape& shape, const std::string& what);

struct FileHomeOptions {
  std::filesystem::path directory;
  DiskFaults faults{};  // for tests
};
// Blocks the host. Waits for the disk end at the recorder's time, and when the job is ended.
std::unique_ptr<StateHome> make_file_home(Device& device, FlightRecorder& recorder, const HomeShape& shape,
                                          const FileHomeOptions& options, const std::string& what);

}  // namespace ashlar
