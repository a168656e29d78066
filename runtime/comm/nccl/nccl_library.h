// The calls of NCCL that this runtime makes, as a table. Includes NCCL's header. nccl_library.cpp opens the library
// when the first communicator is made: linked the usual way it would cost every program 200 MB of mapped memory at its
// start, and a program could not start where it is missing. Emulated builds link a stand-in instead.
#pragma once

#include <nccl.h>

namespace ashlar {

struct NcclLibrary {
  decltype(&::ncclGetVersion) version;
  decltype(&::ncclGetUniqueId) unique_id;
  decltype(&::ncclGetErrorString) error_text;
  decltype(&::ncclGetLastError) last_error;
  decltype(&::ncclCommInitRankConfig) init;
  decltype(&::ncclCommSplit) split;
  decltype(&::ncclCommGetAsyncError) async_error;
  decltype(&::ncclCommFinalize) finalize;
  decltype(&::ncclCommDestroy) destroy;
  decltype(&::ncclCommAbort) abort;
  decltype(&::ncclGroupStart) group_start;
  decltype(&::ncclGroupEnd) group_end;
  decltype(&::ncclAllReduce) all_reduce;
  decltype(&::ncclAllGather) all_gather;
  decltype(&::ncclReduceScatter) reduce_scatter;
  decltype(&::ncclBroadcast) broadcast;
  decltype(&::ncclSend) send;
  decltype(&::ncclRecv) receive;
};

// Blocks the host. Throws kUsage where the library is not found or lacks a call.
NcclLibrary load_nccl();

// The oldest version whose calls are all there: 2.19 (ncclCommSplit came with 2.18, a commName with 2.27).
inline constexpr int kOldestNccl = NCCL_VERSION(2, 19, 0);
// Since 2.26 operations of several communicators may run at once, when one thread issues them in the same order on all
// ranks and NCCL_LAUNCH_ORDER_IMPLICIT is set.
inline constexpr int kConcurrentNccl = NCCL_VERSION(2, 26, 0);

}  // namespace ashlar
