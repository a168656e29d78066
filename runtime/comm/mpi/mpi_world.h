// This process in an MPI job: which ranks share its host, the status board in their shared window, and the windows and
// communicators of the groups.
#pragma once

#include <mpi.h>

#include <memory>
#include <vector>

#include "runtime/comm/host/carrier.h"
#include "runtime/comm/host/host_rank.h"
#include "runtime/comm/host/region_rounds.h"

namespace ashlar {

class MpiWorld {
 public:
  // Collective over the job. Between MPI_Init and MPI_Finalize.
  explicit MpiWorld(Carrier carrier);
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  int ranks_on_host() const { return ranks_on_host_; }
  int host_rank() const { return host_rank_; }
  Carrier carrier() const { return carrier_; }
  StatusBoard& board() { return *board_; }
  MPI_Comm comm() const { return comm_; }

  // Collective among the members.
  MPI_Comm make_comm(const GroupInfo& group);
  MPI_Comm duplicate(MPI_Comm comm);
  SharedRegion make_region(MPI_Comm comm, int size);
  bool on_one_host(const GroupInfo& group) const;

  // Collective over the job, at its orderly end. Windows and communicators live until here: freeing them is collective
  // too, and a rank that unwinds after an error must not wait for peers that never come.
  void free_all();

 private:
  std::byte* allocate_shared(MPI_Comm comm, size_t bytes, MPI_Win& window);

  Carrier carrier_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  MPI_Comm host_comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 0;
  int ranks_on_host_ = 1;
  int host_rank_ = 0;
  std::vector<int> hosts_;  // by world rank: the lowest world rank on the same host
  std::vector<MPI_Comm> comms_;
  std::vector<MPI_Win> windows_;
  std::unique_ptr<StatusBoard> board_;
};

class MpiRank final : public HostRank {
 public:
  MpiRank(MpiWorld& world, FlightRecorder& recorder) : HostRank(recorder), world_(world) {}

  GroupParts make_group(const GroupInfo& group) override;
  void progress() override;
  void abort(int exit_status) noexcept override;

 private:
  MpiWorld& world_;
};

}  // namespace ashlar
