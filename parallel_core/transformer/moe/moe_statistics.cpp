#include "parallel_core/transformer/moe/moe_statistics.h"

#include <algorithm>
#include <numeric>

#include "autograd/tensor/factory.h"
#include "parallel_core/comm/sum_over.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/pipeline_parallel/collect.h"
#include "parallel_core/transformer/moe/aux_loss.h"

namespace tapestry {

namespace {

double sum_of(const std::vector<int64_t>& counts) {
  return static_cast<double>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
}

// In units of the mean.
double load_of(int64_t count, const std::vector<int64_t>& all) {
  const double sum = sum_of(all);
  return sum > 0 ? static_cast<double>(count) * static_cast<double>(all.size()) / sum : 0;
}

// Numbers that are written and read in one order. Counts below 2^53 are exact in double.
class Numbers {
 public:
  Numbers() = default;
  explicit Numbers(std::vector<double> values) : values_(std::move(values)) {}

  void add(double value) { values_.push_back(value); }
  template <class T>
  void add(const std::vector<T>& values, size_t size) {
    for (size_t i = 0; i < size; ++i) {
      add(i < values.size() ? static_cast<double>(values[i]) : 0);
    }
  }
  double next() { return values_[at_++]; }
  template <class T>
  std::vector<T> next(size_t size) {
    std::vector<T> out;
    for (size_t i = 0; i < size; ++i) {
      out.push_back(static_cast<T>(next()));
    }
    return out;
  }
  std::vector<double>& values() { return values_; }

 private:
  std::vector<double> values_;
  size_t at_ = 0;
};

// What every rank of the group has, in their order.
std::vector<std::vector<double>> gathered(const std::vector<double>& own, ProcessGroup& group) {
  const int64_t size = std::ssize(own);
  const Tensor all = empty({group.size() * size}, kFloat64);
  group.all_gather(all, tensor(own, {size}));
  std::vector<std::vector<double>> out;
  for (const auto* at = all.data<double>(); std::ssize(out) < group.size(); at += size) {
    out.emplace_back(at, at + size);
  }
  return out;
}

}  // namespace

double MoELayerStatistics::drop_rate() const {
  const double all = sum_of(tokens_per_expert);
  return all > 0 ? sum_of(dropped_per_expert) / all : 0;
}

double MoELayerStatistics::largest_load() const {
  return load_of(*std::max_element(tokens_per_expert.begin(), tokens_per_expert.end()),
                 tokens_per_expert);
}

double MoELayerStatistics::smallest_load() const {
  return load_of(*std::min_element(tokens_per_expert.begin(), tokens_per_expert.end()),
                 tokens_per_expert);
}

MoEStatistics::MoEStatistics(nn::Module& model,
                             const TransformerConfig& config,
                             bool keeps_micro_batches)
    : moe_(config.moe), keeps_micro_batches_(keeps_micro_batches) {
  for (int64_t layer = 0; layer < all_layers(config); ++layer) {
    if (is_moe_layer(config, layer)) {
      numbers_.push_back(layer);
    }
  }
  for (const nn::Module::NamedModule& entry : model.named_modules()) {
    if (auto* layer = dynamic_cast<MoELayer*>(entry.module); layer != nullptr) {
      layers_.push_back(layer);
    }
  }
}

void MoEStatistics::start_step(double loss_scale, int64_t micro_batches) {
  if (!any()) {
    return;
  }
  const int ranks = model_parallel_is_initialized() ? get_data_parallel_world_size() : 1;
  parts_ = static_cast<double>(micro_batches) * ranks;
  aux_loss_scale() = loss_scale / parts_;
  aux_loss_parts() = {.loss_scale = loss_scale, .micro_batches = parts_};
  micro_batches_ = micro_batches;
  for (MoELayer* layer : layers_) {
    layer->counts() = {};
    layer->counts().keeps_passes = keeps_micro_batches_;
  }
}

// A chunk computes the micro-batches in their order, whatever the schedule of a pipeline.
void MoEStatistics::add_micro_batches(MoEStepStatistics& out) const {
  const auto experts = static_cast<size_t>(moe_.num_experts);
  const auto passes = static_cast<size_t>(micro_batches_);
  Numbers own;
  for (const int64_t number : numbers_) {
    const auto found = std::find_if(layers_.begin(), layers_.end(),
                                    [&](MoELayer* layer) { return layer->layer() == number; });
    for (size_t i = 0; i < passes; ++i) {
      // A step that was broken off has fewer passes than micro-batches.
      const bool has = found != layers_.end() && i < (*found)->counts().of_passes.size();
      own.add(has ? (*found)->counts().of_passes[i] : std::vector<int64_t>(), experts);
    }
  }
  sum_over_pipeline(own.values());
  std::vector<Numbers> ranks;
  if (model_parallel_is_initialized()) {
    for (std::vector<double>& values : gathered(own.values(), get_data_parallel_group())) {
      ranks.emplace_back(std::move(values));
    }
  } else {
    ranks.push_back(std::move(own));
  }
  for (const int64_t number : numbers_) {
    auto& of_layer = out.layers[number].of_micro_batches;
    for (size_t i = 0; i < passes; ++i) {
      auto& of_ranks = of_layer.emplace_back();
      for (Numbers& rank : ranks) {
        of_ranks.push_back(rank.next<int64_t>(experts));
      }
    }
  }
}

// Counts of a micro-batch are those of its whole routing group, on each of the group's ranks.
void MoEStatistics::sum_over_data_parallel() {
  if (!model_parallel_is_initialized()) {
    return;
  }
  const auto experts = static_cast<size_t>(moe_.num_experts);
  Numbers own;
  std::vector<double> losses;
  for (MoELayer* layer : layers_) {
    const MoECounts& counts = layer->counts();
    own.add(counts.tokens_per_expert, experts);
    own.add(counts.dropped_per_expert, experts);
    own.add(counts.balance_counts, experts);
    own.add(counts.smallest_router_gap);
    own.add(counts.smallest_group_gap);
    own.add(counts.smallest_capacity_gap);
    losses.push_back(counts.aux_loss);
  }
  sum_over(get_tensor_and_data_parallel_group(/*with_context_parallel=*/true), losses);
  std::vector<Numbers> ranks;
  for (std::vector<double>& values : gathered(own.values(), get_data_parallel_group())) {
    ranks.emplace_back(std::move(values));
  }
  for (size_t i = 0; i < layers_.size(); ++i) {
    MoECounts all = {.passes = layers_[i]->counts().passes,
                     .sequences = layers_[i]->counts().sequences};
    for (Numbers& rank : ranks) {
      Routing routing;
      routing.tokens_per_expert = rank.next<int64_t>(experts);
      routing.dropped_per_expert = rank.next<int64_t>(experts);
      routing.balance_counts = rank.next<int64_t>(experts);
      routing.smallest_router_gap = rank.next();
      routing.smallest_group_gap = rank.next();
      routing.smallest_capacity_gap = rank.next();
      all.add(routing);
    }
    all.aux_loss = losses[i];
    layers_[i]->counts() = all;
  }
}

MoEStepStatistics MoEStatistics::finish_step(bool updated) {
  MoEStepStatistics out;
  if (!any()) {
    return out;
  }
  out.micro_batches = micro_batches_;
  if (keeps_micro_batches_) {
    add_micro_batches(out);
  }
  sum_over_data_parallel();
  const auto experts = static_cast<size_t>(moe_.num_experts);
  // Of each layer from the stage that has it, and zeros from all others.
  Numbers own;
  for (const int64_t number : numbers_) {
    const auto found = std::find_if(layers_.begin(), layers_.end(),
                                    [&](MoELayer* layer) { return layer->layer() == number; });
    if (found == layers_.end()) {
      own.add(std::vector<double>(), 3 * experts + 4);
      continue;
    }
    MoECounts& counts = (*found)->counts();
    counts.tokens_per_expert.resize(experts, 0);
    counts.balance_counts.resize(experts, 0);
    if (updated) {
      (*found)->router().finish_step({counts.tokens_per_expert, counts.balance_counts});
    }
    own.add(counts.tokens_per_expert, experts);
    own.add(counts.dropped_per_expert, experts);
    std::vector<double> bias;
    for (const nn::Module::NamedBuffer& entry : (*found)->router().named_buffers()) {
      if (entry.name == "expert_bias") {
        bias = entry.buffer.to_vector<double>();
      }
    }
    own.add(bias, experts);
    own.add(counts.smallest_router_gap);
    own.add(counts.smallest_group_gap);
    own.add(counts.smallest_capacity_gap);
    own.add(counts.aux_loss / (parts_ * counts.sequences_of_pass()));
  }
  sum_over_pipeline(own.values());
  Numbers all(std::move(own.values()));
  for (const int64_t number : numbers_) {
    MoELayerStatistics& layer = out.layers[number];
    layer.tokens_per_expert = all.next<int64_t>(experts);
    layer.dropped_per_expert = all.next<int64_t>(experts);
    layer.expert_bias = all.next<double>(experts);
    if (!moe_.moe_router_enable_expert_bias) {
      layer.expert_bias.clear();
    }
    layer.smallest_router_gap = all.next();
    const double group_gap = all.next();
    if (moe_.topk_method != "greedy") {
      layer.smallest_group_gap = group_gap;
    }
    layer.smallest_capacity_gap = all.next();
    out.aux_loss += all.next();
  }
  return out;
}

}  // namespace tapestry
