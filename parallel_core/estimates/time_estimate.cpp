#include "parallel_core/estimates/time_estimate.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "autograd/ops/map.h"
#include "autograd/ops/matmul.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"
#include "parallel_core/config/batch_rampup.h"
#include "parallel_core/config/layer_split.h"
#include "parallel_core/estimates/attention_context.h"
#include "parallel_core/estimates/fitted_times.h"
#include "parallel_core/estimates/memory_estimate.h"
#include "parallel_core/estimates/recurrence.h"
#include "parallel_core/estimates/trained_share.h"
#include "parallel_core/parameter_count.h"
#include "parallel_core/pipeline_parallel/pipeline_order.h"
#include "text/util/numbers.h"

namespace tapestry {

namespace {

double d(int64_t value) { return static_cast<double>(value); }

// Elements of the matrices that each token meets in a layer; of a mixture those of its experts.
double matrix_elements(const TransformerConfig& model, int64_t layer) {
  double sum = 0;
  for (const ModelMatrix& matrix : layer_matrices(model, layer)) {
    if (matrix.is_matrix()) {
      sum += weight_elements(matrix) * (matrix.experts > 0 ? d(model.moe.moe_router_topk) : 1);
    }
  }
  return sum;
}

// FLOPs of a token in the products of a layer, forward; half of the S x S products of attention.
double flops_of_layer(const TransformerConfig& model, int64_t layer) {
  const LayerWidths widths = layer_widths(model, layer);
  const double attention = 2 * mean_context(model, layer) * (d(widths.queries) + d(widths.context));
  return 2 * matrix_elements(model, layer) + attention +
         recurrence_flops(model, mixer_kind(model, layer));
}

double flops_of_layers(const TransformerConfig& model, const std::vector<AlikeLayers>& layers) {
  double sum = 0;
  for (const AlikeLayers& some : layers) {
    sum += d(some.count) * flops_of_layer(model, some.layer);
  }
  return sum;
}

// Forward, and backward twice that; without the gradients of weights, which are frozen, as much.
double passes_over_base(const TransformerConfig& model) { return model.lora.use_lora ? 2 : 3; }

// Of the head, and of what makes per-layer embeddings.
double head_flops(const TransformerConfig& model) {
  double elements = 0;
  const std::vector<ModelMatrix> before = matrices_before_layers(model);
  for (const ModelMatrix& matrix : before) {
    elements += matrix.role == MatrixRole::kPerLayer ? weight_elements(matrix) : 0;
  }
  return 2 *
         (elements + (model.score_head ? d(model.hidden_size) : weight_elements(before.front())));
}

// Of the layers that predict further tokens: each joins two vectors, and has a layer like the last
// one and the head.
double flops_ahead(const TransformerConfig& model) {
  if (model.mtp_num_layers == 0) {
    return 0;
  }
  double joins = 0;
  for (const ModelMatrix& matrix : matrices_ahead(model)) {
    joins += matrix.role == MatrixRole::kAhead ? 2 * weight_elements(matrix) : 0;
  }
  return joins +
         d(model.mtp_num_layers) * (flops_of_layer(model, model.num_layers) + head_flops(model));
}

// Calls f until so many seconds have passed; seconds of one call.
template <class F>
double seconds_of(double at_least, F&& f) {
  using Clock = std::chrono::steady_clock;
  f();  // fetches memory and threads
  const auto start = Clock::now();
  double passed = 0;
  int calls = 0;
  while (passed < at_least) {
    f();
    ++calls;
    passed = std::chrono::duration<double>(Clock::now() - start).count();
  }
  return passed / calls;
}

}  // namespace

double model_flops(const AllConfig& config, int64_t data_parallel_size) {
  const TransformerConfig& model = config.model_config;
  const double tokens = d(global_batch_size(config, data_parallel_size)) * d(model.seq_length);
  return tokens * (passes_over_base(model) * (flops_of_layers(model, alike_layers(model)) +
                                              head_flops(model) + flops_ahead(model)) +
                   6 * trained_share(model).adapters);
}

StepWork step_work(const AllConfig& config, int64_t data_parallel_size) {
  const TransformerConfig& model = config.model_config;
  const ModelParallelConfig& p = config.parallel_config;
  const double micro_batches = d(config.dataset_config.micro_batch_num);
  const double tokens =
      d(config.dataset_config.batch_size) * d(model.seq_length) / d(p.context_parallel_size);
  const double tp = d(p.tensor_model_parallel_size);
  double most_layers = 0;
  double most_flops = 0;  // of a token, in a stage's layers
  const auto table = layer_ranges(model.num_layers, p);
  for (size_t stage = 0; stage < table.front().size(); ++stage) {
    double layers = 0;
    double flops = 0;
    for (const auto& row : table) {
      const LayerRange& range = row[stage];
      layers += d(range.count);
      flops += flops_of_layers(model, alike_layers(model, range.first, range.count));
    }
    const bool is_last = stage + 1 == table.front().size();
    most_layers = std::max(most_layers, layers + (is_last ? d(model.mtp_num_layers) : 0));
    most_flops = std::max(most_flops, flops + (is_last ? flops_ahead(model) : 0));
  }
  StepWork work;
  work.flops =
      passes_over_base(model) * micro_batches * tokens / tp * (most_flops + head_flops(model)) +
      6 * micro_batches * tokens / tp * trained_share(model).adapters * most_layers /
          std::max(1.0, d(model.num_layers));
  const MemoryEstimate memory = estimate_memory(config, data_parallel_size);
  work.flops += micro_batches * memory.recompute_flops;
  const double kept = d(memory.activations) / d(std::max<int64_t>(memory.in_flight, 1));
  work.bytes =
      micro_batches * fitted_times::kPassesOverActivations * kept +
      fitted_times::kBytesPerUpdate *
          (model.lora.use_lora ? trained_share(model).trained() / tp : d(memory.parameter_count)) +
      2 * d(memory.weight_copies) + micro_batches * 2 * d(memory.gradients);
  work.passes = micro_batches * most_layers;
  const auto stages = static_cast<int>(p.pipeline_model_parallel_size);
  if (stages > 1) {
    work.bubble = theoretical_bubble({.stages = stages,
                                      .chunks = static_cast<int>(table.size()),
                                      .micro_batches = config.dataset_config.micro_batch_num});
  }
  return work;
}

MachineSpeed measure_speed(const AllConfig& config, int64_t memory) {
  const NoGradGuard guard;
  const TransformerConfig& model = config.model_config;
  const ModelParallelConfig& p = config.parallel_config;
  // As large as that of a micro-batch, but no more than a few milliseconds of work.
  constexpr double kMostFlops = 4e9;
  const int64_t in = std::min<int64_t>(model.hidden_size, 4096);
  const int64_t out =
      std::clamp<int64_t>(model.ffn_hidden_size / p.tensor_model_parallel_size, 1, 8192);
  const int64_t tokens = config.dataset_config.batch_size * model.seq_length;
  const auto rows = std::clamp<int64_t>(static_cast<int64_t>(kMostFlops / (2 * d(in) * d(out))), 16,
                                        std::max<int64_t>(tokens / p.context_parallel_size, 16));
  const Tensor x = full({rows, in}, 0.5, model.compute_dtype);
  const Tensor weight = full({in, out}, 0.25, model.compute_dtype);
  MachineSpeed speed;
  speed.flops =
      2 * d(rows) * d(in) * d(out) / seconds_of(0.15, [&] { const Tensor y = matmul(x, weight); });
  const int64_t numbers =
      std::clamp<int64_t>(memory, 1 << 20, kMemoryToMeasure) / (2 * size_of(kFloat32));
  const Tensor from = zeros({numbers}, kFloat32);
  const Tensor to = zeros({numbers}, kFloat32);
  speed.bytes = 2.0 * d(from.numel()) * 4 / seconds_of(0.1, [&] { copy_values(from, to); });
  return speed;
}

double step_seconds(const StepWork& work, const MachineSpeed& speed) {
  const double busy = work.flops / (fitted_times::kShareOfSpeed * speed.flops) +
                      work.bytes / speed.bytes + work.passes * fitted_times::kSecondsPerPass +
                      fitted_times::kSecondsPerStep;
  return busy / (1 - std::min(work.bubble, 0.99));
}

std::string time_text(const StepWork& work, const MachineSpeed& speed, int64_t steps) {
  char how[240];
  std::snprintf(how, sizeof(how),
                "; estimated from %.3g GFLOP of matrix products at %.0f %% of %.3g GFLOP/s and "
                "%.3g GB through memory at %.3g GB/s, as just measured here; communication is not "
                "counted",
                work.flops / 1e9, 100 * fitted_times::kShareOfSpeed, speed.flops / 1e9,
                work.bytes / 1e9, speed.bytes / 1e9);
  return format_pace(step_seconds(work, speed), steps) + how;
}

int64_t whole_steps(const AllConfig& config,
                    int64_t data_parallel_size,
                    int64_t end,
                    int64_t begin) {
  const BatchSchedule batches(config, data_parallel_size);
  const int64_t from = batches.consumed_after(begin);
  const int64_t samples = batches.consumed_after(std::max(end - begin, int64_t{0}), from) - from;
  return (samples + batches.full() - 1) / batches.full();
}

std::string expected_time(const AllConfig& config,
                          int64_t data_parallel_size,
                          int ranks,
                          int64_t available) {
  constexpr MachineSpeed kSlowProcessor{.flops = 4e9, .bytes = 2e9};
  constexpr double kMeasuring = 0.33;  // seconds
  constexpr int64_t kMemory = int64_t{256} << 20;
  const StepWork work = step_work(config, data_parallel_size);
  if (kFirstSteps * step_seconds(work, kSlowProcessor) < kMeasuring || available < kMemory) {
    return {};
  }
  // In less memory than the run itself has.
  const MachineSpeed speed =
      measure_speed(config, estimate_memory(config, data_parallel_size).peak() / 2);
  RankContext::current().allocator().release_cache();
  return concat("about ",
                format_pace(step_seconds(work, speed),
                            whole_steps(config, data_parallel_size,
                                        total_training_iters(config, data_parallel_size))),
                ", estimated", ranks > 1 ? " without communication" : "",
                "; the measured time follows after step ", kFirstSteps);
}

}  // namespace tapestry
