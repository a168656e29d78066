#include "runtime/comm/mpi/mpi_world.h"

#include <unistd.h>

#include "runtime/comm/host/message_rounds.h"
#include "runtime/comm/mpi/mpi_check.h"
#include "runtime/comm/mpi/mpi_messenger.h"

namespace ashlar {

MpiWorld::MpiWorld(Carrier carrier) : carrier_(carrier) {
  comm_ = duplicate(MPI_COMM_WORLD);
  MPI_Comm_rank(comm_, &rank_);
  MPI_Comm_size(comm_, &size_);
  mpi_check(MPI_Comm_split_type(comm_, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &host_comm_), "MPI_Comm_split_type");
  comms_.push_back(host_comm_);
  MPI_Comm_size(host_comm_, &ranks_on_host_);

  MPI_Comm_rank(host_comm_, &host_rank_);
  int leader = rank_;
  mpi_check(MPI_Bcast(&leader, 1, MPI_INT, 0, host_comm_), "MPI_Bcast");
  hosts_.resize(static_cast<size_t>(size_));
  mpi_check(MPI_Allgather(&leader, 1, MPI_INT, hosts_.data(), 1, MPI_INT, comm_), "MPI_Allgather");

  MPI_Win window = MPI_WIN_NULL;
  allocate_shared(host_comm_, host_rank_ == 0 ? StatusBoard::region_bytes(size_) : 0, window);
  MPI_Aint bytes = 0;
  int unit = 0;
  void* region = nullptr;
  mpi_check(MPI_Win_shared_query(window, 0, &bytes, &unit, &region), "MPI_Win_shared_query");
  board_ = std::make_unique<StatusBoard>(static_cast<std::byte*>(region), size_, host_rank_ == 0);
  mpi_check(MPI_Barrier(host_comm_), "MPI_Barrier");
  board_->mine(rank_).pid.store(static_cast<int32_t>(getpid()));
}

std::byte* MpiWorld::allocate_shared(MPI_Comm comm, size_t bytes, MPI_Win& window) {
  void* data = nullptr;
  mpi_check(MPI_Win_allocate_shared(static_cast<MPI_Aint>(bytes), 1, MPI_INFO_NULL, comm, &data, &window),
            "MPI_Win_allocate_shared (is /dev/shm full?)");
  windows_.push_back(window);
  return static_cast<std::byte*>(data);
}

MPI_Comm MpiWorld::duplicate(MPI_Comm comm) {
  MPI_Comm copy = MPI_COMM_NULL;
  mpi_check(MPI_Comm_dup(comm, &copy), "MPI_Comm_dup");
  MPI_Comm_set_errhandler(copy, MPI_ERRORS_RETURN);
  comms_.push_back(copy);
  return copy;
}

MPI_Comm MpiWorld::make_comm(const GroupInfo& group) {
  MPI_Group world_group = MPI_GROUP_NULL;
  MPI_Group members = MPI_GROUP_NULL;
  MPI_Comm comm = MPI_COMM_NULL;
  mpi_check(MPI_Comm_group(comm_, &world_group), "MPI_Comm_group");
  mpi_check(MPI_Group_incl(world_group, group.size(), group.world_ranks.data(), &members), "MPI_Group_incl");
  constexpr uint64_t kTagMask = 0x7fff;
  mpi_check(MPI_Comm_create_group(comm_, members, static_cast<int>(group.id & kTagMask), &comm),
            "MPI_Comm_create_group");
  MPI_Group_free(&members);
  MPI_Group_free(&world_group);
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  comms_.push_back(comm);
  return comm;
}

SharedRegion MpiWorld::make_region(MPI_Comm comm, int size) {
  MPI_Win window = MPI_WIN_NULL;
  RegionRounds::initialize_block(allocate_shared(comm, RegionRounds::block_bytes(RegionRounds::kBufferBytes), window));
  SharedRegion region;
  for (int member = 0; member < size; ++member) {
    MPI_Aint bytes = 0;
    int unit = 0;
    void* block = nullptr;
    mpi_check(MPI_Win_shared_query(window, member, &bytes, &unit, &block), "MPI_Win_shared_query");
    region.blocks.push_back(static_cast<std::byte*>(block));
  }
  mpi_check(MPI_Barrier(comm), "MPI_Barrier");  // all blocks are initialized
  return region;
}

bool MpiWorld::on_one_host(const GroupInfo& group) const {
  for (const int member : group.world_ranks) {
    if (hosts_[static_cast<size_t>(member)] != hosts_[static_cast<size_t>(rank_)]) {
      return false;
    }
  }
  return true;
}

void MpiWorld::free_all() {
  for (MPI_Win& window : windows_) {
    MPI_Win_free(&window);
  }
  for (MPI_Comm& comm : comms_) {
    MPI_Comm_free(&comm);
  }
}

GroupParts MpiRank::make_group(const GroupInfo& group) {
  // The members have just met (in the split that makes this group, or in MPI_Init), so MPI's own collectives, which
  // have no deadline, do not wait for long.
  GroupParts parts;
  const MPI_Comm comm = world_.make_comm(group);
  parts.messenger = std::make_unique<MpiMessenger>(*this, group, comm);
  if (group.size() == 1) {
    return parts;
  }
  if (world_.carrier() == Carrier::kRegion && world_.on_one_host(group)) {
    parts.rounds = std::make_unique<RegionRounds>(*this, group, world_.make_region(comm, group.size()),
                                                  RegionRounds::kBufferBytes);
  } else {
    parts.rounds = std::make_unique<MessageRounds>(
        *this, group, std::make_unique<MpiMessenger>(*this, group, world_.duplicate(comm)), RegionRounds::kBufferBytes);
  }
  return parts;
}

void MpiRank::progress() {
  int found = 0;
  MPI_Status status;
  MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, world_.comm(), &found, &status);  // any call moves all messages on
}

void MpiRank::abort(int exit_status) noexcept {
  MPI_Abort(world_.comm(), exit_status);
}

}  // namespace ashlar
