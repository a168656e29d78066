#include "tests/gpu/bench.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "kernels/matmul.h"
#include "kernels/prepare.h"
#include "runtime/base/rng.h"
#include "runtime/device/cuda/cuda_device.h"
#include "tests/gpu/gpu_timer.h"

namespace ashlar {
namespace {

constexpr size_t kStagingBytes = size_t{16} << 20;

void put(std::byte* to, DType dtype, int64_t i, float value) {
  switch (dtype) {
    case DType::kBF16:
      reinterpret_cast<BFloat16*>(to)[i] = to_bf16(value);
      return;
    case DType::kF16:
      reinterpret_cast<Float16*>(to)[i] = to_f16(value);
      return;
    case DType::kF64:
      reinterpret_cast<double*>(to)[i] = static_cast<double>(value);
      return;
    default:
      reinterpret_cast<float*>(to)[i] = value;
  }
}

float get(const std::byte* from, DType dtype, int64_t i) {
  switch (dtype) {
    case DType::kBF16:
      return to_float(reinterpret_cast<const BFloat16*>(from)[i]);
    case DType::kF16:
      return to_float(reinterpret_cast<const Float16*>(from)[i]);
    case DType::kF64:
      return static_cast<float>(reinterpret_cast<const double*>(from)[i]);
    default:
      return reinterpret_cast<const float*>(from)[i];
  }
}

}  // namespace

Bench::Bench(bool tiny)
    : tiny_(tiny),
      device_(make_cuda_device(0)),
      stream_(stream_with(kernels::GemmKind::kCublasLt)),
      staging_(device_->allocate_host(kStagingBytes, "staging")),
      flushed_(device_->allocate(tiny ? size_t{1} << 12 : size_t{256} << 20, "what flushes the caches")),
      normals_(tiny ? 4093 : (1 << 22) - 3) {  // an odd period, so that rows do not repeat
  PhiloxStream(1, RngPurpose::kTest, 0).normals(0, normals_);
}

std::unique_ptr<Stream> Bench::stream_with(kernels::GemmKind gemm) {
  std::unique_ptr<Stream> stream = device_->create_stream();
  kernels::prepare_kernels(*stream, {.gemm = gemm});
  return stream;
}

void Bench::upload(TensorView x, const std::function<void(std::byte* chunk, int64_t first, int64_t count)>& fill) {
  const size_t element = dtype_bytes(x.dtype);
  const auto per_chunk = static_cast<int64_t>(kStagingBytes / element);
  for (int64_t first = 0; first < x.num_elements(); first += per_chunk) {
    const int64_t count = std::min(per_chunk, x.num_elements() - first);
    fill(staging_.data(), first, count);
    stream_->copy(x.data + static_cast<size_t>(first) * element, staging_.data(), static_cast<size_t>(count) * element);
    stream_->synchronize();
  }
}

Tensor Bench::random(DType dtype, Shape shape, double scale) {
  Tensor x = empty(dtype, shape);
  const int64_t count = shape.num_elements();
  const auto period = std::min(static_cast<int64_t>(normals_.size()), count);
  const TensorView flat = x.view().reshaped({count});
  upload(flat.slice(0, period), [&](std::byte* chunk, int64_t first, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      put(chunk, dtype, i, static_cast<float>(scale) * normals_[static_cast<size_t>(first + i)]);
    }
  });
  for (int64_t done = period; done < count; done += period) {  // by the device, which is faster at it than one core
    const int64_t n = std::min(period, count - done);
    stream_->copy(flat.slice(done, done + n).data, flat.data, static_cast<size_t>(n) * dtype_bytes(dtype));
  }
  stream_->synchronize();
  return x;
}

Tensor Bench::filled(DType dtype, Shape shape, double value) {
  Tensor x = empty(dtype, shape);
  upload(x, [&](std::byte* chunk, int64_t, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      put(chunk, dtype, i, static_cast<float>(value));
    }
  });
  return x;
}

Tensor Bench::integers(int64_t count, int64_t bound) {
  Tensor x = empty(DType::kI32, {count});
  const PhiloxStream random_numbers(2, RngPurpose::kTest, 0);
  upload(x, [&](std::byte* chunk, int64_t first, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      reinterpret_cast<int32_t*>(chunk)[i] =
          static_cast<int32_t>(random_numbers.below(static_cast<uint64_t>(first + i), static_cast<uint64_t>(bound)));
    }
  });
  return x;
}

Tensor Bench::order_of(const Tensor& keys) {
  const int64_t count = keys.shape().num_elements();
  DCHECK(keys.view().bytes() <= kStagingBytes, "too many keys to sort: {}", count);
  stream_->copy(staging_.data(), keys.view().data, keys.view().bytes());
  stream_->synchronize();
  const auto* read = reinterpret_cast<const int32_t*>(staging_.data());
  const std::vector<int32_t> values(read, read + count);
  std::vector<int32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return values[static_cast<size_t>(a)] < values[static_cast<size_t>(b)];
  });
  Tensor x = empty(DType::kI32, {count});
  upload(x, [&](std::byte* chunk, int64_t first, int64_t n) {
    std::memcpy(chunk, order.data() + first, static_cast<size_t>(n) * sizeof(int32_t));
  });
  return x;
}

std::vector<float> Bench::values(ConstTensorView x, int64_t most) {
  const auto element = dtype_bytes(x.dtype);
  const int64_t count = std::min({most, x.num_elements(), static_cast<int64_t>(kStagingBytes / element)});
  stream_->copy(staging_.data(), x.data, static_cast<size_t>(count) * element);
  stream_->synchronize();
  std::vector<float> found(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    found[static_cast<size_t>(i)] = get(staging_.data(), x.dtype, i);
  }
  return found;
}

double Bench::seconds(Stream& stream, const std::function<void()>& run) {
  const int num_runs = tiny_ ? 1 : 20;
  const int num_first = tiny_ ? 0 : 3;
  const std::unique_ptr<StreamTimer> timer = make_stream_timer(stream);
  std::vector<double> times;
  for (int i = 0; i < num_first + num_runs; ++i) {
    stream.fill_zero(flushed_.data(), flushed_.bytes());
    timer->start();
    run();
    timer->stop();
    const double seconds = timer->seconds();
    if (i >= num_first) {
      times.push_back(seconds);
    }
  }
  std::nth_element(times.begin(), times.begin() + static_cast<int64_t>(times.size() / 2), times.end());
  return times[times.size() / 2];
}

double Bench::copy_rate() {
  const int64_t bytes = tiny_ ? 1 << 12 : int64_t{1} << 30;
  const Tensor from = random(DType::kF32, {bytes / 4}), to = empty(DType::kF32, {bytes / 4});
  return 2.0 * static_cast<double>(bytes) /
         seconds([&] { stream_->copy(to.view().data, from.view().data, from.view().bytes()); });
}

double Bench::matmul_rate() {
  const int64_t size = tiny_ ? 32 : 8192;
  const Tensor a = random(DType::kBF16, {size, size}), b = random(DType::kBF16, {size, size}),
               c = empty(DType::kBF16, {size, size});
  const auto flops = 2.0 * static_cast<double>(size) * static_cast<double>(size) * static_cast<double>(size);
  return flops / seconds([&] { kernels::linear_forward(c, a, b, {}, *stream_); });
}

}  // namespace ashlar
