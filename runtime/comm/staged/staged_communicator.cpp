#include "runtime/comm/staged/staged_communicator.h"

#include <algorithm>

#include "runtime/comm/flight_recorder.h"
#include "runtime/comm/staged/staged.h"

namespace ashlar {
namespace {

constexpr const char* kHostSuffix = " (host)";
constexpr uint64_t kCollective = 0;  // the ticket of all collectives; exchanges count from 1

// The recorder keeps this group beside that of the host communicator, whose operations are the pieces of this one's.
uint64_t staged_id(const Communicator& host) {
  return host.group_id() * 0x9E3779B97F4A7C15ull | 1;
}

}  // namespace

std::unique_ptr<Communicator> make_staged(Communicator& host, Device& device, size_t staging_bytes) {
  return std::make_unique<StagedCommunicator>(host.split(0, host.rank(), host.name() + kHostSuffix),
                                              std::make_shared<Staging>(device, staging_bytes), host.name());
}

StagedCommunicator::StagedCommunicator(std::unique_ptr<Communicator> host, std::shared_ptr<Staging> staging,
                                       const std::string& name)
    : Communicator(name, host->rank(), {host->world_ranks().begin(), host->world_ranks().end()}, staged_id(*host),
                   host->recorder(), GroupKind::kBlocking),
      host_(std::move(host)),
      staging_(std::move(staging)),
      host_stream_(host_device_.create_stream()),
      stream_(staging_->device().create_stream(StreamPriority::kCommunication)),
      collectives_done_(staging_->device().create_event()) {
  for (Batch& batch : batches_) {
    batch.legs.reserve(1);
    batch.posted = staging_->device().create_event();
    batch.done = staging_->device().create_event();
  }
}

// Copies that other streams still make use the blocks, and blocks of messages under way belong to the host
// communicator: it goes first.
StagedCommunicator::~StagedCommunicator() {
  try {
    collectives_done_->synchronize();
    for (const Batch& batch : batches_) {
      batch.done->synchronize();
      batch.posted->synchronize();
    }
  } catch (const std::exception&) {
    // The device has failed, and whoever uses it next is told.
  }
  host_.reset();
}

// A collective over `num_elements` that each need `element_bytes` of a chunk. down(begin, end, data) enqueues the
// copies to the host, carry(begin, end, data) runs the host's collective, up(begin, end, data) enqueues the copies
// back. The next chunk is on its way down while the host works on this one.
template <typename Down, typename Carry, typename Up>
Work StagedCommunicator::in_chunks(int64_t num_elements, size_t element_bytes, Stream& after, Down&& down,
                                   Carry&& carry, Up&& up) {
  const auto capacity = static_cast<int64_t>(staging_->chunk_bytes() / element_bytes);
  DCHECK(capacity > 0, "group \"{}\" needs more than {} bytes of staging", name(), staging_->chunk_bytes());
  const int64_t num_chunks = std::max<int64_t>(1, (num_elements + capacity - 1) / capacity);
  const auto start = [&](int64_t number) {
    StagingBlock& chunk = staging_->chunk(static_cast<size_t>(number));
    after.wait(*chunk.last_use);
    down(number * capacity, std::min(num_elements, (number + 1) * capacity), chunk.data());
    after.record(*chunk.last_use);
  };
  start(0);
  for (int64_t number = 0; number < num_chunks; ++number) {
    StagingBlock& chunk = staging_->chunk(static_cast<size_t>(number));
    if (number + 1 < num_chunks) {
      start(number + 1);
    }
    chunk.last_use->synchronize();
    const int64_t begin = number * capacity;
    const int64_t end = std::min(num_elements, begin + capacity);
    carry(begin, end, chunk.data());
    up(begin, end, chunk.data());
    after.record(*chunk.last_use);
  }
  after.record(*collectives_done_);
  recorder().finish(record_slot(), current_op());  // the peers have done their part; copies of this device remain
  return {this, kCollective};
}

Work StagedCommunicator::do_all_reduce(TensorView x, ReduceOp op, Stream& after) {
  const size_t bytes = dtype_bytes(x.dtype);
  std::byte* const data = x.data;
  const auto offset = [bytes](int64_t element) { return static_cast<size_t>(element) * bytes; };
  return in_chunks(
      x.num_elements(), bytes, after,
      [&](int64_t begin, int64_t end, std::byte* chunk) {
        after.copy(chunk, data + offset(begin), offset(end - begin));
      },
      [&](int64_t begin, int64_t end, std::byte* chunk) {
        host_->all_reduce({chunk, x.dtype, {end - begin}}, op, *host_stream_).wait_host();
      },
      [&](int64_t begin, int64_t end, std::byte* chunk) {
        after.copy(data + offset(begin), chunk, offset(end - begin));
      });
}

Work StagedCommunicator::do_broadcast(TensorView x, int root, Stream& after) {
  const size_t bytes = x.bytes();
  const auto count = [](int64_t begin, int64_t end) { return static_cast<size_t>(end - begin); };
  return in_chunks(
      static_cast<int64_t>(bytes), 1, after,
      [&](int64_t begin, int64_t end, std::byte* chunk) {
        if (rank() == root) {
          after.copy(chunk, x.data + begin, count(begin, end));
        }
      },
      [&](int64_t begin, int64_t end, std::byte* chunk) {
        host_->broadcast({chunk, DType::kU8, {end - begin}}, root, *host_stream_).wait_host();
      },
      [&](int64_t begin, int64_t end, std::byte* chunk) {
        if (rank() != root) {
          after.copy(x.data + begin, chunk, count(begin, end));
        }
      });
}

Work StagedCommunicator::do_all_gather(TensorView out, ConstTensorView in, Stream& after) {
  const size_t bytes = dtype_bytes(in.dtype);
  const auto members = static_cast<size_t>(size());
  const int64_t part = in.num_elements();
  const auto offset = [bytes](int64_t element) { return static_cast<size_t>(element) * bytes; };
  // A chunk holds the same elements of all members, one member after the other.
  return in_chunks(
      part, bytes * members, after,
      [&](int64_t begin, int64_t end, std::byte* chunk) {
        after.copy(chunk + static_cast<size_t>(rank()) * offset(end - begin), in.data + offset(begin),
                   offset(end - begin));
      },
      [&](int64_t begin, int64_t end, std::byte* chunk) {
        const int64_t length = end - begin;
        const TensorView all{chunk, in.dtype, {size() * length}};
        host_->all_gather(all, all.slice(rank() * length, (rank() + 1) * length), *host_stream_).wait_host();
      },
      [&](int64_t begin, int64_t end, std::byte* chunk) {
        for (size_t member = 0; member < members; ++member) {
          after.copy(out.data + member * offset(part) + offset(begin), chunk + member * offset(end - begin),
                     offset(end - begin));
        }
      });
}

Work StagedCommunicator::do_reduce_scatter(TensorView out, ConstTensorView in, ReduceOp op, Stream& after) {
  const size_t bytes = dtype_bytes(in.dtype);
  const auto members = static_cast<size_t>(size());
  const int64_t part = out.num_elements();
  const auto offset = [bytes](int64_t element) { return static_cast<size_t>(element) * bytes; };
  const auto own = [&](int64_t length, std::byte* chunk) {
    return TensorView{chunk, in.dtype, {size() * length}}.slice(rank() * length, (rank() + 1) * length);
  };
  return in_chunks(
      part, bytes * members, after,
      [&](int64_t begin, int64_t end, std::byte* chunk) {
        for (size_t member = 0; member < members; ++member) {
          after.copy(chunk + member * offset(end - begin), in.data + member * offset(part) + offset(begin),
                     offset(end - begin));
        }
      },
      [&](int64_t begin, int64_t end, std::byte* chunk) {
        const ConstTensorView all{chunk, in.dtype, {size() * (end - begin)}};
        host_->reduce_scatter(own(end - begin, chunk), all, op, *host_stream_).wait_host();
      },
      [&](int64_t begin, int64_t end, std::byte* chunk) {
        after.copy(out.data + offset(begin), own(end - begin, chunk).data, offset(end - begin));
      });
}

Work StagedCommunicator::do_exchange(std::span<const Transfer> transfers, Stream& after) {
  const uint64_t ticket = current_op().number;
  Batch& batch = batch_of(ticket);
  if (!batch.finished) {
    finish(batch, *stream_);  // its place in the ring is needed
  }
  batch.ticket = ticket;
  batch.finished = false;
  transfers_.clear();
  bool sends = false;
  for (const Transfer& transfer : transfers) {
    std::unique_ptr<StagingBlock> block = staging_->take(transfer.data.bytes());
    const bool is_send = transfer.direction == Transfer::Direction::kSend;
    if (is_send) {
      after.wait(*block->last_use);
      after.copy(block->data(), transfer.data.data, transfer.data.bytes());
    } else {
      block->last_use->synchronize();  // the peer writes whenever it comes
    }
    sends = sends || is_send;
    transfers_.push_back(transfer);
    transfers_.back().data.data = block->data();
    batch.legs.push_back({std::move(block), is_send ? TensorView{} : transfer.data});
  }
  after.record(*batch.posted);
  if (sends) {
    batch.posted->synchronize();
  }
  batch.work = host_->exchange(transfers_, *host_stream_);
  return {this, ticket};
}

// Waits for the peers, then enqueues the way up of what was received.
void StagedCommunicator::finish(Batch& batch, Stream& stream) {
  batch.work.wait_host();
  stream.wait(*batch.posted);
  for (Leg& leg : batch.legs) {
    if (leg.target.bytes() > 0 && leg.target.data != nullptr) {
      stream.copy(leg.target.data, leg.block->data(), leg.target.bytes());
    }
    stream.record(*leg.block->last_use);
    staging_->give_back(std::move(leg.block));
  }
  batch.legs.clear();
  stream.record(*batch.done);
  batch.finished = true;
  recorder().finish(record_slot(), {.number = batch.ticket, .kind = OpKind::kExchange});
}

void StagedCommunicator::wait_stream(uint64_t ticket, Stream& stream) {
  if (ticket == kCollective) {
    stream.wait(*collectives_done_);
    return;
  }
  Batch& batch = batch_of(ticket);
  if (batch.ticket == ticket && !batch.finished) {
    finish(batch, stream);
  } else {
    stream.wait(*batch.done);  // of a later exchange, where the ring has gone round: it covers this one
  }
}

void StagedCommunicator::wait_host(uint64_t ticket) {
  wait_stream(ticket, *stream_);
  stream_->synchronize();
}

std::unique_ptr<Communicator> StagedCommunicator::do_split(int color, int key, const std::string& name) {
  std::unique_ptr<Communicator> part = host_->split(color, key, name + kHostSuffix);
  if (part == nullptr) {
    return nullptr;
  }
  return std::make_unique<StagedCommunicator>(std::move(part), staging_, name);
}

}  // namespace ashlar
