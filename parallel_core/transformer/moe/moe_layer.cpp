#include "parallel_core/transformer/moe/moe_layer.h"

#include <algorithm>

#include "autograd/kernels/machine/exact.h"
#include "autograd/ops/map.h"
#include "autograd/ops/ops.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/init_method.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/parameter_builder.h"
#include "parallel_core/tensor_parallel/mappings.h"
#include "parallel_core/transformer/activation_recorder.h"
#include "parallel_core/transformer/moe/aux_loss.h"
#include "parallel_core/transformer/moe/capacity.h"
#include "parallel_core/transformer/moe/router_logits.h"
#include "parallel_core/transformer/moe/token_dispatcher.h"
#include "parallel_core/transformer/moe/token_leaves.h"

namespace tapestry {

/// One number for each token, of which a sigmoid is taken. Router and gate compute in float32.
class SharedExpertGate final : public nn::Module, public nn::Callable<SharedExpertGate> {
 public:
  SharedExpertGate(const TransformerConfig& config,
                   int64_t layer,
                   const TensorParallelLayout& layout) {
    const Shape shape = {1, config.hidden_size};
    const LogicalInit init = whole(concat("layers.", layer, ".moe.shared_expert_gate.weight"),
                                   shape, weight_init(config));
    weight_ = &register_parameter("weight", initial_value(shape, {init}),
                                  {.tp = layout.hidden_gradient()});
    weight_->set_logical({init.logical});
  }

  std::string type_name() const override { return "SharedExpertGate"; }

  /// x [.., H] -> [.., 1] float32.
  Tensor forward(const Tensor& x) const {
    if (in_exact()) {  // x may be a piece of the sequence: every token is a term
      Shape out = x.shape();
      out[out.size() - 1] = 1;
      return sigmoid(router_logits(x.to(kFloat32).reshape({-1, x.size(-1)}), *weight_).view(out));
    }
    return sigmoid(linear(x.to(kFloat32), weight_->to(kFloat32)));
  }

 private:
  nn::Parameter* weight_;
};

namespace {

ProcessGroup* group_of_tokens(const TensorParallelLayout& tensor,
                              const ContextParallelLayout& context) {
  return tensor.size * context.size > 1 ? &get_tensor_and_context_parallel_group() : nullptr;
}

// The rows of `counts` among places [E * capacity], each expert's first; counts become the places'.
RowMap places_of_rows(std::vector<int64_t>& counts, int64_t capacity) {
  std::vector<int32_t> experts;
  std::vector<uint8_t> used;
  for (size_t e = 0; e < counts.size(); ++e) {
    experts.insert(experts.end(), static_cast<size_t>(capacity), static_cast<int32_t>(e));
    used.insert(used.end(), static_cast<size_t>(counts[e]), 1);
    used.resize(experts.size(), 0);
  }
  RowMap out = row_map(experts, 1, std::ssize(counts), used, counts);
  std::fill(counts.begin(), counts.end(), capacity);
  return out;
}

// The gate of each row, [R, 1]; gates [T, k].
Tensor gates_of_rows(const Tensor& gates, const RowMap& map) {
  return index_select(gates.reshape({gates.numel()}), 0,
                      tensor(map.sources, {std::ssize(map.sources)}))
      .view({std::ssize(map.sources), 1});
}

Tensor with_rows_of_zeros(const Tensor& x, int64_t rows) {
  return x.size(0) == rows ? x : cat({x, zeros({rows - x.size(0), x.size(1)}, x.dtype())}, 0);
}

}  // namespace

// The tokens that this rank routes.
struct MoELayer::OwnTokens {
  Tensor rows;         // [T, H]
  GroupTokens tokens;  // T of them
  bool is_share;       // of what the tensor-parallel group has in common
  int64_t share;       // rows of a rank, some of the last ones' zeros

  // The hidden states [all, ..] of the tensor-parallel group, of these rows [T, ..].
  Tensor whole(const Tensor& own, int64_t all, const TensorParallelLayout& layout) const {
    return is_share
               ? gather_from_model_parallel_region(with_rows_of_zeros(own, share), 0, *layout.group)
                     .slice(0, 0, all)
               : own;
  }
};

MoELayer::MoELayer(const TransformerConfig& config, int64_t layer_number, bool sequence_first)
    : layer_(layer_number - 1),
      sequence_first_(sequence_first),
      hidden_(config.hidden_size),
      num_experts_(config.moe.num_experts),
      topk_(config.moe.moe_router_topk),
      overlaps_(config.moe.moe_shared_expert_overlap),
      gates_inputs_(config.moe.moe_apply_probs_on_input),
      padded_to_(config.moe.moe_pad_expert_input_to_capacity ? config.moe.moe_expert_capacity_factor
                                                             : std::nullopt),
      precision_(precision_of(config)),
      layout_(tensor_parallel_layout(config, sequence_first)),
      context_layout_(context_parallel_layout()),
      routing_group_(group_of_tokens(layout_, context_layout_)),
      router_(&register_module<TopKRouter>("router", config, layer_number, sequence_first)),
      experts_(&register_module<Experts>("experts", config, layer_number)) {
  const std::optional<int64_t>& width = config.moe.moe_shared_expert_intermediate_size;
  if (width) {
    shared_expert_ = &register_module<ParallelMLP>("shared_expert", config, *width,
                                                   concat("layers.", layer_, ".moe.shared_expert."),
                                                   sequence_first);
  }
  if (width && config.moe.use_shared_expert_gating) {
    shared_expert_gate_ =
        &register_module<SharedExpertGate>("shared_expert_gate", config, layer_, layout_);
  }
}

MoELayer::OwnTokens MoELayer::own_tokens(const Tensor& x) const {
  const int64_t batch_axis = sequence_first_ ? 1 : 0;
  const int64_t own = x.size(1 - batch_axis);
  OwnTokens out = {
      .rows = x.reshape({x.size(0) * x.size(1), hidden_}),
      .tokens = group_tokens(routing_group_, hidden_positions(context_layout_, layout_, own),
                             x.size(batch_axis), own, sequence_first_),
      .is_share = layout_.size > 1 && !layout_.sequence_axis,
      .share = x.size(0) * x.size(1)};
  if (out.is_share) {
    const int64_t all = out.share;
    out.share = (all + layout_.size - 1) / layout_.size;
    const int64_t begin = std::min(all, layout_.rank * out.share);
    const int64_t end = std::min(all, begin + out.share);
    out.rows = scatter_to_model_parallel_region(
                   with_rows_of_zeros(out.rows, out.share * layout_.size), 0, *layout_.group)
                   .slice(0, 0, end - begin);
    out.tokens = out.tokens.slice(begin, end);
  }
  return out;
}

Tensor MoELayer::through_shared_expert(const Tensor& x, const LayerPass& pass) {
  const OutputAndBias y = (*shared_expert_)(x, pass);
  Tensor out = add_bias(y.output, y.bias);
  if (shared_expert_gate_ == nullptr) {
    return out;
  }
  const Tensor gate = (*shared_expert_gate_)(x);
  report_if_recorded([&] {
    const int64_t batch_axis = sequence_first_ ? 1 : 0;
    report_activation(layer_value(layer_, "moe.shared_expert_gate"), gate,
                      hidden_axes(gate, batch_axis, context_layout_, layout_), batch_axis);
  });
  return gate * out;
}

// What the experts make of the rank's tokens, [T, H].
Tensor MoELayer::through_experts(const OwnTokens& own,
                                 const Routing& routing,
                                 const Tensor& x,
                                 const LayerPass& pass,
                                 Tensor& shared) {
  const TokenLeaves leaves = in_exact() && is_training() ? token_leaves(own.tokens) : TokenLeaves();
  std::vector<int64_t> counts;
  const RowMap map = leaves.count > 0
                         ? row_map(experts_and_leaves(routing.experts, topk_, leaves), topk_,
                                   num_experts_ * leaves.count, routing.kept, counts)
                         : row_map(routing.experts, topk_, num_experts_, routing.kept, counts);
  Tensor rows = moe_permute(own.rows, map);
  if (gates_inputs_) {
    rows = (rows * gates_of_rows(routing.gates, map)).to(rows.dtype());
  }
  const bool pads = padded_to_ && !routing.kept.empty();
  RowMap places;
  if (pads) {
    places =
        places_of_rows(counts, expert_capacity(own.tokens.total, topk_, num_experts_, *padded_to_));
    rows = moe_unpermute(rows, {}, places);
  }
  TokenDispatcher dispatcher(rows, counts, leaves.count);
  if (overlaps_ && shared_expert_ != nullptr) {
    shared = through_shared_expert(x, pass);
  }
  const Tensor y = (*experts_)(dispatcher.dispatched(experts_->wants_wide_rows()),
                               dispatcher.expert_rows(), pass);
  Tensor out = experts_->finished(dispatcher.reduced(y), experts_->lacks_output_bias()
                                                             ? dispatcher.expert_of_row()
                                                             : std::vector<int64_t>());
  out = dispatcher.combined(out);
  return moe_unpermute(pads ? moe_permute(out, places) : out,
                       gates_inputs_ ? Tensor() : routing.gates, map);
}

OutputAndBias MoELayer::forward(const Tensor& x, const LayerPass& pass) {
  const OwnTokens own = own_tokens(x);
  return through(own, (*router_)(own.rows, own.tokens), x, pass);
}

OutputAndBias MoELayer::forward_routed_by(const Tensor& x,
                                          const Tensor& router_input,
                                          const LayerPass& pass) {
  const nn::ModuleScope scope(*this);
  const OwnTokens read = own_tokens(router_input);
  return through(own_tokens(x), (*router_)(read.rows, read.tokens), x, pass);
}

OutputAndBias MoELayer::through(const OwnTokens& own,
                                const Routing& routing,
                                const Tensor& x,
                                const LayerPass& pass) {
  if (is_training() && !is_recomputing()) {
    counts_.add(routing);
  }
  Tensor shared;
  Tensor routed = through_experts(own, routing, x, pass, shared);
  if (routing.aux_loss.defined()) {
    // In exact mode the loss is a sum over sequences, so that micro-batches do not count.
    const double scale =
        in_exact() ? aux_loss_parts().loss_scale /
                         (aux_loss_parts().micro_batches * static_cast<double>(own.tokens.rows))
                   : aux_loss_scale();
    routed = inject_aux_loss(routed, routing.aux_loss, scale);
  }
  report(routing, own, x);
  Tensor out = own.whole(routed, x.size(0) * x.size(1), layout_).reshape(x.shape());
  if (shared_expert_ != nullptr) {
    if (!shared.defined()) {
      shared = through_shared_expert(x, pass);
    }
    out = out + shared;
  }
  return {out.to(precision_.activation), {}};
}

void MoELayer::report(const Routing& routing, const OwnTokens& tokens, const Tensor& x) const {
  if (!activations_are_recorded()) {
    return;
  }
  const NoGradGuard guard;
  const int64_t batch_axis = sequence_first_ ? 1 : 0;
  const Tensor chosen = routing.gates.detach();
  const Tensor gates = zeros({chosen.size(0), num_experts_});
  for (int64_t i = 0; i < chosen.numel(); ++i) {
    const auto at = static_cast<size_t>(i);
    if (routing.kept.empty() || routing.kept[at] != 0) {
      gates.data<float>()[i / topk_ * num_experts_ + routing.experts[at]] =
          dense(chosen).data<float>()[i];
    }
  }
  const auto show = [&](const char* name, const Tensor& value) {
    const Tensor all = shown_only([&] {
      return tokens.whole(value, x.size(0) * x.size(1), layout_)
          .reshape({x.size(0), x.size(1), num_experts_});
    });
    report_activation(layer_value(layer_, name), all,
                      hidden_axes(all, batch_axis, context_layout_, layout_), batch_axis);
  };
  show("moe.router_logits", routing.logits.detach());
  show("moe.gates", gates);
}

}  // namespace tapestry
