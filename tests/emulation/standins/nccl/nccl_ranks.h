// Thread ranks that call NCCL as a program would, each on a device of its own.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/emulation/standins/cudart/standin.h"
#include "tests/emulation/standins/nccl/standin_nccl.h"

namespace ashlar::standin {

// Memory of the current device, whose values a test reads and writes directly once the host has waited.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(std::vector<T> values) : count_(values.size()) {
    EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&data_), count_ * sizeof(T)), cudaSuccess);
    std::copy(values.begin(), values.end(), data_);
  }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() const { return data_; }
  size_t count() const { return count_; }
  std::vector<T> values() const { return {data_, data_ + count_}; }

 private:
  size_t count_;
  T* data_ = nullptr;
};

struct NcclRank {
  int rank = 0;
  int size = 0;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;

  void synchronize() const { EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess); }
  ncclResult_t async_error() const {
    ncclResult_t error = ncclSuccess;
    EXPECT_EQ(ncclCommGetAsyncError(comm, &error), ncclSuccess);
    return error;
  }
  // Blocks the host until the communicator has another error than none (or than "in progress").
  ncclResult_t wait_for_error() const {
    for (int look = 0; look < 5000; ++look) {
      if (const ncclResult_t error = async_error(); error != ncclSuccess && error != ncclInProgress) {
        return error;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return ncclSuccess;
  }
};

inline cudaStream_t make_stream() {
  cudaStream_t stream = nullptr;
  EXPECT_EQ(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0), cudaSuccess);
  return stream;
}

// Runs `body` on every rank with a communicator of its own that is destroyed afterwards, unless the body has aborted it
// and set it to null.
inline void run_nccl_ranks(int size, const std::function<void(NcclRank&)>& body) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([=] {
      cudaSetDevice(rank);
      NcclRank me{.rank = rank, .size = size, .stream = make_stream()};
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.commName = "world";
      ASSERT_EQ(ncclCommInitRankConfig(&me.comm, size, id, rank, &config), ncclSuccess);
      body(me);
      if (me.comm != nullptr) {
        EXPECT_EQ(ncclCommDestroy(me.comm), ncclSuccess);
      }
      cudaStreamDestroy(me.stream);  // reports by itself what it does not like
    });
  }
}

inline std::string all_reports() {
  std::string text;
  for (const std::string& report : take_reports()) {
    text += report + "\n";
  }
  return text;
}

}  // namespace ashlar::standin
