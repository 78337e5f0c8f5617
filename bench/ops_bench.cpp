// Times the ops that a GPT step is made of, forward and backward, through the public API.
//
// A benchmark's name is op/shape/dtype, the same as in peer/torch_ops.py, and one iteration is the
// work that the peer times. Counters: GFLOP/s where arithmetic is the limit, GB/s where memory is,
// from the bytes that the op must move at least (each operand once per pass), so that a fused and
// an unfused version are measured against the same work. Beside each case stands how far apart the
// processors were after it (round_trip_ns; core_round_trip.h).
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "autograd/kernels/gemm/gemm.h"
#include "autograd/kernels/machine/cpu.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/kernels/reduce.h"
#include "autograd/ops/ops.h"
#include "autograd/tape/engine.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"
#include "bench/core_round_trip.h"
#include "optim/adafactor.h"
#include "optim/adam.h"
#include "optim/came.h"
#include "optim/grad_clip.h"
#include "optim/lion.h"
#include "optim/muon.h"

namespace tapestry {
namespace {

using Work = std::function<void()>;

/// One benchmark. `prepare` makes the operands and returns what is timed.
struct Case {
  std::string name;  ///< op/shape/dtype
  std::function<Work()> prepare;
  double flops = 0;  ///< of one iteration; 0: not reported
  double bytes = 0;  ///< that one iteration moves at least; 0: not reported
};

constexpr int kWarmupCalls = 2;
constexpr double kLogitRows = 1024;
constexpr double kVocab = 50304;

Tensor values(const Shape& shape, DType dtype, bool requires_grad = true) {
  const Tensor t = (randn(shape) * 0.5).to(dtype);
  return t.set_requires_grad(requires_grad);
}

Tensor gradient(const Shape& shape, DType dtype) { return randn(shape).to(dtype); }

void keep(const TensorList& results) { benchmark::DoNotOptimize(results.data()); }

Work tape_1000_adds() {
  return [] {
    const Tensor x = ones({8}).set_requires_grad();
    Tensor y = x;
    for (int i = 0; i < 1000; ++i) {
      y = y + x;
    }
    sum(y).backward();
  };
}

Work eager_1000_adds_no_grad() {
  return [] {
    const NoGradGuard guard;
    const Tensor x = ones({8});
    Tensor y = x;
    for (int i = 0; i < 1000; ++i) {
      y = y + x;
    }
    keep({y});
  };
}

Work linear_case(DType dtype) {
  const Tensor x = values({1024, 768}, dtype);
  const Tensor weight = values({3072, 768}, dtype);
  const Tensor dy = gradient({1024, 3072}, dtype);
  return [=] { keep(grad(linear(x, weight), {x, weight}, dy)); };
}

Work gelu_case(DType dtype) {
  const Tensor x = values({1024, 3072}, dtype);
  const Tensor dy = gradient({1024, 3072}, dtype);
  return [=] { keep(grad(gelu(x), {x}, dy)); };
}

Work swiglu_case(DType dtype) {
  const Tensor gate = values({1024, 3072}, dtype);
  const Tensor up = values({1024, 3072}, dtype);
  const Tensor dy = gradient({1024, 3072}, dtype);
  return [=] { keep(grad(swiglu(gate, up), {gate, up}, dy)); };
}

Work layer_norm_case(DType dtype) {
  const Tensor x = values({4096, 768}, dtype);
  const Tensor weight = values({768}, dtype);
  const Tensor bias = values({768}, dtype);
  const Tensor dy = gradient({4096, 768}, dtype);
  return [=] { keep(grad(layer_norm(x, weight, bias), {x, weight, bias}, dy)); };
}

Work rms_norm_case(DType dtype) {
  const Tensor x = values({4096, 768}, dtype);
  const Tensor weight = values({768}, dtype);
  const Tensor dy = gradient({4096, 768}, dtype);
  return [=] { keep(grad(rms_norm(x, weight), {x, weight}, dy)); };
}

Work add_layer_norm_case(DType dtype) {
  const Tensor x = values({4096, 768}, dtype);
  const Tensor residual = values({4096, 768}, dtype);
  const Tensor weight = values({768}, dtype);
  const Tensor bias = values({768}, dtype);
  const TensorList dys = {gradient({4096, 768}, dtype), gradient({4096, 768}, dtype)};
  return [=] {
    const AddNorm y = add_layer_norm(x, residual, weight, bias);
    keep(grad(TensorList{y.sum, y.normed}, TensorList{x, residual, weight, bias}, dys));
  };
}

Work bias_gelu_case(DType dtype) {
  const Tensor x = values({1024, 3072}, dtype);
  const Tensor bias = values({3072}, dtype);
  const Tensor dy = gradient({1024, 3072}, dtype);
  return [=] { keep(grad(bias_gelu(x, bias), {x, bias}, dy)); };
}

Work dropout_case(DType dtype) {
  const Tensor x = values({1024, 3072}, dtype);
  const Tensor dy = gradient({1024, 3072}, dtype);
  return [=] { keep(grad(dropout(x, 0.1), {x}, dy)); };
}

Work causal_attention_case(DType dtype) {
  const Shape shape = {4, 12, 1024, 64};
  const Tensor q = values(shape, dtype);
  const Tensor k = values(shape, dtype);
  const Tensor v = values(shape, dtype);
  const Tensor dy = gradient(shape, dtype);
  return [=] {
    keep(grad(scaled_dot_product_attention(q, k, v, {.causal = true}), {q, k, v}, dy));
  };
}

// Forward alone, of 1,024 tokens.
Work attention_forward_case(DType dtype, const AttentionOptions& options) {
  const Tensor q = values({1, 12, 1024, 64}, dtype, false);
  const Tensor k = values({1, 12, 1024, 64}, dtype, false);
  const Tensor v = values({1, 12, 1024, 64}, dtype, false);
  return [=] { keep({scaled_dot_product_attention(q, k, v, options)}); };
}

// As a layer of 12 heads of 64 channels has it: query, key and value are slices of one projection,
// and the rows of a head lie 12 * 3 * 64 elements apart.
Work qkv_attention_case(DType dtype,
                        int64_t batch,
                        int64_t length,
                        const AttentionOptions& options = {.causal = true}) {
  const Tensor fused = values({batch, length, 12, 3, 64}, dtype, false);
  const auto part = [&](int64_t index) {
    return select(fused, 3, index).permute({0, 2, 1, 3}).set_requires_grad();
  };
  const Tensor q = part(0);
  const Tensor k = part(1);
  const Tensor v = part(2);
  const Tensor dy = gradient({batch, length, 12, 64}, dtype).permute({0, 2, 1, 3});
  return [=] { keep(grad(scaled_dot_product_attention(q, k, v, options), {q, k, v}, dy)); };
}

// Documents of equal length in each row, which do not see each other.
Work document_attention_case(DType dtype, int64_t batch, int64_t documents, int64_t length) {
  std::vector<int64_t> starts;
  for (int64_t i = 0; i < documents; ++i) {
    starts.push_back(i * length);
  }
  const std::vector<std::vector<int64_t>> rows(static_cast<size_t>(batch), starts);
  return qkv_attention_case(
      dtype, batch, documents * length,
      {.causal = true, .document_starts = document_starts(rows, documents * length)});
}

Work cross_entropy_case(DType dtype) {
  const Tensor logits = values({1024, 50304}, dtype);
  const Tensor labels = randint(0, 50304, {1024});
  return [=] { keep(grad(cross_entropy(logits, labels), {logits})); };
}

Work embedding_case() {
  const Tensor weight = values({50304, 768}, kFloat32);
  const Tensor ids = randint(0, 50304, {4, 1024});
  const Tensor dy = gradient({4, 1024, 768}, kFloat32);
  return [=] { keep(grad(embedding(weight, ids), {weight}, dy)); };
}

TensorList matrices(int count, bool with_gradients) {
  TensorList out;
  for (int i = 0; i < count; ++i) {
    const Tensor p = randn({768, 3072});
    if (with_gradients) {
      p.set_requires_grad();
      p.set_grad(randn({768, 3072}));
    }
    out.push_back(p);
  }
  return out;
}

Work adamw_case() {
  const auto optimizer = std::make_shared<optim::AdamW>(
      matrices(24, true), optim::AdamOptions{.lr = 1e-3, .weight_decay = 0.1});
  return [optimizer] { optimizer->step(); };
}

// Every parameter is one of two ranks' columns of a matrix.
class HalfOfTheColumns final : public optim::ParameterLayout {
 public:
  explicit HalfOfTheColumns(const Shape& own) : own_(own) {}

  std::vector<nn::LogicalTensor> logical(const std::string& name) const override {
    return {{.name = name,
             .shape = {own_[0], 2 * own_[1]},
             .view_shape = own_,
             .axis = 1,
             .end = own_[1],
             .offset = {0, own_[1]},
             .slice_shape = own_}};
  }
  const optim::RankGroup* slices() const override { return nullptr; }
  const optim::RankGroup* copies() const override { return nullptr; }

 private:
  Shape own_;
};

// Weights as bfloat16 halves with remainders, moments and gradients in bfloat16: see
// docs/memory.md. The layout, which may be null, says which random numbers round the moments.
Work lean_adamw_case(const std::shared_ptr<optim::ParameterLayout>& layout) {
  const TensorList weights = matrices(24, false);
  for (const Tensor& weight : weights) {
    weight.set_requires_grad();
  }
  const auto optimizer = std::make_shared<optim::AdamW>(
      weights, optim::AdamOptions{.lr = 1e-3,
                                  .weight_decay = 0.1,
                                  .storage = {.exp_avg_dtype = kBFloat16,
                                              .exp_avg_sq_dtype = kBFloat16,
                                              .store_param_remainders = true}});
  for (size_t i = 0; i < weights.size(); ++i) {
    optimizer->store_parameter_as("0." + std::to_string(i), kBFloat16);
    weights[i].set_grad(gradient({768, 3072}, kBFloat16));
  }
  optimizer->set_layout(layout);
  return [optimizer] { optimizer->step(); };
}

constexpr double kGpt2Layers = 12;
constexpr double kGpt2Matrices = kGpt2Layers * 12 * 768 * 768;
constexpr double kGpt2Parameters = (kVocab + 1024) * 768 + kGpt2Matrices + kGpt2Layers * 13 * 768;

// The parameters of gpt2_124m with gradients: matrices of hidden layers, then the rest.
std::vector<optim::ParamGroup> gpt2_parameters() {
  std::vector<optim::ParamGroup> groups(2);
  const auto add = [&](optim::ParamGroup& group, const Shape& shape) {
    const Tensor p = randn(shape) * 0.02;
    p.set_requires_grad();
    p.set_grad(randn(shape) * 1e-3);
    group.params.push_back(p);
  };
  for (int layer = 0; layer < static_cast<int>(kGpt2Layers); ++layer) {
    for (int i = 0; i < 4; ++i) {
      add(groups[0], {768, 768});  // q, k, v, and the projection of what they give
    }
    add(groups[0], {3072, 768});
    add(groups[0], {768, 3072});
    for (int i = 0; i < 9; ++i) {
      add(groups[1], {768});
    }
    add(groups[1], {3072});
  }
  add(groups[1], {static_cast<int64_t>(kVocab), 768});
  add(groups[1], {1024, 768});
  for (optim::ParamGroup& group : groups) {
    group.lr = 1e-6;  // so that weights stay what they are like
    group.weight_decay = 0.1;
  }
  groups[1].adamw = true;
  return groups;
}

// One update of all parameters of gpt2_124m.
template <class Optimizer, class Options>
std::function<Work()> update_case(const Options& options) {
  return [=]() -> Work {
    const auto optimizer = std::make_shared<Optimizer>(gpt2_parameters(), options);
    return [optimizer] { optimizer->step(); };
  };
}

// What memory gives: y += a x over as many elements, the measure of the updates.
Work axpy_case() {
  const auto n = static_cast<int64_t>(kGpt2Parameters);
  const Tensor x = randn({n});
  const Tensor y = randn({n});
  return [=] { kernels::axpy(kFloat32, n, 1e-3, x.raw(), y.raw()); };
}

void add_updates(std::vector<Case>& out) {
  const auto add = [&](const char* name, std::function<Work()> prepare, double accesses,
                       double flops = 0) {
    out.push_back({.name = name,
                   .prepare = std::move(prepare),
                   .flops = flops,
                   .bytes = accesses * 4 * kGpt2Parameters});
  };
  add("axpy/gpt2_124m/float32", axpy_case, 3);
  // Reads and writes of an element: the parameter 2, the gradient 1, a moment 2; those that look at
  // rows and columns read the gradient again for each of their passes.
  add("update_adamw/gpt2_124m/float32", update_case<optim::AdamW>(optim::AdamOptions()), 7);
  add("update_lion/gpt2_124m/float32", update_case<optim::Lion>(optim::LionOptions()), 5);
  add("update_adafactor/gpt2_124m/float32",
      update_case<optim::Adafactor>(optim::AdafactorOptions{.lr = 1e-6, .scale_parameter = false}),
      5);
  add("update_adafactor_momentum/gpt2_124m/float32",
      update_case<optim::Adafactor>(
          optim::AdafactorOptions{.lr = 1e-6, .scale_parameter = false, .beta1 = 0.9}),
      7);
  add("update_came/gpt2_124m/float32", update_case<optim::Came>(optim::CameOptions()), 8);
  // Five times: the product of the smaller side, its square, and the product with the matrix.
  const double cube = 768.0 * 768 * 768;
  const double flops = kGpt2Layers * 5 * 2 * cube * (4 * 3 + 2 * (4 + 1 + 4));
  add("update_muon/gpt2_124m/float32",
      update_case<optim::Muon>(optim::MuonOptions{.products = kFloat32}), 0, flops);
  add("update_muon/gpt2_124m/bfloat16",
      update_case<optim::Muon>(optim::MuonOptions{.products = kBFloat16}), 0, flops);
}

// The limit follows just below the norm, so that every call both measures and scales.
Work clip_grad_norm_case() {
  const TensorList gradients = matrices(24, false);
  return [gradients, limit = 1.0]() mutable {
    limit = 0.999 * std::min(limit, optim::clip_grad_norm(gradients, limit));
  };
}

std::vector<Case> cases() {
  std::vector<Case> out = {
      {.name = "tape_1000_adds/8/float32", .prepare = tape_1000_adds},
      {.name = "eager_1000_adds_no_grad/8/float32", .prepare = eager_1000_adds_no_grad},
  };
  const double mlp = 1024.0 * 3072;
  const double rows = 4096.0 * 768;
  for (const DType dtype : {kFloat32, kBFloat16}) {
    const auto size = static_cast<double>(size_of(dtype));
    const auto add = [&](const std::string& op, Work (*prepare)(DType), double flops,
                         double bytes) {
      out.push_back(
          {op + "/" + std::string(name_of(dtype)), [=] { return prepare(dtype); }, flops, bytes});
    };
    add("linear/1024x768x3072", linear_case, 6.0 * 1024 * 768 * 3072, 0);
    // Forward reads x and writes y, backward reads x and dy and writes dx.
    add("gelu/1024x3072", gelu_case, 0, 5 * mlp * size);
    // Forward reads two and writes one, backward reads three and writes two.
    add("swiglu/1024x3072", swiglu_case, 0, 8 * mlp * size);
    add("layer_norm/4096x768", layer_norm_case, 0, 5 * rows * size);
    add("rms_norm/4096x768", rms_norm_case, 0, 5 * rows * size);
    // Forward reads two and writes two, backward reads three and writes one.
    add("add_layer_norm/4096x768", add_layer_norm_case, 0, 8 * rows * size);
    add("bias_gelu/1024x3072", bias_gelu_case, 0, 5 * mlp * size);
    add("dropout/1024x3072", dropout_case, 0, 4 * mlp * size);
    // Two products forward and four backward over the visible half of the scores.
    add("causal_attention/4x12x1024x64", causal_attention_case, 6.0 * 4 * 12 * 1024 * 1024 * 64, 0);
    add(
        "qkv_attention/4x256x12x64", [](DType t) { return qkv_attention_case(t, 4, 256); },
        6.0 * 4 * 12 * 256 * 256 * 64, 0);
    add(
        "qkv_attention/1x1024x12x64", [](DType t) { return qkv_attention_case(t, 1, 1024); },
        6.0 * 12 * 1024 * 1024 * 64, 0);
    // As many visible scores in one sample of eight documents as in eight samples.
    const double visible = 6.0 * 8 * 12 * 128 * 128 * 64;
    add(
        "qkv_attention/8x128x12x64", [](DType t) { return qkv_attention_case(t, 8, 128); }, visible,
        0);
    add(
        "document_attention/1x(8x128)x12x64",
        [](DType t) { return document_attention_case(t, 1, 8, 128); }, visible, 0);
    add(
        "document_attention/1x(10x100)x12x64",
        [](DType t) { return document_attention_case(t, 1, 10, 100); },
        6.0 * 10 * 12 * 100 * 100 * 64, 0);
    // A long text, and what a window of 512 tokens leaves of its scores.
    add(
        "qkv_attention/1x8192x12x64", [](DType t) { return qkv_attention_case(t, 1, 8192); },
        6.0 * 12 * 8192 * 8192 * 64, 0);
    add(
        "window_attention/1x8192x12x64[512]",
        [](DType t) {
          return qkv_attention_case(t, 1, 8192, {.causal = true, .window_left = 511});
        },
        12.0 * 12 * 64 * (8192 * 512 - 512 * 511 / 2), 0);
    add(
        "capped_attention/1x1024x12x64",
        [](DType t) { return qkv_attention_case(t, 1, 1024, {.causal = true, .score_cap = 50}); },
        6.0 * 12 * 1024 * 1024 * 64, 0);
    // The same as without a cap, and the largest score of each head with it.
    add(
        "measured_attention/1x1024x12x64",
        [](DType t) {
          return qkv_attention_case(t, 1, 1024,
                                    {.causal = true, .max_logits = zeros({12}, kFloat32)});
        },
        6.0 * 12 * 1024 * 1024 * 64, 0);
    add(
        "qkv_attention_forward/1x1024x12x64",
        [](DType t) { return attention_forward_case(t, {.causal = true}); },
        2.0 * 12 * 1024 * 1024 * 64, 0);
    add(
        "measured_attention_forward/1x1024x12x64",
        [](DType t) {
          return attention_forward_case(t, {.causal = true, .max_logits = zeros({12}, kFloat32)});
        },
        2.0 * 12 * 1024 * 1024 * 64, 0);
    // Forward reads the logits, backward reads them and writes their gradient.
    add("cross_entropy/1024x50304", cross_entropy_case, 0, 3 * kLogitRows * kVocab * size);
  }
  // The rows of the batch are read, written, and read again as gradients; the table's gradient is
  // written whole and its rows of the batch added to.
  out.push_back({.name = "embedding/50304x768[4096]/float32",
                 .prepare = embedding_case,
                 .bytes = 4 * (kVocab * 768 + 3 * rows)});
  const double parameters = 24.0 * 768 * 3072;
  // Parameter and two moments are read and written, the gradient is read.
  out.push_back(
      {.name = "adamw/24x768x3072/float32", .prepare = adamw_case, .bytes = 7 * 4 * parameters});
  // Both halves and both moments are read and written, the gradient is read.
  out.push_back({.name = "adamw_lean/24x768x3072/bfloat16",
                 .prepare = [] { return lean_adamw_case(nullptr); },
                 .bytes = 9 * 2 * parameters});
  // As of a tensor-parallel rank: elements that lie together have numbers that do not.
  for (const int64_t columns : {384, 96}) {
    const Shape own = {768 * 3072 / columns, columns};
    out.push_back(
        {.name = concat("adamw_lean_columns/24x", own[0], "x", own[1], "/bfloat16"),
         .prepare = [own] { return lean_adamw_case(std::make_shared<HalfOfTheColumns>(own)); },
         .bytes = 9 * 2 * parameters});
  }
  // One pass for the norm; one that reads and writes.
  out.push_back({.name = "clip_grad_norm/24x768x3072/float32",
                 .prepare = clip_grad_norm_case,
                 .bytes = 3 * 4 * parameters});
  add_updates(out);
  return out;
}

/// Keeps the operands of one case at a time: the benchmark library calls a case many times.
class Operands {
 public:
  const Work& of(const Case& c) {
    if (name_ != c.name) {
      work_ = nullptr;
      work_ = c.prepare();
      name_ = c.name;
      for (int i = 0; i < kWarmupCalls; ++i) {
        work_();
      }
    }
    return work_;
  }

 private:
  std::string name_;
  Work work_;
};

void run(benchmark::State& state, const Case& c, Operands& operands) {
  try {
    const Work& work = operands.of(c);
    for (auto _ : state) {
      work();
    }
  } catch (const std::exception& error) {
    state.SkipWithError(error.what());  // such as a dtype that the op does not take yet
    return;
  }
  const auto rate = [](double amount) {
    return benchmark::Counter(amount / 1e9, benchmark::Counter::kIsIterationInvariantRate);
  };
  if (c.flops > 0) {
    state.counters["GFLOP/s"] = rate(c.flops);
  }
  if (c.bytes > 0) {
    state.counters["GB/s"] = rate(c.bytes);
  }
  state.counters["round_trip_ns"] = bench::core_round_trip().largest;
}

int main_of(int argc, char** argv) {
  // The library's own flags come later and go before these.
  std::vector<std::string> arguments = {argv[0], "--benchmark_repetitions=7",
                                        "--benchmark_min_time=0.05",
                                        "--benchmark_report_aggregates_only=true"};
  arguments.insert(arguments.end(), argv + 1, argv + argc);
  std::vector<char*> pointers;
  for (std::string& argument : arguments) {
    pointers.push_back(argument.data());
  }
  int count = static_cast<int>(pointers.size());
  benchmark::Initialize(&count, pointers.data());
  if (benchmark::ReportUnrecognizedArguments(count, pointers.data())) {
    return 2;
  }
  benchmark::AddCustomContext("tapestry", TAPESTRY_VERSION);
  benchmark::AddCustomContext("threads", std::to_string(num_threads()));
  benchmark::AddCustomContext("cpu_level", std::string(name_of(cpu_level())));
  benchmark::AddCustomContext("blas", std::string(kernels::blas_flavour()));

  RankContext::current().default_generator().manual_seed(0);
  const std::vector<Case> all = cases();
  Operands operands;
  for (const Case& c : all) {
    benchmark::RegisterBenchmark(c.name.c_str(),
                                 [&](benchmark::State& state) { run(state, c, operands); })
        ->UseRealTime()
        ->Unit(benchmark::kMicrosecond);
  }
  if (benchmark::RunSpecifiedBenchmarks() == 0) {
    std::fprintf(stderr, "ops_bench: no benchmark has a name like that; --benchmark_list_tests\n");
    return 2;
  }
  benchmark::Shutdown();
  return 0;
}

}  // namespace
}  // namespace tapestry

int main(int argc, char** argv) { return tapestry::main_of(argc, argv); }
