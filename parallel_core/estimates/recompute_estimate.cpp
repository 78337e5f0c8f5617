#include "parallel_core/estimates/recompute_estimate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "autograd/tensor/allocator.h"
#include "autograd/tensor/dtype.h"
#include "parallel_core/config/model_matrices.h"
#include "parallel_core/estimates/attention_context.h"
#include "parallel_core/estimates/memory_estimate.h"
#include "parallel_core/estimates/recurrence.h"
#include "parallel_core/precision.h"
#include "parallel_core/transformer/activation.h"

namespace tapestry {

namespace {

constexpr size_t kOps = static_cast<size_t>(LayerOp::kCount);

double as_double(int64_t value) { return static_cast<double>(value); }

struct OpCost {
  double bytes = 0;   // of its result
  bool kept = false;  // usually, for somebody's backward
  double beside = 0;  // what it keeps for its own
  double flops = 0;
  std::vector<LayerOp> inputs;
};

// Widths and tokens of a rank.
struct Sizes {
  Sizes(const AllConfig& config, int64_t layer, double load) {
    const TransformerConfig& model = config.model_config;
    const ModelParallelConfig& p = config.parallel_config;
    const int64_t tp = std::max<int64_t>(p.tensor_model_parallel_size, 1);
    widths =
        layer_widths(model, layer, {.tensor = tp, .expert_tensor = expert_tensor_parallel_size(p)});
    tokens = as_double(config.dataset_config.batch_size) * as_double(model.seq_length) /
             as_double(std::max<int64_t>(p.context_parallel_size, 1));
    ranks = as_double(tp);
    piece = tokens / (model.sequence_parallel ? ranks : 1.0);
    hidden = as_double(model.hidden_size);
    queries = as_double(widths.queries);
    keys = as_double(widths.keys);
    values = as_double(widths.values);
    context = as_double(widths.context);
    for (const ModelMatrix& matrix : layer_matrices(model, layer)) {
      const MatrixRole role = matrix.role;
      if (role == MatrixRole::kQuery || role == MatrixRole::kKey || role == MatrixRole::kValue ||
          role == MatrixRole::kMixing) {
        heads_weights += weight_elements(matrix, {.tensor = tp});
      }
    }
    mixer = mixer_widths(model, mixer_kind(model, layer), {.tensor = tp});
    mixed = mixer.values > 0 ? as_double(mixer.values) : context;
    heads = as_double(widths.heads);
    groups = as_double(widths.groups);
    ffn = as_double(widths.ffn);
    up = ffn * as_double(widths.gates);
    value_norms = model.v_layernorm ? values : 0;
    per_layer = as_double(model.per_layer_embedding_size);
    streams = as_double(residual_streams(model));
    attention_flops = 2 * mean_context(model, layer) * (queries + context) * tokens;
    const Precision precision = precision_of(model);
    activation = as_double(size_of(precision.activation));
    residual = as_double(size_of(precision.residual));
    rows = tokens;
    if (is_moe_layer(model, layer)) {
      add_experts(config, load);
    }
  }

  // Rows of experts take the place of tokens in the MLP, and a shared expert's stand beside.
  void add_experts(const AllConfig& config, double load) {
    const double etp = as_double(expert_tensor_parallel_size(config.parallel_config));
    const double gates = as_double(widths.gates);
    routed = tokens / ranks;
    sent = routed * as_double(config.model_config.moe.moe_router_topk);
    rows = sent * etp * load;
    ffn = as_double(widths.expert_ffn);
    up = gates * ffn;
    // A dense MLP beside the experts sees every token, as a shared expert does.
    shared = config.model_config.moe.moe_beside_dense ? as_double(widths.ffn)
                                                      : as_double(widths.shared_ffn);
    shared_up = gates * shared;
  }

  LayerWidths widths;
  MixerWidths mixer;         // of a layer without attention
  double mixed = 0;          // channels that its output projection reads, or attention's
  double heads_weights = 0;  // elements of the matrices that the mixer reads its input with
  double tokens, piece, ranks, hidden, queries, keys, values, context, heads, groups, ffn, up,
      attention_flops;
  double activation, residual;  // bytes
  double rows;                  // that go through the MLP, or this rank's experts
  // Of a mixture: tokens whose experts this rank chooses, the rows that it makes of them, and the
  // width of the shared expert.
  double routed = 0, sent = 0, shared = 0, shared_up = 0;
  double value_norms = 0;  // channels of values that are normed
  double per_layer = 0;    // width of per-layer embeddings
  double streams = 1;      // residual ones
};

void set_cost(std::array<OpCost, kOps>& ops,
              LayerOp op,
              double bytes,
              bool kept,
              double flops,
              std::vector<LayerOp> inputs,
              double beside = 0) {
  ops[static_cast<size_t>(op)] = {bytes, kept, beside, flops, std::move(inputs)};
}

// Of attention; the operation whose result the output projection reads.
LayerOp set_attention_costs(const TransformerConfig& model,
                            int64_t layer,
                            const Sizes& s,
                            std::array<OpCost, kOps>& ops) {
  const double per_width = s.tokens * s.activation;
  const bool rotates = has_rotation(model, layer);
  const bool norms = model.qk_layernorm;
  // Several queries of several groups are copied out of the product.
  const bool copies_queries = s.queries > s.keys && s.groups > 1 && (norms || !rotates);
  const double gates = model.attention_output_gate ? s.queries : 0;
  set_cost(ops, LayerOp::kQkv,
           per_width * (s.queries * (copies_queries ? 2 : 1) + gates + s.keys + s.values), true,
           2 * s.tokens * s.heads_weights, {LayerOp::kInputNorm});
  if (norms) {
    set_cost(ops, LayerOp::kQNorm, per_width * s.queries, !rotates, 0, {LayerOp::kQkv});
    set_cost(ops, LayerOp::kKNorm, per_width * s.keys, !rotates, 0, {LayerOp::kQkv});
  }
  if (s.value_norms > 0) {
    set_cost(ops, LayerOp::kVNorm, per_width * s.value_norms, true, 0, {LayerOp::kQkv});
  }
  const std::vector<LayerOp> heads =
      norms ? std::vector<LayerOp>{LayerOp::kQNorm, LayerOp::kKNorm, LayerOp::kQkv}
            : std::vector<LayerOp>{LayerOp::kQkv};
  if (rotates) {
    set_cost(ops, LayerOp::kRotary, per_width * (s.queries + s.keys), true, 0, heads);
  }
  set_cost(ops, LayerOp::kCoreAttention, per_width * s.context, true, s.attention_flops,
           rotates ? std::vector<LayerOp>{LayerOp::kRotary, LayerOp::kQkv} : heads);
  if (model.attention_output_gate) {
    // The gates' sigmoid is kept for the products' gradients.
    set_cost(ops, LayerOp::kOutputGate, per_width * s.context, true, 0,
             {LayerOp::kCoreAttention, LayerOp::kQkv}, per_width * s.context);
    return LayerOp::kOutputGate;
  }
  return LayerOp::kCoreAttention;
}

// The same of a layer without attention.
LayerOp set_mixer_costs(const TransformerConfig& model,
                        int64_t layer,
                        const Sizes& s,
                        std::array<OpCost, kOps>& ops) {
  const MixerKind kind = mixer_kind(model, layer);
  if (kind == MixerKind::kAttention) {
    return set_attention_costs(model, layer, s, ops);
  }
  const MixerWidths& w = s.mixer;
  const double per_width = s.tokens * s.activation;
  set_cost(ops, LayerOp::kQkv, per_width * as_double(w.projected), true,
           2 * s.tokens * s.heads_weights, {LayerOp::kInputNorm});
  if (kind == MixerKind::kShortConv) {
    // B x, which the convolution reads, and what it gives, which is multiplied by C.
    set_cost(ops, LayerOp::kConvolution, 3 * per_width * s.mixed, true, 0, {LayerOp::kQkv});
    return LayerOp::kConvolution;
  }
  set_cost(ops, LayerOp::kConvolution, per_width * as_double(w.convolved), true, 0,
           {LayerOp::kQkv});
  set_cost(ops, LayerOp::kRecurrence, per_width * s.mixed, true,
           s.tokens * recurrence_flops(model, kind) / s.ranks,
           {LayerOp::kConvolution, LayerOp::kQkv},
           kept_states(model, kind) / s.ranks * s.tokens + 8 * s.tokens * as_double(w.value_heads));
  set_cost(ops, LayerOp::kMixerNorm, per_width * s.mixed, true, 0,
           {LayerOp::kRecurrence, LayerOp::kQkv}, 4 * s.tokens * as_double(w.value_heads));
  return LayerOp::kMixerNorm;
}

// What makes the gates of a layer's hyper-connections, and with them is kept in any case, as the
// statistics of norms are.
double kept_logits(const Sizes& s) {
  return s.streams > 1 ? 2 * 4 * s.piece * (s.streams * (s.streams + 2) + 1) : 0;
}

// Of hyper-connections: each block reads a mixture, with its gates, and its result is kept for the
// gradients of those by which it is written.
void set_stream_costs(const TransformerConfig& model,
                      int64_t layer,
                      const Sizes& s,
                      std::array<OpCost, kOps>& ops) {
  const auto cost = [&](LayerOp op) -> OpCost& { return ops[static_cast<size_t>(op)]; };
  const double gates = s.streams * (s.streams + 2);
  const double numbers = 4 * s.piece * gates;
  const double flops = 2 * s.piece * gates * s.streams * s.hidden;
  const auto reads = [&](LayerOp op, std::vector<LayerOp> inputs) {
    set_cost(ops, op, s.piece * s.hidden * s.residual + numbers, true, flops, std::move(inputs));
  };
  reads(LayerOp::kAttentionStreams, {});
  reads(LayerOp::kMlpStreams, {LayerOp::kAdd});
  cost(LayerOp::kInputNorm).inputs = {LayerOp::kAttentionStreams};
  cost(LayerOp::kPostAttentionNorm).inputs = {LayerOp::kMlpStreams};
  cost(LayerOp::kAdd).bytes *= s.streams;
  cost(LayerOp::kAdd).inputs.push_back(LayerOp::kAttentionStreams);
  const bool sandwich = norms_outputs(model, layer);
  cost(sandwich ? LayerOp::kAttentionPostNorm : LayerOp::kOutProj).kept = true;
  if (sandwich) {
    set_cost(ops, LayerOp::kFfnPostNorm, cost(LayerOp::kAttentionPostNorm).bytes, true, 0,
             {LayerOp::kProjection}, cost(LayerOp::kFfnPostNorm).beside);
  } else {
    cost(LayerOp::kProjection).kept = true;
  }
}

// `keeps_activation`: the MLP's, in place of what it is made from.
std::array<OpCost, kOps> op_costs(const TransformerConfig& model,
                                  int64_t layer,
                                  const Sizes& s,
                                  bool keeps_activation) {
  std::array<OpCost, kOps> ops;
  const auto set = [&](LayerOp op, double bytes, bool kept, double flops,
                       std::vector<LayerOp> inputs) {
    ops[static_cast<size_t>(op)] = {bytes, kept, 0, flops, std::move(inputs)};
  };
  const double hidden = s.piece * s.hidden * s.activation;
  const double residual = s.piece * s.hidden * s.residual;
  const double per_width = s.tokens * s.activation;
  const double per_row = s.rows * s.activation;
  const bool sandwich = norms_outputs(model, layer);
  const bool fused_activation = uses_fused_activation(model);
  set(LayerOp::kInputNorm, norms_inputs(model, layer) ? hidden : 0, true, 0, {});
  const LayerOp mixed = set_mixer_costs(model, layer, s, ops);
  set(LayerOp::kOutProj, hidden, sandwich, 2 * s.tokens * s.mixed * s.hidden, {mixed});
  LayerOp attended = LayerOp::kOutProj;
  if (sandwich) {
    set(LayerOp::kAttentionPostNorm, hidden, false, 0, {LayerOp::kOutProj});
    attended = LayerOp::kAttentionPostNorm;
  }
  set(LayerOp::kAdd, residual, true, 0, {attended});
  set(LayerOp::kPostAttentionNorm,
      norms_inputs(model, layer) && !shares_norm(model, layer) ? hidden : 0, true, 0,
      {LayerOp::kAdd});
  // A bias is added before a gated activation, which keeps the sum.
  const bool adds_bias = has_gated_mlp(model) && model.mlp_has_bias;
  const bool reads_input = model.hidden_act != "relu" && !(adds_bias && keeps_activation);
  set(LayerOp::kMapping, per_row * s.up + per_width * s.shared_up, reads_input,
      2 * s.hidden * (s.rows * s.up + s.tokens * s.shared_up), {LayerOp::kPostAttentionNorm});
  set(LayerOp::kActivation, per_row * s.ffn + per_width * s.shared,
      keeps_activation || !(fused_activation && keeps_only_input(model)), 0, {LayerOp::kMapping});
  ops[static_cast<size_t>(LayerOp::kActivation)].beside =
      adds_bias ? per_row * s.up + per_width * s.shared_up : 0;
  set(LayerOp::kProjection, hidden, sandwich, 2 * s.hidden * (s.rows * s.ffn + s.tokens * s.shared),
      {LayerOp::kActivation});
  if (s.routed > 0) {
    // The experts' input, their output for the gates' gradient, what the router reads in float32.
    const double router = s.activation < 4 ? s.routed * s.hidden * 4 : 0;
    ops[static_cast<size_t>(LayerOp::kMapping)].beside = per_row * s.hidden + router;
    ops[static_cast<size_t>(LayerOp::kProjection)].beside = s.sent * s.hidden * s.activation;
  }
  if (model.moe.moe_beside_dense && s.routed > 0) {
    // The experts' norm of the sum, and both branches, before and behind their norms.
    ops[static_cast<size_t>(LayerOp::kPostAttentionNorm)].beside = hidden;
    ops[static_cast<size_t>(LayerOp::kFfnPostNorm)].beside = 3 * hidden;
  }
  if (s.per_layer > 0) {
    // The gate, its activation and the embedding; z, which the gate reads, and the norm's input.
    const double width = s.piece * s.per_layer * s.activation;
    set(LayerOp::kPerLayerGate, 2 * width, true, 2 * s.piece * s.per_layer * s.hidden,
        {LayerOp::kProjection});
    ops[static_cast<size_t>(LayerOp::kPerLayerGate)].beside = width + residual;
    set(LayerOp::kPerLayerProjection, hidden, true, 2 * s.piece * s.per_layer * s.hidden,
        {LayerOp::kPerLayerGate});
    set(LayerOp::kPerLayerNorm, hidden, false, 0, {LayerOp::kPerLayerProjection});
  }
  if (model.hyper_connections.enabled) {
    set_stream_costs(model, layer, s, ops);
  }
  return ops;
}

std::string number_text(double value, const char* unit) {
  constexpr std::array<const char*, 5> kPrefixes = {"", "k", "M", "G", "T"};
  size_t prefix = 0;
  while (value >= 1000 && prefix + 1 < kPrefixes.size()) {
    value /= 1000;
    ++prefix;
  }
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), "%.3g %s%s", value, kPrefixes[prefix], unit);
  return text.data();
}

// Of what memory a tensor of so many bytes takes.
double in_blocks(double bytes) {
  return bytes < static_cast<double>(CachingAllocator::kLargeBlock)
             ? static_cast<double>(CachingAllocator::rounded_size(static_cast<int64_t>(bytes)))
             : bytes;
}

// "1.5 GiB less", or what exclusions lead to, "1.5 GiB more".
std::string less_text(double bytes) {
  return size_text(static_cast<int64_t>(std::abs(bytes))) + (bytes < 0 ? " more" : " less");
}

}  // namespace

LayerCost layer_cost(const AllConfig& config,
                     const RecomputePolicy& policy,
                     int64_t layer,
                     double load) {
  const Sizes s(config, layer, load);
  const std::array<OpCost, kOps> ops =
      op_costs(config.model_config, layer, s, policy.keeps(LayerOp::kActivation));
  std::array<bool, kOps> needed{};
  LayerCost cost;
  for (size_t i = kOps; i-- > 0;) {
    const auto op = static_cast<LayerOp>(i);
    OpCost own = ops[i];
    own.bytes = in_blocks(own.bytes);
    (policy.recomputes(op) ? cost.transient : cost.kept) += own.beside;
    needed[i] = needed[i] || own.kept;
    if (!needed[i]) {
      continue;
    }
    if (!policy.recomputes(op)) {
      cost.kept += own.bytes;
      continue;
    }
    cost.transient += own.bytes;
    cost.flops += own.flops;
    for (const LayerOp input : own.inputs) {
      needed[static_cast<size_t>(input)] = true;
    }
  }
  if (mixer_kind(config.model_config, layer) == MixerKind::kAttention) {
    cost.kept += 4 * s.tokens * s.heads;  // sums of exponentials
  }
  cost.kept += kept_logits(s);
  const double input = s.piece * s.streams * s.hidden * s.residual;
  if (!policy.full || policy.keeps_input) {
    const bool sliced = policy.full && policy.slices_input && s.piece == s.tokens;
    cost.kept += sliced ? input / s.ranks : input;
    cost.transient += sliced ? input : 0;
  }
  if (s.piece < s.tokens) {
    for (const LayerOp norm : {LayerOp::kInputNorm, LayerOp::kPostAttentionNorm}) {
      cost.kept += policy.keeps_gathered(norm) ? s.tokens * s.hidden * s.activation : 0;
    }
  }
  if (!needed[static_cast<size_t>(LayerOp::kActivation)]) {
    cost.transient += s.rows * s.ffn * s.activation;  // of the MLP, between its products
  }
  return cost;
}

std::vector<LayerCost> layer_costs(const AllConfig& config, double load) {
  std::vector<LayerCost> costs;
  const std::vector<LayerOpName> names = layer_op_names(config.model_config);
  for (const LayerRecompute& layer : config.model_config.layer_recompute) {
    LayerCost cost = layer_cost(config, recompute_policy(layer, names), std::ssize(costs), load);
    if (!layer.keeps_input && !costs.empty()) {
      cost.transient += costs.back().transient;  // the layers of a group are made again together
    }
    costs.push_back(cost);
  }
  return costs;
}

double layer_flops(const AllConfig& config, int64_t layer) {
  double sum = 0;
  for (const OpCost& op : op_costs(config.model_config, layer, Sizes(config, layer, 1), false)) {
    sum += op.flops;
  }
  return sum;
}

std::string recompute_cost_text(const AllConfig& config) {
  if (config.model_config.layer_recompute.empty()) {
    return {};
  }
  const std::vector<LayerCost> costs = layer_costs(config);
  std::vector<LayerCost> usual;
  double usually_kept = 0;
  double flops = 0;
  for (int64_t layer = 0; layer < std::ssize(costs); ++layer) {
    usual.push_back(layer_cost(config, RecomputePolicy(), layer));
    usually_kept += usual.back().kept;
    flops += layer_flops(config, layer);
  }
  std::string text;
  double saved = 0;
  double again = 0;
  for (size_t first = 0; first < costs.size();) {
    size_t end = first;
    while (end < costs.size() && costs[end].kept == costs[first].kept &&
           usual[end].kept == usual[first].kept && costs[end].flops == costs[first].flops) {
      ++end;
    }
    const double less = usual[first].kept - costs[first].kept;
    text += concat(text.empty() ? "" : "; ", end - first == 1 ? "layer " : "layers ", first,
                   end - first == 1 ? std::string() : concat(" to ", end - 1), ": ",
                   less_text(less), ", ", number_text(costs[first].flops, "FLOP"), " more");
    const auto layers = static_cast<double>(end - first);
    saved += less * layers;
    again += costs[first].flops * layers;
    first = end;
  }
  std::array<char, 64> share{};
  std::snprintf(share.data(), share.size(), "%.1f %%", 100 * again / (3 * flops));
  return concat("recompute: of a micro-batch, the layers keep ", less_text(saved), " than ",
                size_text(static_cast<int64_t>(usually_kept)), ", and compute ",
                number_text(again, "FLOP"), " again, ", share.data(),
                " more than their forward and backward passes\nrecompute: of each, ", text);
}

}  // namespace tapestry
