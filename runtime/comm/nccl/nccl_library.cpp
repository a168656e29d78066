#include "runtime/comm/nccl/nccl_library.h"

#include "runtime/base/dynamic_library.h"

namespace ashlar {
NcclLibrary load_nccl() {
  const DynamicLibrary library("libnccl.so.2", ASHLAR_NCCL_LIBRARY_DIR, "--distributed-backend nccl: NCCL",
                               "Put the folder of libnccl.so.2, version 2.19 or later, on LD_LIBRARY_PATH, or use "
                               "--distributed-backend staged");
  NcclLibrary table{};
  library.find(table.version, "ncclGetVersion");
  library.find(table.unique_id, "ncclGetUniqueId");
  library.find(table.error_text, "ncclGetErrorString");
  library.find(table.last_error, "ncclGetLastError");
  library.find(table.init, "ncclCommInitRankConfig");
  library.find(table.split, "ncclCommSplit");
  library.find(table.async_error, "ncclCommGetAsyncError");
  library.find(table.finalize, "ncclCommFinalize");
  library.find(table.destroy, "ncclCommDestroy");
  library.find(table.abort, "ncclCommAbort");
  library.find(table.group_start, "ncclGroupStart");
  library.find(table.group_end, "ncclGroupEnd");
  library.find(table.all_reduce, "ncclAllReduce");
  library.find(table.all_gather, "ncclAllGather");
  library.find(table.reduce_scatter, "ncclReduceScatter");
  library.find(table.broadcast, "ncclBroadcast");
  library.find(table.send, "ncclSend");
  library.find(table.receive, "ncclRecv");
  return table;
}

}  // namespace ashlar
