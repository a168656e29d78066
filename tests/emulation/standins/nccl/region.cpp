#include "tests/emulation/standins/nccl/region.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

namespace ashlar::standin {
namespace {

constexpr const char* kPrefix = "ashlar_nccl_";

constexpr size_t aligned(size_t bytes) {
  return (bytes + 63) / 64 * 64;
}

size_t cells_at() {
  return aligned(sizeof(RegionHead));
}
size_t mailboxes_at(size_t ranks) {
  return cells_at() + ranks * aligned(sizeof(RankCell));
}
size_t slots_at(size_t ranks) {
  return mailboxes_at(ranks) + ranks * ranks * aligned(sizeof(Mailbox));
}
size_t mail_at(size_t ranks) {
  return slots_at(ranks) + ranks * Region::kSlotBytes;
}

void futex(std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* timeout) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation, value, timeout, nullptr, 0);
}

const char* type_name(int32_t type) {
  switch (static_cast<ncclDataType_t>(type)) {
    case ncclFloat32:
      return "ncclFloat32";
    case ncclFloat64:
      return "ncclFloat64";
    case ncclBfloat16:
      return "ncclBfloat16";
    case ncclFloat16:
      return "ncclFloat16";
    case ncclInt32:
      return "ncclInt32";
    case ncclInt64:
      return "ncclInt64";
    case ncclUint8:
      return "ncclUint8";
    default:
      return "a type that the stand-in does not know";
  }
}

}  // namespace

const char* call_name(NcclCall call) {
  switch (call) {
    case NcclCall::kNone:
      return "nothing";
    case NcclCall::kAllReduce:
      return "ncclAllReduce";
    case NcclCall::kAllGather:
      return "ncclAllGather";
    case NcclCall::kReduceScatter:
      return "ncclReduceScatter";
    case NcclCall::kBroadcast:
      return "ncclBroadcast";
    case NcclCall::kSend:
      return "ncclSend";
    case NcclCall::kReceive:
      return "ncclRecv";
  }
  return "nothing";
}

std::string NcclOp::text() const {
  std::string text = std::string(call_name(call)) + " #" + std::to_string(number) + " of " + std::to_string(count) +
                     " " + type_name(type);
  if (call == NcclCall::kBroadcast) {
    text += " from rank " + std::to_string(root);
  } else if (call == NcclCall::kSend) {
    text += " to rank " + std::to_string(root);
  } else if (call == NcclCall::kReceive) {
    text += " from rank " + std::to_string(root);
  } else if (call != NcclCall::kAllGather) {
    text += reduce == ncclSum ? " (sum)" : reduce == ncclMax ? " (max)" : " (another reduction)";
  }
  return text;
}

Region::Region(const std::string& name, int num_ranks) : num_ranks_(num_ranks), name_("/" + name) {
  const auto ranks = static_cast<size_t>(num_ranks);
  bytes_ = mail_at(ranks) + ranks * ranks * kMailBytes;
  const int file = shm_open(name_.c_str(), O_RDWR | O_CREAT, 0600);
  struct stat found = {};
  const bool opened = file >= 0 && fstat(file, &found) == 0;
  // Never smaller: a rank that starts with another number of ranks is to be told so, not to take memory from the rest.
  if (!opened || (found.st_size < static_cast<off_t>(bytes_) && ftruncate(file, static_cast<off_t>(bytes_)) != 0)) {
    std::perror(("stand-in NCCL: shared memory " + name_).c_str());
    std::abort();
  }
  void* mapping = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (mapping == MAP_FAILED) {
    std::perror("stand-in NCCL: mmap");
    std::abort();
  }
  memory_ = static_cast<std::byte*>(mapping);
  if (head().num_attached.fetch_add(1) + 1 == num_ranks) {
    shm_unlink(name_.c_str());
  }
}

Region::~Region() {
  if (head().num_attached.load() < num_ranks_) {
    shm_unlink(name_.c_str());  // the others did not come, or not yet: they will not find this rank either
  }
  munmap(memory_, bytes_);
}

RankCell& Region::cell(int rank) {
  return *reinterpret_cast<RankCell*>(memory_ + cells_at() + static_cast<size_t>(rank) * aligned(sizeof(RankCell)));
}

Mailbox& Region::mailbox(int from, int to) {
  const auto ranks = static_cast<size_t>(num_ranks_);
  const size_t index = static_cast<size_t>(from) * ranks + static_cast<size_t>(to);
  return *reinterpret_cast<Mailbox*>(memory_ + mailboxes_at(ranks) + index * aligned(sizeof(Mailbox)));
}

std::byte* Region::slot(int rank) {
  return memory_ + slots_at(static_cast<size_t>(num_ranks_)) + static_cast<size_t>(rank) * kSlotBytes;
}

std::byte* Region::mail(int from, int to) {
  const auto ranks = static_cast<size_t>(num_ranks_);
  const size_t index = static_cast<size_t>(from) * ranks + static_cast<size_t>(to);
  return memory_ + mail_at(ranks) + index * kMailBytes;
}

void Region::changed() {
  head().changes.fetch_add(1);
  futex(head().changes, FUTEX_WAKE, INT_MAX, nullptr);
}

void Region::wait_for_change(uint32_t seen) {
  const timespec timeout{.tv_sec = 0, .tv_nsec = 20'000'000};
  futex(head().changes, FUTEX_WAIT, seen, &timeout);
}

void Region::fail(ncclResult_t error, const std::string& text) {
  int32_t expected = 0;
  if (head().error.compare_exchange_strong(expected, error)) {
    std::strncpy(head().error_text, text.c_str(), sizeof(head().error_text) - 1);
    head().error_written.store(1);
  }
  changed();
}

std::string new_region_name() {
  static std::atomic<int> count{0};
  return kPrefix + std::to_string(getpid()) + "_" + std::to_string(count.fetch_add(1)) + "_" +
         std::to_string(std::time(nullptr) % 100000);
}

void remove_stale_regions() {
  DIR* directory = opendir("/dev/shm");
  if (directory == nullptr) {
    return;
  }
  while (const dirent* entry = readdir(directory)) {
    if (std::strncmp(entry->d_name, kPrefix, std::strlen(kPrefix)) == 0) {
      const int pid = std::atoi(entry->d_name + std::strlen(kPrefix));
      if (pid > 0 && kill(pid, 0) != 0 && errno == ESRCH) {
        shm_unlink((std::string("/") + entry->d_name).c_str());
      }
    }
  }
  closedir(directory);
}

}  // namespace ashlar::standin
