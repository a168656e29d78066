// Matrix products of whole models: cuBLASLt beside our own kernel, on the same operands, whose results must agree.
#include "kernels/matmul.h"

#include <fmt/format.h>

#include <cmath>
#include <span>

#include "tests/gpu/steps.h"

namespace ashlar {
namespace {

using kernels::GemmKind;
using kernels::Write;

struct Model {
  const char* name;
  int64_t tokens;  // of a micro-batch
  int64_t width, qkv, ffn, vocab;
};
constexpr Model kModels[] = {{"124M", 32768, 768, 2304, 3072, 50304},
                             {"1.3B", 16384, 2048, 6144, 8192, 50304},
                             {"8B", 8192, 4096, 6144, 14336, 128256}};  // 8 of 32 heads have keys and values
constexpr Model kTinyModels[] = {{"tiny", 16, 16, 48, 64, 32}};

struct Layer {
  const char* name;
  int64_t out, in;  // w [out, in]
};

// One layer's operands and results.
struct Operands {
  Tensor x, w, dy;   // [R,K], [N,K], [R,N]
  Tensor y, dx, dw;  // [R,N], [R,K], [N,K] fp32
  Operands(Bench& bench, int64_t tokens, const Layer& layer)
      : x(bench.random(DType::kBF16, {tokens, layer.in})),
        w(bench.random(DType::kBF16, {layer.out, layer.in}, 0.02)),
        dy(bench.random(DType::kBF16, {tokens, layer.out})),
        y(bench.empty(DType::kBF16, {tokens, layer.out})),
        dx(bench.empty(DType::kBF16, {tokens, layer.in})),
        dw(bench.empty(DType::kF32, {layer.out, layer.in})) {}
};

struct Pass {
  const char* name;
  TensorView (*result)(const Operands&);
  void (*run)(const Operands&, Stream&);
};
constexpr Pass kPasses[] = {
    {"forward", [](const Operands& o) { return o.y.view(); },
     [](const Operands& o, Stream& stream) { kernels::linear_forward(o.y, o.x, o.w, {}, stream); }},
    {"input gradient", [](const Operands& o) { return o.dx.view(); },
     [](const Operands& o, Stream& stream) { kernels::linear_backward_input(o.dx, o.dy, o.w, stream); }},
    {"weight gradient +=", [](const Operands& o) { return o.dw.view(); },
     [](const Operands& o, Stream& stream) { kernels::linear_backward_weight(o.dw, o.dy, o.x, Write::kAdd, stream); }},
};

// The result of one run over zeros, so that what is added to is the same for both.
std::vector<float> result_of(Bench& bench, const Pass& pass, const Operands& operands, Stream& stream) {
  const TensorView result = pass.result(operands);
  stream.fill_zero(result.data, result.bytes());
  pass.run(operands, stream);
  stream.synchronize();
  return bench.values(result, 1 << 20);
}

// The largest difference, as a share of the root mean square.
double difference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0, squares = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double apart = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (!(apart <= largest)) {  // NaN stays
      largest = apart;
    }
    squares += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  return largest / std::sqrt(squares / static_cast<double>(a.size()));
}

void compare_layer(Bench& bench, StepReport& report, const Model& model, const Layer& layer, Stream& library,
                   Stream& own) {
  const Operands operands(bench, model.tokens, layer);
  const double flops =
      2.0 * static_cast<double>(model.tokens) * static_cast<double>(layer.out) * static_cast<double>(layer.in);
  for (const Pass& pass : kPasses) {
    const std::string name = fmt::format("{} {} {}", model.name, layer.name, pass.name);
    const double apart = difference(result_of(bench, pass, operands, own), result_of(bench, pass, operands, library));
    // Both round sums in fp32; in bf16 a value near a tie lands one unit, 2^-8 of it, apart, and values reach 6 times
    // the root mean square.
    if (!(apart <= 6.0 / 128)) {
      report.fail(fmt::format("{}: our result is {:.3g} of the root mean square away from cuBLASLt's", name, apart));
    }
    const double library_rate = flops / bench.seconds(library, [&] { pass.run(operands, library); });
    const double own_rate = flops / bench.seconds(own, [&] { pass.run(operands, own); });
    report.add({name, fmt::format("{}x{}x{}", model.tokens, layer.out, layer.in), library_rate * 1e-12,
                own_rate * 1e-12, Cell(own_rate / library_rate, 2), Cell(apart, 3)});
  }
}

// What the epilogues of our kernel save: the same work by the library is a product and a kernel of its own.
void compare_epilogues(Bench& bench, StepReport& report, const Model& model, Stream& library, Stream& own) {
  const Layer up{"mlp in", model.ffn, model.width};
  const Operands o(bench, model.tokens, up);
  const Tensor bias = bench.random(DType::kBF16, {model.ffn});
  const Tensor pre = bench.random(DType::kBF16, {model.tokens, model.ffn});
  const Tensor dy = bench.random(DType::kBF16, {model.tokens, model.width});
  const Tensor wide = bench.empty(DType::kBF16, {model.tokens, model.ffn});
  const Tensor down = bench.random(DType::kBF16, {model.width, model.ffn}, 0.02);
  const auto activation = kernels::Activation::kGeluTanh;
  const auto row = [&](const char* name, const std::function<void(Stream&)>& run) {
    const double library_seconds = bench.seconds(library, [&] { run(library); });
    const double own_seconds = bench.seconds(own, [&] { run(own); });
    report.add({fmt::format("{} {}", model.name, name), Cell(library_seconds * 1e3, 3), Cell(own_seconds * 1e3, 3),
                Cell(library_seconds / own_seconds, 2)});
  };
  row("mlp in + bias", [&](Stream& s) { kernels::linear_forward(o.y, o.x, o.w, bias, s); });
  row("mlp in + bias + GELU",
      [&](Stream& s) { kernels::linear_activation_forward(o.y, wide, o.x, o.w, bias, activation, s); });
  row("mlp out's input gradient * GELU'",
      [&](Stream& s) { kernels::linear_activation_backward_input(wide, dy, down, pre, activation, s); });
}

}  // namespace

void check_matmul(Bench& bench, StepReport& report) {
  const std::unique_ptr<Stream> library = bench.stream_with(GemmKind::kCublasLt),
                                own = bench.stream_with(GemmKind::kOwn);
  const std::span<const Model> models =
      bench.tiny() ? std::span<const Model>(kTinyModels) : std::span<const Model>(kModels);
  report.begin("bf16 products, random data",
               {"product", "tokens x out x in", "cuBLASLt TFLOP/s", "ours TFLOP/s", "ours / cuBLASLt", "apart / rms"});
  for (const Model& model : models) {
    const Layer layers[] = {{"qkv", model.qkv, model.width},
                            {"attention out", model.width, model.width},
                            {"mlp in", model.ffn, model.width},
                            {"mlp out", model.width, model.ffn},
                            {"head", model.vocab, model.width}};
    for (const Layer& layer : layers) {
      compare_layer(bench, report, model, layer, *library, *own);
    }
  }
  report.begin("epilogues", {"work", "cuBLASLt ms", "ours ms", "cuBLASLt / ours"});
  for (const Model& model : models) {
    compare_epilogues(bench, report, model, *library, *own);
  }
}

}  // namespace ashlar
