#include "runtime/comm/nccl/nccl_library.h"

#include <dlfcn.h>

#include <string>

#include "runtime/base/error.h"

namespace ashlar {
namespace {

// The loader's own search first (LD_LIBRARY_PATH, the program's run path), then where it was when this was built. Never
// closed: the library has threads of its own.
void* open_library() {
  constexpr const char* kName = "libnccl.so.2";
  if (void* library = dlopen(kName, RTLD_NOW | RTLD_LOCAL); library != nullptr) {
    return library;
  }
  const char* loader_text = dlerror();
  const std::string why = loader_text == nullptr ? "" : loader_text;
  void* library = dlopen((std::string(ASHLAR_NCCL_LIBRARY_DIR) + "/" + kName).c_str(), RTLD_NOW | RTLD_LOCAL);
  REQUIRE(library != nullptr, ErrorCode::kUsage,
          "--distributed-backend nccl: NCCL does not load: {}. Put the folder of {} on LD_LIBRARY_PATH, or use "
          "--distributed-backend staged",
          why, kName);
  return library;
}

template <typename Function>
void find(Function*& function, void* library, const char* name) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  REQUIRE(function != nullptr, ErrorCode::kUsage,
          "--distributed-backend nccl: the NCCL that was loaded has no {}; version 2.19 or later is needed", name);
}

}  // namespace

NcclLibrary load_nccl() {
  void* const library = open_library();
  NcclLibrary table{};
  find(table.version, library, "ncclGetVersion");
  find(table.unique_id, library, "ncclGetUniqueId");
  find(table.error_text, library, "ncclGetErrorString");
  find(table.last_error, library, "ncclGetLastError");
  find(table.init, library, "ncclCommInitRankConfig");
  find(table.split, library, "ncclCommSplit");
  find(table.async_error, library, "ncclCommGetAsyncError");
  find(table.finalize, library, "ncclCommFinalize");
  find(table.destroy, library, "ncclCommDestroy");
  find(table.abort, library, "ncclCommAbort");
  find(table.group_start, library, "ncclGroupStart");
  find(table.group_end, library, "ncclGroupEnd");
  find(table.all_reduce, library, "ncclAllReduce");
  find(table.all_gather, library, "ncclAllGather");
  find(table.reduce_scatter, library, "ncclReduceScatter");
  find(table.broadcast, library, "ncclBroadcast");
  find(table.send, library, "ncclSend");
  find(table.receive, library, "ncclRecv");
  return table;
}

}  // namespace ashlar
