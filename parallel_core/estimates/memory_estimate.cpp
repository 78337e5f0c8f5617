#include "parallel_core/estimates/memory_estimate.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>

#include "autograd/ops/loss.h"
#include "parallel_core/estimates/recompute_estimate.h"
#include "parallel_core/estimates/trained_share.h"
#include "parallel_core/pipeline_parallel/pipeline_order.h"
#include "parallel_core/pipeline_parallel/pipeline_stage.h"

namespace tapestry {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

// Sums and products of sizes in double, so that absurd configurations cannot overflow.
int64_t bytes_of(double size) {
  return size < 4.6e18 ? static_cast<int64_t>(size) : kUnlimited / 16;
}

// Layers of a part of the model.
struct LayerCounts {
  int64_t dense = 0;
  int64_t mixtures = 0;
};

LayerCounts count_layers(const TransformerConfig& model, int64_t first, int64_t count) {
  LayerCounts out;
  for (int64_t i = first; i < first + count; ++i) {
    ++(is_moe_layer(model, i) ? out.mixtures : out.dense);
  }
  return out;
}

LayerCounts all_layers(const TransformerConfig& model) {
  return model.moe.num_experts > 1 ? count_layers(model, 0, model.num_layers)
                                   : LayerCounts{.dense = model.num_layers};
}

struct ParameterCounts {
  double dense = 0;
  double experts = 0;

  double all() const { return dense + experts; }
};

// Parameters of one rank's share of a part of the model: so many layers, with or without the two
// ends, with `experts` of each mixture.
ParameterCounts count_parameters(const TransformerConfig& model,
                                 const ModelShares& shares,
                                 int64_t experts,
                                 const LayerCounts& layers,
                                 bool pre_process,
                                 bool post_process) {
  const auto d = [](int64_t size) { return static_cast<double>(size); };
  const int64_t tp = std::max<int64_t>(shares.tensor, 1);
  const int64_t channels = model.kv_channels.value_or(
      model.num_attention_heads > 0 ? model.hidden_size / model.num_attention_heads : 0);
  const bool gated = model.hidden_act == "swiglu";
  const double hidden = d(model.hidden_size);
  const double queries = d(model.num_attention_heads / tp) * d(channels);
  // A rank has at least one group of keys and values.
  const double keys = d((model.num_query_groups + tp - 1) / tp) * d(channels);
  const auto mlp = [&](int64_t width) {
    const double up = d(width) * (gated ? 2 : 1);
    return hidden * up + d(width) * hidden + (model.mlp_has_bias ? up + hidden : 0);
  };
  const double vocabulary = d((model.vocab_size + tp - 1) / tp);
  const double norm_size = model.normalization == "LayerNorm" ? 2 : 1;

  double layer = hidden * (queries + 2 * keys) + (model.qkv_has_bias ? queries + 2 * keys : 0);
  layer += queries * hidden + (model.out_proj_has_bias ? hidden : 0);
  layer += (model.use_sandwich_norm ? 4 : 2) * norm_size * hidden;
  layer += model.qk_layernorm ? 2 * norm_size * d(channels) : 0;

  const double table = vocabulary * hidden;
  double total =
      d(layers.dense + layers.mixtures) * layer + d(layers.dense) * mlp(model.ffn_hidden_size / tp);
  ParameterCounts out;
  if (layers.mixtures > 0) {
    const int64_t shared = model.moe.moe_shared_expert_intermediate_size.value_or(0);
    const double gate = model.moe.use_shared_expert_gating ? hidden : 0;
    total += d(layers.mixtures) *
             (hidden * d(model.moe.num_experts) + gate + (shared > 0 ? mlp(shared / tp) : 0));
    out.experts = d(layers.mixtures) * d(experts) *
                  mlp(moe_ffn_hidden_size(model) / std::max<int64_t>(shares.expert_tensor, 1));
  }
  if (pre_process) {
    total += table;
    if (model.position_embedding_type == "learned_absolute") {
      const int64_t rows = model.max_position_embeddings.value_or(model.seq_length);
      total += d(model.parallel_position_embedding ? (rows + tp - 1) / tp : rows) * hidden;
    }
  }
  if (post_process) {
    total += model.use_final_norm ? norm_size * hidden : 0;
    // The last of several stages has a copy of a table that is tied.
    total += model.untie_embeddings_and_output_weights || !pre_process ? table : 0;
  }
  out.dense = total;
  return out;
}

}  // namespace

int64_t parameter_count(const TransformerConfig& model, const ModelShares& shares) {
  const int64_t experts = model.moe.num_experts / std::max<int64_t>(shares.expert, 1);
  const double total =
      count_parameters(model, shares, experts, all_layers(model), true, true).all();
  check<ValueError>(total < 9007199254740992.0,  // 2^53: every step above is exact below it
                    "the model would have about ", total, " parameters; check vocab_size, ",
                    "num_layers, hidden_size and ffn_hidden_size");
  return static_cast<int64_t>(total);
}

int64_t active_parameter_count(const TransformerConfig& model) {
  parameter_count(model);  // throws for numbers that are out of all bounds
  const double active =
      count_parameters(model, {}, model.moe.moe_router_topk, all_layers(model), true, true).all();
  return static_cast<int64_t>(active);
}

double worst_expert_load(const AllConfig& config) {
  const MoEConfig& moe = config.model_config.moe;
  const int64_t ranks = std::max<int64_t>(config.parallel_config.expert_model_parallel_size, 1);
  if (moe.num_experts <= 1 || ranks == 1) {
    return 1;
  }
  // A token chooses an expert once, so of a rank with few experts not all of its choices.
  const int64_t most = std::min(moe.moe_router_topk, moe.num_experts / ranks);
  const double load = static_cast<double>(ranks * most) / static_cast<double>(moe.moe_router_topk);
  return moe.moe_expert_capacity_factor
             ? std::min(load, std::max(1.0, *moe.moe_expert_capacity_factor))
             : load;
}

int64_t MemoryEstimate::total() const {
  double sum = 0;
  for (const int64_t kind : {parameters, weight_copies, gradients, optimizer, activations, logits,
                             workspace, snapshot}) {
    sum += static_cast<double>(kind);
  }
  return bytes_of(sum);
}

int64_t MemoryEstimate::peak() const { return std::max(total(), start); }

namespace {

// Elements of the largest parameter, whose gradient exists alone with optimizer_in_backward.
double largest_parameter(const TransformerConfig& model) {  // without tensor parallelism
  const auto hidden = static_cast<double>(model.hidden_size);
  const double gates = model.hidden_act == "swiglu" ? 2 : 1;
  double up = static_cast<double>(model.ffn_hidden_size) * gates;
  if (model.moe.num_experts > 1) {
    up = std::max(up, static_cast<double>(model.moe.num_experts) *
                          static_cast<double>(moe_ffn_hidden_size(model)) * gates);
  }
  return hidden * std::max(static_cast<double>(model.vocab_size), up);
}

// What an optimizer keeps of a parameter, on average. Statistics of rows and columns are nothing
// beside it.
double state_bytes_per_parameter(const OptimizerConfig& o, const TransformerConfig& model) {
  const auto moments = static_cast<double>(size_of(o.exp_avg_dtype) + size_of(o.exp_avg_sq_dtype));
  if (o.optimizer_type == "SGD" || o.optimizer_type == "Adafactor") {
    return o.momentum > 0 ? 4 : 0;
  }
  if (o.optimizer_type == "Lion") {
    return static_cast<double>(size_of(o.exp_avg_dtype));
  }
  if (o.optimizer_type == "Came") {
    return 4;
  }
  if (o.optimizer_type == "Muon") {  // moments of embeddings and head, momentum of the rest
    const LayerCounts count = all_layers(model);
    const double all = count_parameters(model, {}, model.moe.num_experts, count, true, true).all();
    const double layers =
        count_parameters(model, {}, model.moe.num_experts, count, false, false).all();
    return (4 * layers + moments * (all - layers)) / all;
  }
  return moments;
}

// The same where adapters are trained beside a frozen base, `in_layers` of whose parameters belong
// to the dense part of layers: nearly all of them to matrices, which may be blocks of 8 bits.
void estimate_adapter_states(const AllConfig& config,
                             double base,
                             double in_layers,
                             const TrainedShare& share,
                             MemoryEstimate& estimate) {
  const TransformerConfig& model = config.model_config;
  const OptimizerConfig& o = config.optimizer_config;
  const auto params = static_cast<double>(size_of(model.params_dtype));
  const auto compute = static_cast<double>(size_of(model.compute_dtype));
  constexpr double kBlockBytes = 34.0 / 32;
  const bool in_blocks = model.lora.base_dtype == "q8_0";
  const double floating = in_blocks ? base - in_layers : base;
  estimate.parameters =
      bytes_of(floating * params + (base - floating) * kBlockBytes + share.adapters * 4);
  if (!in_blocks) {
    estimate.savings.push_back(
        {"lora_config.base_dtype: q8_0", bytes_of(in_layers * (params - kBlockBytes))});
  }
  const double copied = (model.compute_dtype != model.params_dtype ? floating : 0) +
                        (model.compute_dtype != kFloat32 ? share.adapters : 0);
  estimate.weight_copies = bytes_of(copied * compute);
  estimate.gradients = bytes_of(share.trained() * static_cast<double>(size_of(o.main_grads_dtype)));
  estimate.optimizer = bytes_of(share.trained() * state_bytes_per_parameter(o, model) +
                                (model.params_dtype != kFloat32 ? share.saved * 4 : 0));
  if (model.params_dtype == kFloat32 && model.compute_dtype != kFloat32) {
    estimate.savings.push_back(
        {concat("model_config.params_dtype: ", name_of(model.compute_dtype)), bytes_of(base * 4)});
  }
}

// Parameters, gradients and optimizer, and what could be had for less.
void estimate_states(const AllConfig& config, double count, MemoryEstimate& estimate) {
  const TransformerConfig& model = config.model_config;
  const OptimizerConfig& o = config.optimizer_config;
  const auto save = [&](const char* setting, double bytes_per_parameter) {
    estimate.savings.push_back({setting, bytes_of(count * bytes_per_parameter)});
  };
  const bool adam = o.optimizer_type == "AdamW" || o.optimizer_type == "Adam";
  const bool half_params = model.params_dtype != kFloat32;
  double per_parameter = 0;  // in the optimizer
  if (o.store_param_remainders) {
    estimate.parameters = bytes_of(count * 2);
    per_parameter += 2;
  } else {
    const auto size = static_cast<double>(size_of(model.params_dtype));
    estimate.parameters = bytes_of(count * size);
    if (model.compute_dtype != model.params_dtype) {
      estimate.weight_copies = bytes_of(count * static_cast<double>(size_of(model.compute_dtype)));
    }
    per_parameter += half_params ? 4 : 0;
    if (adam && model.compute_dtype == kBFloat16) {
      save("optimizer_config.store_param_remainders: True", 2);
    }
  }
  if (o.optimizer_in_backward) {
    estimate.gradients = bytes_of(largest_parameter(model) * 4);
  } else {
    const auto size = static_cast<double>(size_of(o.main_grads_dtype));
    estimate.gradients = bytes_of(count * size);
    if (o.main_grads_dtype == kFloat32) {
      save("optimizer_config.main_grads_dtype: bfloat16", 2);
    }
    const std::optional<GradClipConfig> clip = gradient_clipping(config);
    if (config.dataset_config.micro_batch_num == 1 && model.compute_dtype != kFloat16 &&
        !(clip && clip->grad_clip_type == "ClipGlobalNorm")) {
      save("optimizer_config.optimizer_in_backward: True", size);
    }
  }
  per_parameter += state_bytes_per_parameter(o, model);
  for (const auto& [setting, dtype, has_it] :
       {std::tuple{"optimizer_config.exp_avg_dtype: bfloat16", o.exp_avg_dtype,
                   adam || o.optimizer_type == "Lion"},
        std::tuple{"optimizer_config.exp_avg_sq_dtype: bfloat16", o.exp_avg_sq_dtype, adam}}) {
    if (has_it && dtype == kFloat32) {
      save(setting, 2);
    }
  }
  estimate.optimizer = bytes_of(count * per_parameter);
}

// What is left to one rank of what data-parallel ranks share out: experts over those that have the
// same ones.
void share_out(const AllConfig& config,
               int64_t ranks,
               int64_t expert_ranks,
               MemoryEstimate& estimate) {
  const int level = zero_level(config);
  const auto count = static_cast<double>(estimate.parameter_count);
  const double largest = largest_parameter(config.model_config);
  // `whole` elements of all are there in full, whoever owns them.
  const auto share = [&](int64_t& bytes, double whole) {
    const auto experts = static_cast<double>(estimate.expert_parameter_count);
    const double own = (count - experts) / static_cast<double>(ranks) +
                       experts / static_cast<double>(expert_ranks);
    const double part = std::min(1.0, (own + whole) / count);
    bytes = bytes_of(static_cast<double>(bytes) * part);
  };
  if (config.model_config.lora.use_lora) {  // of which every rank has the whole base
    const auto part = static_cast<double>(ranks);
    for (int64_t* bytes :
         {level >= 1 ? &estimate.optimizer : nullptr, level >= 2 ? &estimate.gradients : nullptr}) {
      if (bytes != nullptr) {
        *bytes = bytes_of(static_cast<double>(*bytes) / part);
      }
    }
    return;
  }
  if (level >= 1) {
    share(estimate.optimizer, 0);
  }
  if (level >= 2) {
    // One bucket is filled while two are being reduced; with z3 matrices are buckets of their own.
    const auto bucket = static_cast<double>(bucket_size(config, ranks));
    share(estimate.gradients, 3 * (level == 3 ? largest : std::max(bucket, largest)));
  }
  if (level >= 3) {
    share(estimate.parameters, 2 * largest);
    estimate.weight_copies =
        bytes_of(static_cast<double>(estimate.weight_copies) * std::min(1.0, 2 * largest / count));
  }
}

// What starting, loading and saving need.
void estimate_checkpoints(const AllConfig& config,
                          double count,
                          int64_t ranks,
                          MemoryEstimate& estimate) {
  const OptimizerConfig& o = config.optimizer_config;
  const TrainingConfig& t = config.training_config;
  const bool shared_out = zero_level(config) >= 1 && ranks > 1;
  const double share = shared_out ? 1.0 / static_cast<double>(ranks) : 1.0;
  const auto size = static_cast<double>(size_of(config.model_config.params_dtype));
  // Buckets are filled while what they are filled from is still there.
  const bool moves = shared_out || config.model_config.params_dtype != kFloat32;
  // With z3 parameters are made one after the other, each in its bucket and beside it.
  const bool in_pieces = zero_level(config) == 3 && ranks > 1;
  const double whole =
      in_pieces ? std::min(count, 4 * largest_parameter(config.model_config)) : count;
  estimate.start = bytes_of(whole * 4 + (moves ? count * size * (in_pieces ? share : 1) : 0));
  if (!t.async_save) {
    return;
  }
  const bool divided = shared_out || t.remove_redundancy;
  const double saved = saved_bytes_per_parameter(o, config.model_config);
  estimate.snapshot = bytes_of(count * saved / (divided ? static_cast<double>(ranks) : 1.0));
}

// The settings of `estimate.savings` as lines; empty if there are none.
std::string savings_text(const MemoryEstimate& estimate) {
  std::string text;
  for (const MemoryEstimate::Saving& saving : estimate.savings) {
    text += concat("\n  ", saving.setting, " (", size_text(saving.bytes), " less)");
  }
  return text.empty() ? text : "\nThese need less for nearly the same training:" + text;
}

}  // namespace

namespace {

// What a stage keeps for backward passes at its peak.
struct InFlight {
  double bytes = 0;  // of all chunks and micro-batches together
  int64_t passes = 0;
};

InFlight most_in_flight(const PipelineStage& stage,
                        int64_t micro_batches,
                        const std::vector<double>& bytes_of_chunk) {
  // The peak comes in the first rounds, however many there are.
  const PipelineShape shape = {
      .stages = stage.size,
      .chunks = stage.num_chunks(),
      .micro_batches = std::min<int64_t>(micro_batches, 4L * stage.size * stage.num_chunks())};
  InFlight now;
  InFlight most;
  for (const PipelinePass& pass : pipeline_order(shape, stage.rank)) {
    const int64_t sign = pass.backward ? -1 : 1;
    now.bytes += static_cast<double>(sign) * bytes_of_chunk[static_cast<size_t>(pass.chunk)];
    now.passes += sign;
    most.bytes = std::max(most.bytes, now.bytes);
    most.passes = std::max(most.passes, now.passes);
  }
  return most;
}

MemoryEstimate estimate_stage(const AllConfig& config,
                              const PipelineStage& stage,
                              int64_t data_parallel_size,
                              double load) {
  const TransformerConfig& model = config.model_config;
  const auto d = [](int64_t size) { return static_cast<double>(size); };
  LayerCounts layers;
  const std::vector<LayerCost> costs = layer_costs(config, load);
  MemoryEstimate estimate;
  std::vector<double> kept_bytes;
  double transient = 0;
  // What a policy leaves of the layers of a chunk, and the most that one of them makes.
  const auto cost_of = [&](const LayerRange& range, const RecomputePolicy& policy) {
    const LayerCounts counts = count_layers(model, range.first, range.count);
    const LayerCost dense = layer_cost(config, policy);
    LayerCost out = {.kept = dense.kept * d(counts.dense), .transient = dense.transient};
    if (counts.mixtures > 0) {
      const LayerCost mixture = layer_cost(config, policy, /*mixture=*/true, load);
      out.kept += mixture.kept * d(counts.mixtures);
      out.transient =
          counts.dense > 0 ? std::max(dense.transient, mixture.transient) : mixture.transient;
    }
    return out;
  };
  for (const LayerRange& range : stage.chunks) {
    const LayerCounts counts = count_layers(model, range.first, range.count);
    layers.dense += counts.dense;
    layers.mixtures += counts.mixtures;
    const LayerCost usual = cost_of(range, RecomputePolicy());
    transient = std::max(transient, usual.transient);
    double bytes = costs.empty() ? usual.kept : 0;
    for (int64_t i = range.first; !costs.empty() && i < range.first + range.count; ++i) {
      const LayerCost& cost = costs[static_cast<size_t>(i)];
      bytes += cost.kept;
      transient = std::max(transient, cost.transient);
      estimate.recompute_flops += cost.flops;
    }
    kept_bytes.push_back(bytes);
    estimate.recompute_saved += bytes_of(std::max(0.0, usual.kept - bytes));
  }
  const InFlight kept = most_in_flight(stage, config.dataset_config.micro_batch_num, kept_bytes);
  const int64_t tp = std::max<int64_t>(config.parallel_config.tensor_model_parallel_size, 1);
  estimate.stage = stage.rank;
  estimate.stages = stage.size;
  estimate.in_flight = kept.passes;
  const int64_t ep = std::max<int64_t>(config.parallel_config.expert_model_parallel_size, 1);
  const int64_t etp = expert_tensor_parallel_size(config.parallel_config);
  const ModelShares shares = {.tensor = tp, .expert = ep, .expert_tensor = etp};
  const int64_t experts = model.moe.num_experts / ep;
  const ParameterCounts counts =
      count_parameters(model, shares, experts, layers, stage.pre_process(), stage.post_process());
  const double count = counts.all();
  estimate.parameter_count = static_cast<int64_t>(count);
  estimate.expert_parameter_count = static_cast<int64_t>(counts.experts);
  const double element = d(size_of(model.compute_dtype));
  const TrainedShare trained = trained_share(model, stage, tp);
  if (model.lora.use_lora) {
    estimate.parameter_count += static_cast<int64_t>(trained.adapters);
    const double in_layers = count_parameters(model, shares, experts, layers, false, false).dense;
    estimate_adapter_states(config, count, in_layers, trained, estimate);
  } else {
    estimate_states(config, count, estimate);
  }
  const int64_t cp = std::max<int64_t>(config.parallel_config.context_parallel_size, 1);
  if (data_parallel_size * cp > 1) {
    share_out(config, data_parallel_size * cp,
              std::max<int64_t>(data_parallel_size * cp * tp / (ep * etp), 1), estimate);
  }
  if (model.lora.use_lora) {
    estimate.start = estimate.parameters + bytes_of(4 * largest_parameter(model));
  } else {
    estimate_checkpoints(config, count, data_parallel_size * cp, estimate);
  }

  const double tokens = d(config.dataset_config.batch_size) * d(model.seq_length) / d(cp);
  const double hidden = d(model.hidden_size);
  const double channels = d(model.kv_channels.value_or(0));
  const double queries = d(model.num_attention_heads) * channels / d(tp);
  const double keys = d((model.num_query_groups + tp - 1) / tp) * channels;
  const double ffn = d(model.ffn_hidden_size) / d(tp);
  const double mlp = ffn * (model.hidden_act == "swiglu" ? 3 : 2);
  const double piece = tokens / (model.sequence_parallel ? d(tp) : 1.0);  // of the hidden states
  estimate.activations =
      bytes_of(kept.bytes + transient + d(kept.passes) * piece * element * 2 * hidden);
  if (model.lora.use_lora && costs.empty()) {
    // What frozen matrices read is not kept; what adapters make of it is.
    const double unread = d(trained.unread_attention_inputs + trained.unread_mlp_inputs);
    const double change = tokens * trained.ranks - piece * hidden * unread;
    estimate.activations =
        bytes_of(std::max(0.0, d(estimate.activations) + d(kept.passes) * element * change));
  }
  if (costs.empty()) {
    RecomputePolicy all;
    all.full = true;
    std::vector<double> full_bytes;
    double full_transient = 0;
    for (const LayerRange& range : stage.chunks) {
      const LayerCost full = cost_of(range, all);
      full_bytes.push_back(full.kept);
      full_transient = std::max(full_transient, full.transient);
    }
    const InFlight least = most_in_flight(stage, config.dataset_config.micro_batch_num, full_bytes);
    estimate.recompute_could_save =
        bytes_of(std::max(0.0, kept.bytes + transient - least.bytes - full_transient));
  }
  // The gradient is written over the logits. In one op with the loss a chunk of rows exists.
  const double rows = fuses_head_and_loss(model)
                          ? std::min(tokens, d(LinearCrossEntropyOptions().chunk_rows))
                          : tokens;
  if (stage.post_process()) {
    estimate.logits = bytes_of(rows * d((model.vocab_size + tp - 1) / tp) *
                               (model.use_fused_kernels ? element : element + 4));
  }
  double widest = std::max(2 * hidden + mlp, 2 * hidden + 2 * (queries + 2 * keys));
  if (layers.mixtures > 0) {
    // Rows of experts and their gradients, also on their way.
    const double rows = d(model.moe.moe_router_topk) * load * d(etp) / d(tp);
    const double inner =
        d(moe_ffn_hidden_size(model)) / d(etp) * (model.hidden_act == "swiglu" ? 3 : 2);
    widest = std::max(widest, rows * (2 * hidden + inner));
  }
  estimate.workspace = bytes_of(tokens * element * widest);
  if (cp > 1) {
    // Keys and values of whole sequences, a quarter of the groups at a time: gathered, in order and
    // the next ones on their way, and their gradients in float32 in two orders.
    const double segment = keys / std::min(4.0, keys / channels);
    estimate.workspace += bytes_of(2 * d(cp) * tokens * segment * (3 * element + 2 * 4));
  }
  return estimate;
}

}  // namespace

MemoryEstimate estimate_memory(const AllConfig& config, int64_t data_parallel_size) {
  const int64_t layers = config.model_config.num_layers;
  parameter_count(config.model_config);  // throws for numbers that are out of all bounds
  const auto table = layer_ranges(layers, config.parallel_config);
  MemoryEstimate largest;
  const int stages = static_cast<int>(config.parallel_config.pipeline_model_parallel_size);
  for (int rank = 0; rank < stages; ++rank) {
    PipelineStage stage{.rank = rank, .size = stages, .chunks = {}};
    for (const auto& row : table) {
      stage.chunks.push_back(row[static_cast<size_t>(rank)]);
    }
    MemoryEstimate estimate = estimate_stage(config, stage, data_parallel_size, 1);
    if (const double load = worst_expert_load(config); load > 1) {
      const MemoryEstimate worst = estimate_stage(config, stage, data_parallel_size, load);
      estimate.unbalanced =
          worst.activations + worst.workspace - estimate.activations - estimate.workspace;
    }
    if (rank == 0 || estimate.total() > largest.total()) {
      largest = std::move(estimate);
    }
  }
  return largest;
}

std::string size_text(int64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto size = static_cast<double>(bytes);
  size_t unit = 0;
  while (size >= 1024 && unit + 1 < kUnits.size()) {
    size /= 1024;
    ++unit;
  }
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), unit == 0 ? "%.0f %s" : "%.1f %s", size, kUnits[unit]);
  return text.data();
}

std::string memory_text(const MemoryEstimate& estimate) {
  std::string text;
  if (estimate.stages > 1) {
    text = concat("pipeline stage ", estimate.stage, " of ", estimate.stages,
                  ", which needs the most:\n");
  }
  text += "parameters (" + std::to_string(estimate.parameter_count) +
          (estimate.expert_parameter_count > 0
               ? concat(", of experts ", estimate.expert_parameter_count)
               : std::string()) +
          "): " + size_text(estimate.parameters) + "\n";
  if (estimate.weight_copies > 0) {
    text += "16-bit copies of weights: " + size_text(estimate.weight_copies) + "\n";
  }
  return text + "gradients: " + size_text(estimate.gradients) +
         "\noptimizer state: " + size_text(estimate.optimizer) +
         (estimate.in_flight > 1
              ? concat("\nactivations of ", estimate.in_flight, " passes in flight: ")
              : std::string("\nactivations of one micro-batch: ")) +
         size_text(estimate.activations) +
         (estimate.recompute_flops > 0 || estimate.recompute_saved > 0
              ? concat(" (recomputation spares ", size_text(estimate.recompute_saved),
                       " of each micro-batch)")
              : std::string()) +
         "\nlogits: " + size_text(estimate.logits) +
         "\nworkspace: " + size_text(estimate.workspace) +
         (estimate.snapshot > 0 ? "\ncopy for async_save: " + size_text(estimate.snapshot)
                                : std::string()) +
         "\ntotal: " + size_text(estimate.total()) +
         (estimate.unbalanced > 0
              ? concat("\nmore, if one rank's experts get as many tokens as they can: ",
                       size_text(estimate.unbalanced))
              : std::string()) +
         (estimate.start > estimate.total()
              ? "\nat the start, with all weights in float32: " + size_text(estimate.start)
              : std::string());
}

void check_fits(const MemoryEstimate& estimate, int64_t available) {
  check<ValueError>(
      estimate.peak() <= available, "this configuration needs about ", size_text(estimate.peak()),
      " of memory, but ", size_text(available), " are available:\n", memory_text(estimate),
      "\nWhat would help: ",
      estimate.activations + estimate.logits + estimate.workspace > estimate.total() / 2
          ? "a smaller dataset_config.batch_size (with more micro_batch_num) or "
            "model_config.seq_length"
          : "fewer model_config.num_layers or a smaller hidden_size and ffn_hidden_size",
      ", a machine with more memory, or a smaller preset: try "
      "examples/gpt/pretrain_gpt_tiny.yaml",
      estimate.recompute_could_save > 0
          ? concat("\nThe same training, a quarter slower: recompute_config: True (",
                   size_text(estimate.recompute_could_save), " less)")
          : std::string(),
      savings_text(estimate));
}

double saved_bytes(const AllConfig& config) {
  const OptimizerConfig& o = config.optimizer_config;
  const TransformerConfig& model = config.model_config;
  if (!model.lora.use_lora) {
    return saved_bytes_per_parameter(o, model) * static_cast<double>(parameter_count(model));
  }
  const TrainedShare share = trained_share(model);
  return share.trained() * (4 + state_bytes_per_parameter(o, model));
}

double saved_bytes_per_parameter(const OptimizerConfig& config, const TransformerConfig& model) {
  return 4 + state_bytes_per_parameter(config, model);
}

}  // namespace tapestry
