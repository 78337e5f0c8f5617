#include "parallel_core/planning/time/step_time.h"

#include <algorithm>
#include <cmath>

#include "parallel_core/config/layer_split.h"
#include "parallel_core/config/model_matrices.h"
#include "parallel_core/estimates/memory_estimate.h"

namespace tapestry::planning {

namespace {

// Collectives of a layer, and of a step, of one rank.
class Communication {
 public:
  Communication(const Layout& layout, const MessageCosts& messages, const Hosts& hosts)
      : layout_(layout),
        config_(layout.config),
        p_(config_.parallel_config),
        messages_(messages),
        hosts_(hosts) {
    const TransformerConfig& model = config_.model_config;
    tokens_ = static_cast<double>(config_.dataset_config.batch_size * model.seq_length) /
              static_cast<double>(p_.context_parallel_size);
    element_ = static_cast<double>(size_of(model.compute_dtype));
    hidden_ = tokens_ * static_cast<double>(model.hidden_size) * element_;
  }

  // Of a layer and micro-batch.
  PassTime layer(int64_t layer) const {
    PassTime time = tensor() * 2;
    if (p_.context_parallel_size > 1) {
      time += context(layer);
    }
    if (p_.expert_model_parallel_size > 1 && is_moe_layer(config_.model_config, layer)) {
      time += experts();
    }
    if (zero_level(config_) == 3) {
      time += gathered_weights(layer);
    }
    return time;
  }

  PassTime embedding() const { return tensor(); }

  // With a loss over a vocabulary that is split: maximum, sum and the label's logit of each token.
  PassTime head() const {
    PassTime time = tensor();
    time.forward += 3 * at_home(Collective::kAllReduce, p_.tensor_model_parallel_size, 4 * tokens_);
    return time;
  }

  // Until the next stage has the hidden states.
  double message() const {
    const bool leaves_host = hosts_.count > 1 && layout_.ranks_of_stage() >= hosts_.ranks_on_host();
    return messages_.seconds(Collective::kMessage, p_.pipeline_model_parallel_size,
                             hidden_ / (p_.sequence_parallel ? tensor_ranks() : 1.0), leaves_host);
  }

  // Embeddings that are also the head's weights are on the first and the last stage, which sum
  // their gradients.
  double tied_embeddings() const {
    const TransformerConfig& model = config_.model_config;
    if (p_.pipeline_model_parallel_size == 1 || model.untie_embeddings_and_output_weights) {
      return 0;
    }
    const bool leaves_host = hosts_.count > 1;
    return messages_.seconds(
        Collective::kAllReduce, 2,
        4 * static_cast<double>(model.vocab_size * model.hidden_size) / tensor_ranks(),
        leaves_host);
  }

  // Of gradients and weights, of so many parameters, once a step.
  double data(double parameters) const {
    const auto micro_batches = static_cast<double>(config_.dataset_config.micro_batch_num);
    const double gradients = 4 * parameters;
    const double gather = among_copies(Collective::kAllGather, element_ * parameters);
    switch (zero_level(config_)) {
      case 0:
        return among_copies(Collective::kAllReduce, gradients);
      case 1:
        return among_copies(Collective::kReduceScatter, gradients) + gather;
      case 2:
        return micro_batches * among_copies(Collective::kReduceScatter, gradients) + gather;
      default:  // weights are gathered where they are used
        return micro_batches * among_copies(Collective::kReduceScatter, gradients);
    }
  }

  // The same, less what a network carries while the last micro-batch runs backward, but for the
  // last bucket.
  double of_copies(double parameters, double last_backward) const {
    const double all = data(parameters);
    const double hidden =
        config_.training_config.overlap_grad_reduce && hosts_.count > 1 ? last_backward : 0.0;
    const double bucket =
        static_cast<double>(bucket_size(config_, layout_.data_parallel_size)) / parameters;
    return std::max(all - hidden, all * std::min(1.0, bucket));
  }

  // Of a step besides: sums of losses, norms and counts, and whether somebody wants to stop.
  double small() const {
    constexpr double kSums = 6;
    return kSums * messages_.seconds(Collective::kAllReduce, layout_.ranks(), 64, hosts_.count > 1);
  }

 private:
  double tensor_ranks() const { return static_cast<double>(p_.tensor_model_parallel_size); }

  double at_home(Collective collective, int64_t ranks, double bytes) const {
    return messages_.seconds(collective, ranks, bytes, /*leaves_host=*/false);
  }

  // Between ranks with the same weights.
  double among_copies(Collective collective, double bytes) const {
    const bool leaves_host = layout_.ranks_of_stage() > hosts_.ranks_on_host() ||
                             (hosts_.count > 1 && p_.pipeline_model_parallel_size == 1);
    return messages_.seconds(collective, layout_.data_parallel_size * p_.context_parallel_size,
                             bytes, leaves_host);
  }

  PassTime tensor() const {
    const int64_t ranks = p_.tensor_model_parallel_size;
    if (!p_.sequence_parallel) {
      const double once = at_home(Collective::kAllReduce, ranks, hidden_);
      return {.forward = once, .backward = once};
    }
    const double scatter = at_home(Collective::kReduceScatter, ranks, hidden_);
    const double gather = at_home(Collective::kAllGather, ranks, hidden_);
    return {.forward = scatter + gather, .backward = scatter + 2 * gather};
  }

  // Keys and values come a quarter of the groups at a time.
  PassTime context(int64_t layer) const {
    const LayerWidths widths =
        layer_widths(config_.model_config, layer, {.tensor = p_.tensor_model_parallel_size});
    const auto turns = static_cast<double>(std::clamp<int64_t>(widths.groups, 1, 4));
    const int64_t ranks = p_.context_parallel_size;
    const double elements = tokens_ * static_cast<double>(ranks) *
                            static_cast<double>(widths.keys + widths.values) / turns;
    const double gather = turns * at_home(Collective::kAllGather, ranks, elements * element_);
    return {.forward = gather,
            .backward = gather + turns * at_home(Collective::kReduceScatter, ranks, elements * 4)};
  }

  PassTime experts() const {
    const auto top = static_cast<double>(config_.model_config.moe.moe_router_topk);
    const double once =
        2 * at_home(Collective::kAllGather, p_.expert_model_parallel_size, hidden_ * top);
    return {.forward = once, .backward = once};
  }

  // Each matrix for itself, in both passes.
  PassTime gathered_weights(int64_t layer) const {
    double once = 0;
    for (const ModelMatrix& matrix : layer_matrices(config_.model_config, layer)) {
      once += matrix.is_matrix()
                  ? among_copies(Collective::kAllGather,
                                 element_ * elements_on_rank(
                                                matrix, {.tensor = p_.tensor_model_parallel_size}))
                  : 0;
    }
    return {.forward = once, .backward = once};
  }

  const Layout& layout_;
  const AllConfig& config_;
  const ModelParallelConfig& p_;
  const MessageCosts& messages_;
  const Hosts& hosts_;
  double tokens_ = 0;
  double element_ = 4;
  double hidden_ = 0;  // bytes of a micro-batch
};

// Passes of one kind of time through each stage and chunk.
using Passes = std::vector<std::vector<PassTime>>;

Passes passes_of(const AllConfig& config,
                 const std::vector<PassTime>& layers,
                 const PassTime& before,
                 const PassTime& after) {
  const auto table = layer_ranges(config.model_config.num_layers, config.parallel_config);
  const size_t stages = table.front().size();
  Passes passes(stages, std::vector<PassTime>(table.size()));
  for (size_t chunk = 0; chunk < table.size(); ++chunk) {
    for (size_t stage = 0; stage < stages; ++stage) {
      const LayerRange& range = table[chunk][stage];
      for (int64_t layer = range.first; layer < range.first + range.count; ++layer) {
        passes[stage][chunk] += layers[static_cast<size_t>(layer)];
      }
    }
  }
  passes.front().front() += before;
  passes.back().back() += after;
  return passes;
}

// Of the stage that has the most.
double busiest(const Passes& passes, double micro_batches) {
  double most = 0;
  for (const auto& stage : passes) {
    double sum = 0;
    for (const PassTime& chunk : stage) {
      sum += chunk.both();
    }
    most = std::max(most, sum);
  }
  return micro_batches * most;
}

double longest_backward(const Passes& passes) {
  double most = 0;
  for (const auto& stage : passes) {
    for (const PassTime& chunk : stage) {
      most = std::max(most, chunk.backward);
    }
  }
  return most;
}

}  // namespace

StepTime step_time(const Layout& layout,
                   const ModelTimes& times,
                   const MessageCosts& messages,
                   const Hosts& hosts) {
  const AllConfig& config = layout.config;
  const Communication communication(layout, messages, hosts);
  std::vector<PassTime> sent;
  for (int64_t layer = 0; layer < config.model_config.num_layers; ++layer) {
    sent.push_back(communication.layer(layer));
  }
  const Passes computing = passes_of(config, times.layers, times.before, times.after);
  const Passes sending = passes_of(config, sent, communication.embedding(), communication.head());
  // What all ranks do at the same time shares the cores; what is measured so has that in it.
  const double turns = std::max(
      1.0, static_cast<double>(std::min(layout.ranks(), hosts.ranks_on_host())) / hosts.cores);
  const double own_share = messages.on_host.empty() ? 1.0 : 1.0 / turns;
  PipelineWorkload work{
      .passes = computing,
      .micro_batches = config.dataset_config.micro_batch_num,
      .message = communication.message(),
      .ranks_of_stage = std::max<int64_t>(1, layout.ranks_of_stage() / hosts.count),
      .cores = hosts.cores,
      .crowding = times.crowding,
  };
  for (size_t stage = 0; stage < sending.size() && !times.has_messages_of_layers; ++stage) {
    for (size_t chunk = 0; chunk < sending[stage].size(); ++chunk) {
      work.passes[stage][chunk] += sending[stage][chunk] * own_share;
    }
  }
  const MemoryEstimate memory = estimate_memory(config, layout.data_parallel_size);
  const auto parameters = static_cast<double>(memory.parameter_count);
  const auto micro_batches = static_cast<double>(work.micro_batches);
  const auto shares = zero_level(config) > 0 && !times.has_messages_of_data
                          ? static_cast<double>(layout.data_parallel_size *
                                                config.parallel_config.context_parallel_size)
                          : 1.0;
  const double update = (parameters / shares * times.update_per_parameter + times.fixed) * turns;
  // What all ranks of a step say to each other is in what is measured if they are one stage.
  const bool is_whole = times.has_messages_of_data && work.passes.size() == 1;
  const double other = (is_whole ? 0 : communication.small()) + communication.tied_embeddings();
  const double shared = communication.of_copies(parameters, longest_backward(computing)) + other;
  StepTime step;
  step.seconds = pipeline_seconds(work) + update + (times.has_messages_of_data ? other : shared);
  step.computing = busiest(computing, micro_batches) + update;
  step.communication = busiest(sending, micro_batches) * own_share + shared;
  if (times.has_messages_of_layers) {
    // What is measured has them in it: how much of it they are is what they take alone.
    step.communication = std::min(step.communication, step.computing / 2);
    step.computing -= step.communication;
  }
  step.waiting = std::max(0.0, step.seconds - step.computing - step.communication);
  return step;
}

}  // namespace tapestry::planning
