#include "parallel/zero/state_home.h"

#include <algorithm>

#include "runtime/comm/wait_reached.h"

namespace ashlar {
namespace {

size_t padded(int64_t elements, DType dtype) {
  constexpr size_t kUnit = AsyncFile::kAlignment;
  return (static_cast<size_t>(elements) * dtype_bytes(dtype) + kUnit - 1) / kUnit * kUnit;
}

// Places of chunks that are in memory, and what it takes to begin them at a multiple of the file's alignment.
size_t slots_bytes(const HomeShape& shape) {
  const auto kinds = static_cast<size_t>(shape.num_kinds);
  return StateHome::kNumSlots * kinds * padded(shape.largest_chunk(), shape.dtype) + AsyncFile::kAlignment;
}

uint64_t file_bytes(const HomeShape& shape) {
  uint64_t bytes = 0;
  for (const StateChunk& chunk : shape.chunks) {
    bytes += static_cast<size_t>(shape.num_kinds) * padded(chunk.num_elements(), shape.dtype);
  }
  return bytes;
}

// Kind after kind, each one flat range.
class HostHome final : public StateHome {
 public:
  HostHome(Device& device, const HomeShape& home_shape, const std::string& what)
      : StateHome(home_shape),
        memory_(device.allocate_host(static_cast<size_t>(home_bytes(HomeKind::kHost, home_shape).host), what,
                                     MemoryItem::kOptimizer)) {
    std::fill_n(memory_.data(), memory_.bytes(), std::byte{0});
  }

  HomeKind kind() const override { return HomeKind::kHost; }
  std::string text() const override { return "host memory"; }

  TensorView bring(size_t chunk, int kind) override {
    const StateChunk& at = shape().chunks[chunk];
    const int64_t first = kind * shape().num_elements() + at.begin;
    return {
        memory_.data() + static_cast<size_t>(first) * dtype_bytes(shape().dtype), shape().dtype, {at.num_elements()}};
  }

 private:
  Buffer memory_;
};

// Chunk after chunk, each with its kinds one after another, so that a chunk is one request. Chunk c has slot c modulo
// kNumSlots, so the requests on the bytes of a chunk are those of its slot.
class FileHome final : public StateHome {
 public:
  FileHome(Device& device, FlightRecorder& recorder, const HomeShape& home_shape, const FileHomeOptions& options,
           const std::string& what)
      : StateHome(home_shape), memory_(device.allocate_host(slots_bytes(home_shape), what, MemoryItem::kOptimizer)) {
    uint64_t offset = 0;
    for (size_t chunk = 0; chunk < home_shape.chunks.size(); ++chunk) {
      offsets_.push_back(offset);
      offset += chunk_bytes(chunk);
    }
    const auto address = reinterpret_cast<uintptr_t>(memory_.data());
    constexpr size_t kUnit = AsyncFile::kAlignment;
    std::byte* const first = memory_.data() + (kUnit - address % kUnit) % kUnit;
    const size_t slot_bytes =
        static_cast<size_t>(home_shape.num_kinds) * padded(home_shape.largest_chunk(), home_shape.dtype);
    std::fill_n(memory_.data(), memory_.bytes(), std::byte{0});  // padding is written too
    for (size_t at = 0; at < kNumSlots; ++at) {
      slots_[at].data = first + at * slot_bytes;
    }
    std::unique_ptr<IoQueue> queue = open_io_queue();
    if (options.faults.fail_after >= 0) {
      queue = make_faulty_queue(std::move(queue), options.faults);
    }
    file_.emplace(options.directory, file_bytes(home_shape), std::move(queue),
                  AsyncFileOptions{.deadline_seconds = recorder.timeout_seconds(),
                                   .keep_waiting = [&recorder] { check_job_runs(recorder); }});
  }

  HomeKind kind() const override { return HomeKind::kFiles; }
  int64_t disk_bytes() const override { return static_cast<int64_t>(file_->bytes()); }
  std::string text() const override {
    return fmt::format("{} bytes in {} (it has no name any more; {})", file_->bytes(), file_->path().string(),
                       file_->how());
  }

  void expect(size_t chunk) override {
    Slot& slot = slot_of(chunk);
    if (slot.chunk == chunk) {
      return;
    }
    finish(slot);
    slot.chunk = chunk;
    slot.request = file_->start_read(offsets_[chunk], slot.data, chunk_bytes(chunk));
  }

  TensorView bring(size_t chunk, int kind) override {
    expect(chunk);
    Slot& slot = slot_of(chunk);
    finish(slot);
    const int64_t count = shape().chunks[chunk].num_elements();
    return {slot.data + static_cast<size_t>(kind) * padded(count, shape().dtype), shape().dtype, {count}};
  }

  void put_back(size_t chunk) override {
    Slot& slot = slot_of(chunk);
    DCHECK(slot.chunk == chunk, "chunk {} goes back, its slot holds {}", chunk, slot.chunk);
    finish(slot);
    slot.request = file_->start_write(offsets_[chunk], slot.data, chunk_bytes(chunk));
  }

  void flush() override {
    std::ranges::for_each(slots_, [this](Slot& slot) { finish(slot); });
  }

 private:
  static constexpr size_t kNothing = ~size_t{0};
  struct Slot {
    std::byte* data = nullptr;
    size_t chunk = kNothing;
    AsyncFile::Request request = 0;  // the last one, 0 when it was waited for
  };

  Slot& slot_of(size_t chunk) { return slots_[chunk % kNumSlots]; }

  size_t chunk_bytes(size_t chunk) const {
    return static_cast<size_t>(shape().num_kinds) * padded(shape().chunks[chunk].num_elements(), shape().dtype);
  }

  void finish(Slot& slot) {
    if (slot.request != 0) {
      file_->wait(slot.request);
      slot.request = 0;
    }
  }

  Buffer memory_;  // outlives the file, which may still read and write it
  std::vector<uint64_t> offsets_;
  std::array<Slot, kNumSlots> slots_;
  std::optional<AsyncFile> file_;
};

}  // namespace

std::vector<StateChunk> cut_chunks(const FlatLayout& layout, int64_t most) {
  std::vector<StateChunk> chunks;
  const int64_t shards = layout.sharding.num_shards;
  for (size_t layer = 0; layer < layout.layers.size(); ++layer) {
    for (size_t at = layout.layers[layer].first_bucket; at < layout.layers[layer].end_bucket; ++at) {
      const FlatBucket& bucket = layout.buckets[at];
      for (int64_t begin = bucket.begin / shards; bucket.has_value && begin < bucket.end / shards; begin += most) {
        chunks.push_back({.begin = begin, .end = std::min(begin + most, bucket.end / shards), .layer = layer});
      }
    }
  }
  for (size_t at = 0; at < chunks.size(); ++at) {
    chunks[at].ends_layer = at + 1 == chunks.size() || chunks[at + 1].layer != chunks[at].layer;
  }
  return chunks;
}

int64_t HomeShape::largest_chunk() const {
  int64_t most = 0;
  for (const StateChunk& chunk : chunks) {
    most = std::max(most, chunk.num_elements());
  }
  return most;
}

HomeBytes& HomeBytes::operator+=(const HomeBytes& other) {
  host += other.host;
  disk += other.disk;
  return *this;
}

HomeBytes home_bytes(HomeKind kind, const HomeShape& shape) {
  if (kind == HomeKind::kFiles) {
    return {.host = static_cast<int64_t>(slots_bytes(shape)), .disk = static_cast<int64_t>(file_bytes(shape))};
  }
  const int64_t bytes = shape.num_kinds * shape.num_elements() * static_cast<int64_t>(dtype_bytes(shape.dtype));
  return {.host = kind == HomeKind::kHost ? bytes : 0};
}

std::unique_ptr<StateHome> make_host_home(Device& device, const HomeShape& shape, const std::string& what) {
  return std::make_unique<HostHome>(device, shape, what);
}

std::unique_ptr<StateHome> make_file_home(Device& device, FlightRecorder& recorder, const HomeShape& shape,
                                          const FileHomeOptions& options, const std::string& what) {
  return std::make_unique<FileHome>(device, recorder, shape, options, what);
}

}  // namespace ashlar
