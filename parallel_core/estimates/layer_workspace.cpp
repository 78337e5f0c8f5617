#include "parallel_core/estimates/layer_workspace.h"

#include <algorithm>

#include "autograd/kernels/gemm/gemm.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "parallel_core/precision.h"

namespace tapestry {

LayerWorkspace::LayerWorkspace(const AllConfig& config,
                               const ModelShares& shares,
                               const PassSize& pass,
                               double load)
    : config_(config),
      model_(config.model_config),
      shares_(shares),
      cp_(std::max<int64_t>(config.parallel_config.context_parallel_size, 1)),
      pass_(pass),
      load_(load) {}

double LayerWorkspace::packed(double rows, double tokens) const {
  constexpr double kRows = 1024;
  constexpr double kDepth = 2048;
  constexpr double kPanels = 768 << 10;
  const bool half = pass_.element < 4;
  const bool pairs =
      model_.compute_dtype == kBFloat16 && kernels::has_native_gemm(model_.compute_dtype);
  const int64_t threads = config_.training_config.num_threads.value_or(num_threads());
  double bytes = kPanels * d(threads);
  if (half && !pairs) {  // which is converted while it is packed, also what is not transposed
    const double most = std::max(rows, tokens);
    bytes += 4 * std::min(most, kRows) * std::min(most, kDepth);
  } else {
    bytes += 4 * std::min(rows, kRows) * std::min(tokens / (pairs ? 2 : 1), kDepth);
  }
  if (half && rows > kDepth * (pairs ? 2 : 1)) {  // sums of a product that has 16 bits
    bytes += 4 * std::min(tokens, 2 * kRows) * d(model_.hidden_size);
  }
  return bytes;
}

double LayerWorkspace::usual(int64_t layer) const {
  const double hidden = d(model_.hidden_size);
  const LayerWidths widths = layer_widths(model_, layer, shares_);
  const double values_in_mlp = d(widths.gates + 1);
  const double keys_and_values = d(widths.keys + widths.values);
  const MixerWidths mixer = mixer_widths(model_, mixer_kind(model_, layer), shares_);
  double widest = std::max({2 * hidden + d(widths.ffn) * values_in_mlp,
                            2 * hidden + 2 * (d(widths.queries) + keys_and_values),
                            2 * hidden + 2 * d(mixer.projected + mixer.values)});
  if (is_moe_layer(model_, layer)) {
    // Rows of experts and their gradients, also on their way.
    const double rows =
        d(model_.moe.moe_router_topk) * load_ * d(shares_.expert_tensor) / d(shares_.tensor);
    widest = std::max(widest, rows * (2 * hidden + d(widths.expert_ffn) * values_in_mlp));
  }
  double bytes = pass_.tokens * pass_.element * widest;
  if (model_.hyper_connections.enabled) {
    // The gradients of all streams before and behind a block.
    bytes += 2 * pass_.own * d(residual_streams(model_)) * hidden *
             d(size_of(precision_of(model_).residual));
  }
  if (cp_ > 1) {
    // Keys and values of whole sequences, a quarter of the groups at a time: gathered, in order
    // and the next ones on their way, and their gradients in float32 in two orders.
    const double segment = keys_and_values / std::min(4.0, std::max(1.0, d(widths.groups)));
    bytes += d(cp_) * pass_.tokens * segment * (3 * pass_.element + 2 * 4);
  }
  return bytes;
}

// Of the backward pass of a layer with attention and one MLP, beside all that it has kept and
// what is made again: the most of the products of the MLP, where its activation is there as well;
// its activation, which reads what it was made of and writes as much; and attention, before which
// that has gone.
double LayerWorkspace::dense(int64_t layer) const {
  const LayerWidths widths = layer_widths(model_, layer, shares_);
  const double per_width = pass_.tokens * pass_.element;
  const double hidden = per_width * d(model_.hidden_size);
  // The residual sum's gradient, where the block has another one.
  const bool apart = norms_outputs(model_, layer) || model_.hidden_dropout > 0 ||
                     precision_of(model_).residual != model_.compute_dtype;
  const double sum =
      apart ? pass_.tokens * d(model_.hidden_size) * d(size_of(precision_of(model_).residual)) : 0;
  const double ffn = per_width * d(widths.ffn);
  const double up = ffn * d(widths.gates);
  const double mixer = 2 * per_width * d(widths.queries + widths.keys + widths.values);
  const double packs = packed_in(widths);
  const bool reads_input = model_.hidden_act != "relu";
  return sum +
         std::max({hidden + ffn + packs, hidden + up, 3 * hidden + packs - (reads_input ? ffn : 0),
                   2 * hidden + mixer + packs - ffn - (reads_input ? up : 0)});
}

// The same of a layer of experts, whose rows are on their way twice.
double LayerWorkspace::experts(int64_t layer) const {
  const LayerWidths widths = layer_widths(model_, layer, shares_);
  const double per_width = pass_.tokens * pass_.element;
  const double hidden = per_width * d(model_.hidden_size);
  const double rows = pass_.element * pass_.tokens * d(model_.moe.moe_router_topk) * load_ *
                      d(shares_.expert_tensor) / d(shares_.tensor);
  const double moved = hidden + 2 * rows * d(model_.hidden_size);
  const double ffn = rows * d(widths.expert_ffn);
  const double up = ffn * d(widths.gates);
  const double shared = per_width * d(widths.shared_ffn) * d(widths.gates + 1);
  const double mixer = 2 * per_width * d(widths.queries + widths.keys + widths.values);
  const double packs = packed_in(widths);
  return std::max({moved + shared + ffn + packs, moved + shared + up,
                   moved + rows * d(model_.hidden_size) + up + packs - ffn,
                   2 * hidden + mixer + packs - ffn});
}

double LayerWorkspace::packed_in(const LayerWidths& widths) const {
  return packed(
      std::max(d(widths.ffn * widths.gates), d(widths.queries + widths.keys + widths.values)),
      pass_.tokens);
}

// Attention and an MLP or experts, and nothing beside.
bool LayerWorkspace::is_plain(int64_t layer) const {
  return mixer_kind(model_, layer) == MixerKind::kAttention && !model_.moe.moe_beside_dense &&
         cp_ == 1 && !model_.hyper_connections.enabled && !model_.multi_latent_attention &&
         !has_parallel_blocks(model_, layer) && model_.per_layer_embedding_size == 0;
}

double LayerWorkspace::backward(int64_t layer) const {
  if (!is_plain(layer)) {
    return usual(layer) + packed_in(layer_widths(model_, layer, shares_));
  }
  return is_moe_layer(model_, layer) ? experts(layer) : dense(layer);
}

}  // namespace tapestry
