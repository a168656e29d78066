// The stand-in instead of the library that runtime/comm/nccl/nccl_library.cpp would open.
#include "runtime/comm/nccl/nccl_library.h"

namespace ashlar {

NcclLibrary load_nccl() {
  return {.version = ncclGetVersion,
          .unique_id = ncclGetUniqueId,
          .error_text = ncclGetErrorString,
          .last_error = ncclGetLastError,
          .init = ncclCommInitRankConfig,
          .split = ncclCommSplit,
          .async_error = ncclCommGetAsyncError,
          .finalize = ncclCommFinalize,
          .destroy = ncclCommDestroy,
          .abort = ncclCommAbort,
          .group_start = ncclGroupStart,
          .group_end = ncclGroupEnd,
          .all_reduce = ncclAllReduce,
          .all_gather = ncclAllGather,
          .reduce_scatter = ncclReduceScatter,
          .broadcast = ncclBroadcast,
          .send = ncclSend,
          .receive = ncclRecv};
}

}  // namespace ashlar
