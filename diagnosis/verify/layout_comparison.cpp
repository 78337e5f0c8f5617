#include "diagnosis/verify/layout_comparison.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>

#include "autograd/ops/map.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"
#include "diagnosis/verify/zero_gradient.h"
#include "parallel_core/context_parallel/context_parallel_layout.h"
#include "parallel_core/parallel_state.h"

namespace tapestry {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// "rank 5 (tp 1, pp 1, dp 0)": the axes that have more than one rank.
std::string place_of_rank() {
  std::string axes;
  const auto add = [&](const char* name, int rank, int size) {
    if (size > 1) {
      axes += concat(axes.empty() ? "" : ", ", name, " ", rank);
    }
  };
  add("tp", get_tensor_model_parallel_rank(), get_tensor_model_parallel_world_size());
  add("cp", get_context_parallel_rank(), get_context_parallel_world_size());
  add("dp", get_data_parallel_rank(), get_data_parallel_world_size());
  add("ep", get_expert_model_parallel_rank(), get_expert_model_parallel_world_size());
  if (get_expert_tensor_parallel_world_size() != get_tensor_model_parallel_world_size()) {
    add("etp", get_expert_tensor_parallel_rank(), get_expert_tensor_parallel_world_size());
  }
  add("pp", get_pipeline_model_parallel_rank(), get_pipeline_model_parallel_world_size());
  return concat("rank ", RankContext::current().rank(), axes.empty() ? "" : " (" + axes + ")");
}

// What a rank has of the whole value, by its own account; undefined if the whole has another shape.
Tensor own_part(const Tensor& whole, const ValuePlacement& placement) {
  if (placement.global_shape != whole.shape()) {
    return {};
  }
  const NoGradGuard guard;
  Tensor part = whole;
  for (int64_t axis = 0; axis < whole.dim(); ++axis) {
    TensorList ranges;
    for (const ValuePlacement::Range& range : placement.ranges[static_cast<size_t>(axis)]) {
      ranges.push_back(part.slice(axis, range.begin, range.end));
    }
    part = ranges.size() == 1 ? ranges[0] : cat(ranges, axis);
  }
  return part;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype() || a.numel() != b.numel()) {
    return false;
  }
  const NoGradGuard guard;
  const Tensor x = dense(a);
  const Tensor y = dense(b);
  return std::memcmp(x.raw(), y.raw(), static_cast<size_t>(x.numel() * size_of(x.dtype()))) == 0;
}

template <class F>
void each_slice(const nn::Module& model, const F& function) {
  const NoGradGuard guard;
  for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
    for (const nn::LogicalTensor& logical : entry.parameter->logical()) {
      function(entry, logical);
    }
  }
}

}  // namespace

std::string maker_of_activation(const std::string& activation) {
  static const std::map<std::string, std::string> kMakers = {
      {"embedding", "Embedding (VocabParallelEmbedding, positions, dropout)"},
      {"attention_norm", "ParallelNorm input_norm"},
      {"attention.query", "ColumnParallelLinear qkv_proj in ParallelAttention"},
      {"attention.key", "ColumnParallelLinear qkv_proj in ParallelAttention"},
      {"attention.value", "ColumnParallelLinear qkv_proj in ParallelAttention"},
      {"attention.q",
       "ColumnParallelLinear qkv_proj (with norm and rotation) in ParallelAttention"},
      {"attention.k",
       "ColumnParallelLinear qkv_proj (with norm and rotation) in ParallelAttention"},
      {"attention.v", "ColumnParallelLinear qkv_proj in ParallelAttention"},
      {"attention.context", "ParallelAttention"},
      {"attention", "RowParallelLinear out_proj in ParallelAttention, dropout"},
      {"attention_residual", "ParallelTransformerLayer (residual sum)"},
      {"ffn_norm", "ParallelNorm post_attention_norm"},
      {"mlp.gate", "ColumnParallelLinear mapping in ParallelMLP"},
      {"mlp.up", "ColumnParallelLinear mapping in ParallelMLP"},
      {"mlp.active", "ParallelMLP (activation)"},
      {"mlp", "ParallelMLP or MoELayer, dropout"},
      {"moe.router_logits", "TopKRouter"},
      {"moe.gates", "TopKRouter"},
      {"moe.shared_expert_gate", "SharedExpertGate"},
      {"output", "ParallelTransformerLayer (residual sum)"},
      {"final_norm", "ParallelNorm final_norm"},
      {"logits", "ParallelLMLogits"}};
  std::string name = activation;
  if (name.rfind("layers.", 0) == 0) {
    name = name.substr(name.find('.', std::string("layers.").size()) + 1);
  }
  const auto found = kMakers.find(name);
  return found == kMakers.end() ? std::string() : found->second;
}

RankComparison::RankComparison(const LayoutPair& pair,
                               const LayoutTrace& trace,
                               const RoundingSpread& spread,
                               LayoutFindings& findings)
    : config_(pair.layout),
      by_norm_(pair.layout.model_config.compute_dtype != kFloat32),
      exact_(pair.layout.training_config.exact),
      trace_(trace),
      spread_(spread),
      findings_(&findings),
      where_(place_of_rank()) {}

RankComparison::RankComparison(const LayoutPair& pair,
                               const LayoutTrace& trace,
                               RoundingSpread& measured)
    : config_(pair.layout),
      by_norm_(pair.layout.model_config.compute_dtype != kFloat32),
      exact_(pair.layout.training_config.exact),
      trace_(trace),
      spread_(measured),
      measured_(&measured) {}

void RankComparison::describe_modules(ParallelModel& model) {
  for (const nn::Module::NamedModule& entry : model.named_modules()) {
    types_.emplace(entry.name, entry.module->type_name());
  }
}

void RankComparison::weights_before(const nn::Module& model,
                                    const LogicalState& expected,
                                    size_t look) {
  each_slice(model, [&](const nn::Module::NamedParameter& entry, const nn::LogicalTensor& logical) {
    const Tensor& whole = expected.at(logical.name);
    const Tensor own = logical.view_of(*entry.parameter).reshape(logical.local_shape());
    add({.what = Compared::kInitialWeights,
         .order = look * trace_.tensors.size() + trace_.index_of(logical.name),
         .name = logical.name,
         .made_by = maker_of_parameter(entry.name),
         .distance = element_distance(own, logical.slice_of(whole), largest_element(whole))},
        0);
  });
}

void RankComparison::activations(int64_t step, SampleRecorder& recorder) {
  const StepTrace& expected = step_of(step);
  for (const ActivationKey& key : recorder.order()) {
    if (step > 1 && !exact_ && has_free_bias(key.first)) {
      continue;
    }
    Finding finding = {.what = Compared::kActivation,
                       .step = step,
                       .name = key.first,
                       .made_by = maker_of_activation(key.first),
                       .detail = concat("sample ", key.second)};
    const auto& [own, placement] = recorder.rows().at(key);
    const auto found = expected.activations.find(key);
    if (found == expected.activations.end()) {
      finding.distance = kInfinity;
      finding.detail += ", which one process does not compute in this step";
      add(finding);
      continue;
    }
    finding.order = static_cast<size_t>(
        std::find(expected.order.begin(), expected.order.end(), key) - expected.order.begin());
    const Tensor part = own_part(found->second, placement);
    if (part.defined()) {
      finding.distance = distance(own, part, found->second);
    } else {
      finding.distance = kInfinity;
      finding.detail +=
          concat(", a part of ", placement.global_shape, ", the whole is ", found->second.shape());
    }
    add(finding);
  }
}

void RankComparison::choice(int64_t step, const ChoiceDifference& difference) {
  const std::vector<ActivationKey>& order = step_of(step).order;
  const std::string made_of_it = concat("layers.", difference.layer, ".moe.gates");
  const auto first = [&](const auto& wanted) {
    return static_cast<size_t>(std::find_if(order.begin(), order.end(), wanted) - order.begin());
  };
  Finding finding = {.what = Compared::kChoice,
                     .step = step,
                     .order = first([&](const ActivationKey& key) {
                       return key == ActivationKey(made_of_it, difference.sample);
                     }),
                     .name = difference.name,
                     .made_by = "TopKRouter",
                     .distance = difference.gap,
                     .detail = difference.detail};
  if (finding.order == order.size()) {  // not a sample whose activations are compared
    finding.order = first([&](const ActivationKey& key) { return key.first == made_of_it; });
  }
  if (measured_ != nullptr && difference.is_close()) {
    return;  // as in a layout, the choice was replaced
  }
  add(finding, measured_ != nullptr
                   ? std::nullopt
                   : std::optional(std::max(kClosestChoice, spread_.bound_of(finding))));
}

void RankComparison::choices_compared(int64_t count) {
  if (findings_ != nullptr) {
    findings_->add_equal(Compared::kChoice, count);
  }
}

void RankComparison::expert_counts(int64_t step, const StepResult& found) {
  const StepResult& expected = step_of(step).result;
  if (!expected.moe) {
    return;
  }
  size_t order = 0;
  const auto compare = [&](const std::string& name, const std::vector<int64_t>& own,
                           const std::vector<int64_t>& theirs) {
    Finding finding = {.what = Compared::kExpertCounts,
                       .step = step,
                       .order = order++,
                       .name = name,
                       .made_by = "TopKRouter and its sums over micro-batches and ranks"};
    finding.distance = own.size() == theirs.size() ? 0 : kInfinity;
    for (size_t e = 0; e < std::min(own.size(), theirs.size()); ++e) {
      if (own[e] != theirs[e]) {
        finding.distance += std::abs(static_cast<double>(own[e] - theirs[e]));
        finding.detail += concat(finding.detail.empty() ? "" : ", ", "expert ", e, ": ", own[e],
                                 " against ", theirs[e]);
      }
    }
    add(finding);
  };
  for (const auto& [layer, theirs] : expected.moe->layers) {
    const std::string name = concat("layers.", layer, ".moe.");
    const bool is_there = found.moe && found.moe->layers.contains(layer);
    const MoELayerStatistics ours = is_there ? found.moe->layers.at(layer) : MoELayerStatistics();
    compare(name + "tokens_per_expert", ours.tokens_per_expert, theirs.tokens_per_expert);
    compare(name + "dropped_per_expert", ours.dropped_per_expert, theirs.dropped_per_expert);
  }
}

void RankComparison::step_result(int64_t step, const StepResult& found) {
  const StepResult& expected = step_of(step).result;
  expert_counts(step, found);
  number(Compared::kTokens, step, "tokens", static_cast<double>(found.tokens),
         static_cast<double>(expected.tokens), 0);
  number(Compared::kTokens, step, "loss_tokens", found.loss_tokens, expected.loss_tokens, 0);
  number(Compared::kLoss, step, "loss", found.loss, expected.loss, {},
         "VocabParallelCrossEntropy and its sum over micro-batches and ranks");
  for (size_t i = 0; i < expected.mtp_losses.size(); ++i) {
    number(Compared::kLoss, step, concat("mtp_", i + 1, "_loss"),
           i < found.mtp_losses.size() ? found.mtp_losses[i] : kInfinity, expected.mtp_losses[i],
           {},
           "VocabParallelCrossEntropy of a further token and its sum over micro-batches and ranks");
  }
  if (found.moe && expected.moe && expected.moe->aux_loss != 0) {
    number(Compared::kLoss, step, "aux_loss", found.moe->aux_loss, expected.moe->aux_loss, {},
           "the balance losses of TopKRouter and their sum over micro-batches and ranks");
  }
  number(Compared::kGradNorm, step, "grad_norm", found.grad_norm, expected.grad_norm, {},
         "the sum of squares over ranks");
  number(Compared::kGradNorm, step, "finite", found.finite ? 1 : 0, expected.finite ? 1 : 0, 0,
         "the finite check over ranks");
  number(Compared::kSchedule, step, "loss_scale", found.loss_scale, expected.loss_scale, 0);
  for (size_t i = 0; i < expected.lr.size(); ++i) {
    number(Compared::kSchedule, step, concat("learning rate of group ", i),
           i < found.lr.size() ? found.lr[i] : kInfinity, expected.lr[i], 1e-12);
  }
}

void RankComparison::gradients(int64_t step, const nn::Module& model) {
  const StepTrace& expected = step_of(step);
  double squares = 0;  // the norm of the step is not known yet
  for (const auto& [name, gradient] : expected.gradients) {
    squares += std::pow(euclidean_norm(gradient), 2);
  }
  each_slice(model, [&](const nn::Module::NamedParameter& entry, const nn::LogicalTensor& logical) {
    if (!entry.parameter->requires_grad()) {
      return;  // of a base beside which adapters are trained
    }
    const Tensor& whole = expected.gradients.at(logical.name);
    const Tensor gradient = entry.parameter->grad();
    const Tensor own = gradient.defined() ? logical.view_of(gradient).reshape(logical.local_shape())
                                          : zeros(logical.local_shape());
    Finding finding = {.what = Compared::kGradient,
                       .step = step,
                       .order = trace_.tensors.size() - 1 - trace_.index_of(logical.name),
                       .name = logical.name,
                       .made_by = "backward of " + maker_of_parameter(entry.name)};
    finding.zero_gradient = has_zero_gradient(config_.model_config, logical.name);
    if (finding.zero_gradient == ZeroGradient::kAll && !exact_) {
      finding.distance = norm_distance(own, logical.slice_of(whole), std::sqrt(squares));
      finding.detail = "zero but for rounding, against the norm of all";
    } else {
      finding.distance = distance(own, logical.slice_of(whole), whole);
    }
    add(finding);
  });
}

void RankComparison::weights(int64_t step,
                             const nn::Module& model,
                             const optim::Optimizer& optimizer) {
  const StepTrace& expected = step_of(step);
  each_slice(model, [&](const nn::Module::NamedParameter& entry, const nn::LogicalTensor& logical) {
    const ZeroGradient zero = has_zero_gradient(config_.model_config, logical.name);
    const Tensor& whole = expected.weights.at(logical.name);
    // Of 16-bit parameters the masters, which all ranks of a group bring together.
    const Tensor all = entry.parameter->dtype() == kFloat32 ? Tensor(*entry.parameter)
                                                            : optimizer.main_param(entry.name);
    if (zero == ZeroGradient::kAll && !exact_) {
      return;
    }
    const Tensor own = logical.view_of(all).reshape(logical.local_shape());
    add({.what = Compared::kWeights,
         .step = step,
         .order = trace_.index_of(logical.name),
         .name = logical.name,
         .made_by =
             config_.optimizer_config.optimizer_type + ", of " + maker_of_parameter(entry.name),
         .distance = of_bits(norm_distance(own, logical.slice_of(whole), euclidean_norm(whole)),
                             own, logical.slice_of(whole)),
         .zero_gradient = zero});
  });
  for (const nn::Module::NamedBuffer& entry : model.named_buffers()) {
    if (entry.logical.empty()) {
      continue;
    }
    const Tensor& whole = expected.weights.at(entry.logical);
    add({.what = Compared::kWeights,
         .step = step,
         .order = trace_.tensors.size(),
         .name = entry.logical,
         .made_by = maker_of_parameter(entry.name),
         .distance = norm_distance(entry.buffer, whole, euclidean_norm(whole))});
  }
}

// Keys after updates, where the optimizer has turned rounding into steps of their biases.
bool RankComparison::has_free_bias(const std::string& activation) const {
  if (!activation.ends_with(".attention.k") && !activation.ends_with(".attention.key")) {
    return false;
  }
  const std::string layer = activation.substr(0, activation.rfind('.') + 1);
  for (const std::string& bias : {layer + "wk.bias", layer + "k_norm.bias"}) {
    if (has_zero_gradient(config_.model_config, bias) != ZeroGradient::kNone &&
        trace_.start.contains(bias)) {
      return true;
    }
  }
  return false;
}

const StepTrace& RankComparison::step_of(int64_t step) const {
  return trace_.steps.at(static_cast<size_t>(step - 1));
}

// "ColumnParallelLinear language_model.encoder.layers.0.attention.qkv_proj"
std::string RankComparison::maker_of_parameter(const std::string& path) const {
  const std::string module = path.substr(0, std::min(path.rfind('.'), path.size()));
  const auto type = types_.find(module);
  return (type == types_.end() ? std::string() : type->second + " ") + module;
}

double RankComparison::distance(const Tensor& found,
                                const Tensor& expected,
                                const Tensor& whole) const {
  const double far = by_norm_ ? norm_distance(found, expected, euclidean_norm(whole))
                              : element_distance(found, expected, largest_element(whole));
  return of_bits(far, found, expected);
}

// In exact mode values that are equal as numbers, zeros of either sign, may have other bits; a
// distance that is not 0 may be too small for the norm of the whole.
double RankComparison::of_bits(double distance, const Tensor& found, const Tensor& expected) const {
  constexpr double kLeast = std::numeric_limits<double>::min();
  return exact_ && distance == 0 && !same_bits(found, expected) ? kLeast : distance;
}

void RankComparison::number(Compared what,
                            int64_t step,
                            const std::string& name,
                            double found,
                            double expected,
                            std::optional<double> bound,
                            const std::string& made_by) {
  const double difference = std::abs(found - expected);
  add({.what = what,
       .step = step,
       .name = name,
       .made_by = made_by,
       .distance = difference == 0 ? 0 : difference / std::abs(expected),
       .detail = concat(found, " against ", expected)},
      bound);
}

void RankComparison::add(Finding finding, std::optional<double> bound) {
  if (measured_ != nullptr) {
    if (!bound) {
      measured_->add(finding);
    }
    return;
  }
  finding.where = where_;
  if (exact_) {
    finding.bound = 0;
    findings_->add(finding);
    return;
  }
  finding.bound = bound ? *bound : spread_.bound_of(finding);
  finding.bound_is_measured = !bound;
  findings_->add(finding);
}

}  // namespace tapestry
