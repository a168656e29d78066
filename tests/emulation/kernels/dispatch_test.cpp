// The contracts of kernels/ on a stream of a GPU, against the same calls on a stream of the CPU: what goes to which
// kernel, with which types, order of arguments and scratch. Each kernel's own cases stand in the files beside this one.
#include <gmock/gmock.h>

#include "kernels/accumulate.h"
#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/cast.h"
#include "kernels/cross_entropy.h"
#include "kernels/dropout.h"
#include "kernels/embedding.h"
#include "kernels/layernorm.h"
#include "kernels/matmul.h"
#include "kernels/optimizer.h"
#include "kernels/prepare.h"
#include "kernels/reduce.h"
#include "kernels/stat_dtype.h"
#include "runtime/device/cuda/cuda_device.h"
#include "tests/kernels/half_support.h"

namespace ashlar::kernels {
namespace {

// A device with a stream and tensors on it, and what is read back from them as doubles.
class Side {
 public:
  Side(Device& device, const KernelOptions& options) : device_(device), stream_(device.create_stream()) {
    prepare_kernels(*stream_, options);
  }
  ~Side() { stream_->synchronize(); }

  Stream& stream() { return *stream_; }

  template <typename T>
  TensorView put(const std::vector<T>& values, Shape shape) {
    const size_t bytes = values.size() * sizeof(T);
    host_.push_back(device_.allocate_host(bytes, "test"));
    memory_.push_back(device_.allocate(bytes, "test"));
    std::memcpy(host_.back().data(), values.data(), bytes);
    stream_->copy(memory_.back().data(), host_.back().data(), bytes);
    return {memory_.back().data(), DTypeOf<T>::value, shape};
  }
  // The same numbers on every side, rounded to `dtype`.
  TensorView random(DType dtype, Shape shape, double scale = 1) {
    const std::vector<double> values = random_values<double>(shape.num_elements(), ++num_random_, scale);
    switch (dtype) {
      case DType::kBF16:
        return put(rounded<BFloat16>(values), shape);
      case DType::kF16:
        return put(rounded<Float16>(values), shape);
      case DType::kF64:
        return put(values, shape);
      default:
        return put(rounded<float>(values), shape);
    }
  }
  TensorView ints(const std::vector<int32_t>& values) { return put(values, {static_cast<int64_t>(values.size())}); }

  void keep(TensorView x) {
    host_.push_back(device_.allocate_host(x.bytes(), "test"));
    stream_->copy(host_.back().data(), x.data, x.bytes());
    stream_->synchronize();
    const TensorView host{host_.back().data(), x.dtype, x.shape};
    const auto values = [&]<typename T>(T) {
      const auto* data = host.as<T>();
      return std::vector<T>(data, data + host.num_elements());
    };
    dtypes_.push_back(x.dtype);
    switch (x.dtype) {
      case DType::kBF16:
        kept_.push_back(widened(values(BFloat16{})));
        break;
      case DType::kF16:
        kept_.push_back(widened(values(Float16{})));
        break;
      case DType::kF64:
        kept_.push_back(values(double{}));
        break;
      default:
        kept_.push_back(widened(values(float{})));
    }
  }
  const std::vector<std::vector<double>>& kept() const { return kept_; }
  const std::vector<DType>& dtypes() const { return dtypes_; }

 private:
  Device& device_;
  std::unique_ptr<Stream> stream_;
  std::vector<Buffer> host_, memory_;
  uint64_t num_random_ = 0;
  std::vector<std::vector<double>> kept_;
  std::vector<DType> dtypes_;
};

// Both sides round a nearby number to their type, so they may be one step apart.
void expect_near(const Side& gpu, const Side& cpu, double slack, const std::string& what) {
  ASSERT_EQ(gpu.kept().size(), cpu.kept().size()) << what;
  for (size_t output = 0; output < cpu.kept().size(); ++output) {
    const auto& got = gpu.kept()[output];
    const auto& want = cpu.kept()[output];
    ASSERT_EQ(got.size(), want.size()) << what;
    for (size_t i = 0; i < want.size(); ++i) {
      const double size = std::max(std::abs(want[i]), 1e-3);
      const double step = cpu.dtypes()[output] == DType::kBF16  ? 2 * half_step<BFloat16>(size)
                          : cpu.dtypes()[output] == DType::kF16 ? 2 * half_step<Float16>(size)
                                                                : 0;
      ASSERT_LE(std::abs(got[i] - want[i]), step + slack * std::max(1.0, std::abs(want[i])))
          << what << " output " << output << " element " << i << ": " << got[i] << ", expected " << want[i];
    }
  }
}

template <typename Work>
void compare(const std::string& what, Work work, const KernelOptions& options = {}, double slack = 1e-5) {
  SCOPED_TRACE(what);
  const auto device = make_cuda_device(0);
  CpuDevice cpu_device;
  Side gpu(*device, options), cpu(cpu_device, options);
  work(gpu);
  work(cpu);
  expect_near(gpu, cpu, slack, what);
}

constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};
constexpr int64_t kRows = 33, kColumns = 40;

TEST(Dispatch, RowsAndElements) {
  for (const DType type : kTypes) {
    compare(fmt::format("rows in {}", dtype_name(type)), [&](Side& s) {
      const DType stat = stat_dtype(type);
      const Shape matrix{kRows, kColumns};
      const TensorView x = s.random(type, matrix), dy = s.random(type, matrix), y = s.random(type, matrix),
                       gamma = s.random(type, {kColumns}), beta = s.random(type, {kColumns}),
                       mean = s.random(stat, {kRows}), rstd = s.random(stat, {kRows}),
                       dgamma = s.random(stat, {kColumns}), dbeta = s.random(stat, {kColumns});
      const auto keep = [&](std::initializer_list<TensorView> outputs) {
        for (const TensorView& output : outputs) {
          s.keep(output);
        }
      };
      layernorm_forward(y, mean, rstd, x, gamma, beta, 1e-5, s.stream());
      keep({y, mean, rstd});
      layernorm_backward(y, dgamma, dbeta, dy, y, x, gamma, mean, rstd, s.stream());
      keep({y, dgamma, dbeta});
      activation_forward(y, x, Activation::kGeluTanh, s.stream());
      keep({y});
      activation_backward(y, dy, x, Activation::kGeluErf, s.stream());
      keep({y});
      add_bias_residual(y, x, dy, beta, s.stream());
      keep({y});
      const SampleRows place{2, kRows / 3};
      const Dropout dropout{.probability = 0.3, .key = {3, 5}, .first_sample = 7};
      dropout_forward(y, x, beta, dy, dropout, place, s.stream());
      keep({y});
      dropout_backward(y, dy, dropout, place, s.stream());
      keep({y});
      bias_backward(dbeta, dy, Write::kAdd, s.stream());
      keep({dbeta});
      const TensorView sum = s.random(type, matrix);
      residual_layernorm_forward(y, sum, mean, rstd, x, dy, {}, gamma, beta, 1e-5, s.stream());
      keep({y, sum, mean, rstd});
    });
  }
}

TEST(Dispatch, TablesAndLoss) {
  for (const DType type : kTypes) {
    compare(fmt::format("tables and loss in {}", dtype_name(type)), [&](Side& s) {
      const DType stat = stat_dtype(type);
      const TensorView table = s.random(type, {12, kColumns}), dtable = s.random(stat, {12, kColumns}),
                       y = s.random(type, {2, 3, kColumns}), dy = s.random(type, {2, 3, kColumns});
      const TensorView tokens = s.ints({7, 3, 9, 7, 100, 4}), order = s.ints({1, 5, 0, 3, 2, 4});
      const TensorView rows = y.reshaped({6, kColumns}), drows = dy.reshaped({6, kColumns});
      embedding_forward(rows, tokens, table, 4, 10, s.stream());
      position_forward(y, table, {2, 4}, s.stream());
      s.keep(y);
      embedding_backward(dtable, drows, tokens, order, 4, 10, s.stream());
      position_backward(dtable, dy, {2, 4}, Write::kAdd, s.stream());
      s.keep(dtable);
      const TensorView stats = s.random(stat, {1, 6, 3}), losses = s.random(stat, {6}),
                       mask = s.put<float>({1, 1, 0, 1, 1, 1}, {6});
      cross_entropy_stats(stats, rows, tokens, 4, 37, s.stream());
      s.keep(stats);
      cross_entropy_finish(losses, rows, stats, tokens, mask, 4, 37, 0.37, true, s.stream());
      s.keep(losses);
      s.keep(rows);
    });
  }
}

TEST(Dispatch, MatrixProductsByEveryChoice) {
  for (const DType type : kTypes) {
    for (const GemmKind kind : {GemmKind::kAuto, GemmKind::kCublasLt, GemmKind::kOwn}) {
      if (kind == GemmKind::kOwn && type == DType::kF32) {
        continue;
      }
      const auto products = [&](Side& s) {
        constexpr int64_t kOut = 24;
        const TensorView x = s.random(type, {kRows, kColumns}), w = s.random(type, {kOut, kColumns}, 0.2),
                         bias = s.random(type, {kOut}), dy = s.random(type, {kRows, kOut}),
                         pre = s.random(type, {kRows, kOut}), y = s.random(type, {kRows, kOut}),
                         dx = s.random(type, {kRows, kColumns}), dw = s.random(stat_dtype(type), {kOut, kColumns});
        linear_forward(y, x, w, bias, s.stream());
        s.keep(y);
        linear_forward(y, x, w, {}, s.stream());
        s.keep(y);
        linear_activation_backward_input(dx, dy, w, x, Activation::kGeluErf, s.stream());
        s.keep(dx);
        linear_backward_input(dx, dy, w, s.stream());
        s.keep(dx);
        linear_backward_weight(dw, dy, x, Write::kOverwrite, s.stream());
        linear_backward_weight(dw, dy, x, Write::kAdd, s.stream());
        s.keep(dw);
        linear_activation_forward(y, pre, x, w, bias, Activation::kGeluTanh, s.stream());
        s.keep(pre);
        linear_activation_forward(y, pre, x, w, {}, Activation::kGeluTanh, s.stream());
        s.keep(pre);
        s.keep(y);
      };
      compare(fmt::format("products in {}, --gemm {}", dtype_name(type), static_cast<int>(kind)), products,
              {.gemm = kind});
    }
  }
}

TEST(Dispatch, AttentionWithAndWithoutDropout) {
  for (const DType type : kTypes) {
    for (const double probability : {0.0, 0.25}) {
      const auto attention = [&](Side& s) {
        const Shape qkv_shape{2, 33, 3, 2, 64}, out_shape{2, 33, 2, 64};
        const Dropout dropout{.probability = probability, .key = {3, 5}, .first_sample = 7, .first_head = 2};
        const TensorView qkv = s.random(type, qkv_shape), dqkv = s.random(type, qkv_shape),
                         out = s.random(type, out_shape), dout = s.random(type, out_shape),
                         lse = s.random(stat_dtype(type), {2, 2, 33});
        const auto bytes = static_cast<int64_t>(attention_backward_workspace_bytes(qkv_shape, type));
        const TensorView workspace = s.put(std::vector<uint8_t>(static_cast<size_t>(bytes)), {bytes});
        attention_forward(out, lse, qkv, 0.125, dropout, s.stream());
        s.keep(out);
        s.keep(lse);
        attention_backward(dqkv, dout, qkv, out, lse, 0.125, dropout, workspace, s.stream());
        s.keep(dqkv);
      };
      // A GPU rounds probabilities to 16 bits before they meet the values.
      compare(fmt::format("attention in {}, dropout {}", dtype_name(type), probability), attention, {},
              type == DType::kBF16  ? 2e-2
              : type == DType::kF16 ? 3e-3
                                    : 2e-5);
    }
  }
}

TEST(Dispatch, UpdatesCastsAndSums) {
  for (const DType copy_type : {DType::kBF16, DType::kF16}) {
    compare("update", [&](Side& s) {
      const TensorView param = s.random(DType::kF32, {1000}), first = s.random(DType::kF32, {1000}),
                       second = s.put(std::vector<float>(1000, 0.01f), {1000}), grad = s.random(DType::kF32, {1000}),
                       copy = s.random(copy_type, {1000}), blocks = s.random(DType::kF64, {1}),
                       results = s.put<double>({0, 0, 0, 1}, {kNumStepResults}),
                       scalars = s.random(DType::kF64, {kNumUpdateScalars}), totals = s.put<double>({70, 64}, {2});
      sum_of_squares(blocks, grad, s.stream());
      finish_step(results, scalars, totals, blocks, {.nominal_targets = 64, .clip_grad = 1, .rate = 0.01, .step = 2},
                  s.stream());
      adamw_step(param, first, second, grad, copy, scalars, 0.1, s.stream());
      for (const TensorView& output : {blocks, results, scalars, param, first, second, copy}) {
        s.keep(output);
      }
      sgd_step(param, grad, copy, scalars, 0.1, s.stream());
      s.keep(param);
      s.keep(copy);
      cast(grad, copy, s.stream());
      sum_in_order(totals.slice(0, 1), grad, s.stream());
      s.keep(grad);
      s.keep(totals);
    });
  }
}

TEST(Dispatch, GradientsInBf16) {
  compare("gradients in bf16", [&](Side& s) {
    const TensorView part = s.random(DType::kBF16, {1000}), wide = s.random(DType::kF32, {1000}),
                     narrow = s.random(DType::kBF16, {1000}), blocks = s.random(DType::kF64, {1}),
                     scalars = s.put(std::vector<double>(kNumUpdateScalars, 0.25), {kNumUpdateScalars}),
                     param = s.random(DType::kF32, {1000}), first = s.random(DType::kF32, {1000}),
                     second = s.put(std::vector<float>(1000, 0.01f), {1000});
    s.stream().copy(scalars.as<double>() + kSkip, s.put<double>({0}, {1}).data, sizeof(double));
    for (const Write write : {Write::kAdd, Write::kOverwrite}) {
      for (const TensorView& acc : {wide, narrow}) {
        accumulate(acc, part, write, s.stream());
        s.keep(acc);
        accumulate(acc, param, write, s.stream());
        s.keep(acc);
      }
    }
    sum_of_squares(blocks, narrow, s.stream());
    s.keep(blocks);
    adamw_step(param, first, second, narrow, {}, scalars, 0.1, s.stream());
    sgd_step(param, part, {}, scalars, 0.1, s.stream());
    for (const TensorView& output : {param, first, second}) {
      s.keep(output);
    }
    const TensorView half = s.random(DType::kF16, {1000});
    EXPECT_THROW(accumulate(wide, half, Write::kAdd, s.stream()), Error);
    EXPECT_THROW(sum_of_squares(blocks, half, s.stream()), Error);
  });
}

std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(Dispatch, RefusesAStreamThatWasNotPrepared) {
  const auto device = make_cuda_device(0);
  const auto stream = device->create_stream();
  const Buffer memory = device->allocate(64, "test");
  const TensorView x{memory.data(), DType::kF32, {8}};
  EXPECT_THAT(error_of([&] { accumulate(x, x, Write::kAdd, *stream); }),
              testing::HasSubstr("accumulate: prepare_kernels was not called"));
  prepare_kernels(*stream, {});
  accumulate(x, x, Write::kAdd, *stream);
  EXPECT_THAT(error_of([&] { prepare_kernels(*stream, {}); }), testing::HasSubstr("before"));
  stream->synchronize();
}

TEST(Dispatch, NamesWhatAGpuDoesNotTake) {
  const auto device = make_cuda_device(0);
  Side own(*device, {.gemm = GemmKind::kOwn});
  const TensorView wide = own.random(DType::kF32, {8, 8}), doubles = own.random(DType::kF64, {8, 8});
  const TensorView halves = own.random(DType::kBF16, {4, 4});
  EXPECT_THAT(error_of([&] { linear_forward(wide, wide, wide, {}, own.stream()); }),
              testing::AllOf(testing::HasSubstr("--gemm own"), testing::HasSubstr("16 bits")));
  EXPECT_THAT(error_of([&] { linear_forward(halves, halves, halves, {}, own.stream()); }),
              testing::AllOf(testing::HasSubstr("--gemm own"), testing::HasSubstr("multiple of 8")));
  EXPECT_THAT(error_of([&] { accumulate(doubles, doubles, Write::kAdd, own.stream()); }),
              testing::HasSubstr("not fp64"));
  const TensorView tokens = own.ints({1, 2, 3, 4, 5, 6, 7, 0});
  EXPECT_THAT(error_of([&] { embedding_backward(wide, wide, tokens, {}, 0, 8, own.stream()); }),
              testing::HasSubstr("order of the tokens"));
  const TensorView broad = own.random(DType::kF32, {1, 12296});
  EXPECT_THAT(error_of([&] {
                layernorm_forward(broad, wide.reshaped({64}).slice(0, 1), wide.reshaped({64}).slice(0, 1), broad,
                                  broad.reshaped({12296}), broad.reshaped({12296}), 1e-5, own.stream());
              }),
              testing::HasSubstr("--hidden-size"));
}

TEST(Dispatch, AStreamTakesWhatThePlanCounts) {
  const auto device = make_cuda_device(0);
  const auto stream = device->create_stream();
  const int64_t before = device->allocated_bytes();
  prepare_kernels(*stream, {});
  EXPECT_EQ(device->allocated_bytes() - before, static_cast<int64_t>(kernel_workspace_bytes(DeviceKind::kCuda)));
  CpuDevice cpu;
  const auto cpu_stream = cpu.create_stream();
  prepare_kernels(*cpu_stream, {});
  EXPECT_EQ(cpu.allocated_bytes(), static_cast<int64_t>(kernel_workspace_bytes(DeviceKind::kCpu)));
}

}  // namespace
}  // namespace ashlar::kernels
