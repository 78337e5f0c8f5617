#include "parallel_core/transformer/moe/router.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>

#include "autograd/kernels/exact/exact_sums.h"
#include "autograd/kernels/machine/exact.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/indexing.h"
#include "autograd/ops/map.h"
#include "autograd/ops/norm.h"
#include "autograd/ops/reduction.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/thread_state.h"
#include "parallel_core/init_method.h"
#include "parallel_core/parameter_builder.h"
#include "parallel_core/random.h"
#include "parallel_core/tensor_parallel/tensor_parallel_layout.h"
#include "parallel_core/transformer/moe/choice_observer.h"
#include "parallel_core/transformer/moe/expert_bias.h"
#include "parallel_core/transformer/moe/group_sums.h"
#include "parallel_core/transformer/moe/router_logits.h"

namespace tapestry {

namespace {

std::vector<MoEBalanceLoss> losses_of(const MoEConfig& config) {
  std::vector<MoEBalanceLoss> out;
  for (const MoEBalanceLoss& loss : config.balance_losses) {
    check<ValueError>(loss.coeff >= 0, "the coefficient of the balance loss ", loss.type,
                      " must not be negative, got ", loss.coeff);
    if (loss.coeff > 0) {
      out.push_back(loss);
    }
  }
  return out;
}

void check_numbers(const MoEConfig& config) {
  const auto& factor = config.moe_expert_capacity_factor;
  check<ValueError>(!factor || *factor > 0, "moe_expert_capacity_factor must be above 0, got ",
                    factor.value_or(0));
  const double eps = config.moe_input_jitter_eps.value_or(0);
  check<ValueError>(eps >= 0 && eps < 1, "moe_input_jitter_eps must lie in [0, 1), got ", eps);
  const double z = config.moe_z_loss_coeff.value_or(0);
  check<ValueError>(z >= 0, "moe_z_loss_coeff must not be negative, got ", z);
}

const char* name_of(GateRule::Scores scores) {
  return scores == GateRule::Scores::kSoftmax   ? "softmax"
         : scores == GateRule::Scores::kSigmoid ? "sigmoid"
                                                : "sqrtsoftplus";
}

// What balance losses count as chosen, where that is not what the router chooses.
ChoiceRule balance_rule(const MoEConfig& config) {
  const std::string& choice = config.moe_aux_loss_choice;
  check<ValueError>(choice == "routed" || choice == "scores", "moe_aux_loss_choice '", choice,
                    "' is not known; choose routed or scores");
  ChoiceRule rule = choice_rule(config);
  if (choice == "scores") {
    rule.method = ChoiceRule::Method::kGreedy;
    rule.num_groups = 1;
    rule.group_topk = 1;
  }
  return rule;
}

std::span<const float> values_of(const Tensor& x) {
  return {x.data<float>(), static_cast<size_t>(x.numel())};
}

std::vector<float> biased(std::span<const float> values, std::span<const float> bias) {
  std::vector<float> out(values.begin(), values.end());
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] += bias[i % bias.size()];
  }
  return out;
}

// Of numbers [E] those of the chosen experts, [T, k] float32.
Tensor numbers_of_experts(const Tensor& numbers,
                          const std::vector<int32_t>& experts,
                          int64_t topk) {
  const int64_t count = std::ssize(experts);
  return index_select(numbers.to(kFloat32), 0, tensor(experts, {count})).view({count / topk, topk});
}

void check_tokens(const GroupTokens& tokens, const Tensor& x, int64_t hidden) {
  check<ValueError>(x.dim() == 2 && x.size(1) == hidden && x.size(0) == std::ssize(tokens.numbers),
                    "router: x must be [", tokens.numbers.size(), ", ", hidden,
                    "], a row for each token, got ", describe(x));
  check<ValueError>(tokens.total == tokens.rows * tokens.seq_length, "router: ", tokens.rows,
                    " rows of ", tokens.seq_length, " tokens are not ", tokens.total);
  for (const int64_t number : tokens.numbers) {
    check<ValueError>(number >= 0 && number < tokens.total, "router: a token has number ", number,
                      ", but the routing group has ", tokens.total, " tokens");
  }
}

}  // namespace

TopKRouter::TopKRouter(const TransformerConfig& config, int64_t layer_number, bool sequence_first)
    : layer_(layer_number - 1),
      hidden_(config.hidden_size),
      choice_(choice_rule(config.moe)),
      balance_choice_(balance_rule(config.moe)),
      gates_(gate_rule(config.moe)),
      losses_(losses_of(config.moe)),
      num_groups_(config.moe.expert_group_size.value_or(0)),
      z_loss_coeff_(config.moe.moe_z_loss_coeff.value_or(0)),
      jitter_(config.moe.moe_input_jitter_eps.value_or(0)),
      forces_balance_(config.moe.moe_router_force_load_balancing),
      bias_rate_(config.moe.moe_router_bias_update_rate),
      capacity_factor_(config.moe.moe_expert_capacity_factor),
      drop_policy_(drop_policy(config.moe.moe_token_drop_policy)),
      norm_epsilon_(config.norm_epsilon) {
  check_numbers(config.moe);
  for (const MoEBalanceLoss& loss : losses_) {
    check_balance_loss(loss, choice_.num_experts, num_groups_);
  }
  const Shape shape = {choice_.num_experts, hidden_};
  const LogicalInit init =
      whole("layers." + std::to_string(layer_) + ".moe.router.weight", shape, weight_init(config));
  // Each tensor-parallel rank routes tokens of its own, with and without sequence parallelism.
  weight_ =
      &register_parameter("weight", initial_value(shape, {init}),
                          {.tp = tensor_parallel_layout(config, sequence_first).head_gradient()});
  weight_->set_logical({init.logical});
  if (config.moe.moe_router_has_bias) {
    const LogicalInit bias = whole(concat("layers.", layer_, ".moe.router.bias"),
                                   {choice_.num_experts}, bias_init(config));
    bias_ = &register_parameter("bias", initial_value({choice_.num_experts}, {bias}),
                                {.decay = false, .tp = weight_->flags().tp});
    bias_->set_logical({bias.logical});
  }
  if (config.moe.moe_beside_dense) {
    const auto add_ones = [&](const char* name, int64_t size) {
      const LogicalInit own = whole(concat("layers.", layer_, ".moe.router.", name, ".weight"),
                                    {size}, InitMethod::constant(1));
      nn::Parameter& parameter = register_parameter(name, initial_value({size}, {own}),
                                                    {.decay = false, .tp = weight_->flags().tp});
      parameter.set_logical({own.logical});
      return &parameter;
    };
    scale_ = add_ones("scale", hidden_);
    per_expert_scale_ = add_ones("per_expert_scale", choice_.num_experts);
  }
  if (config.moe.moe_router_enable_expert_bias) {
    expert_bias_ = register_buffer("expert_bias", zeros({choice_.num_experts}),
                                   concat("layers.", layer_, ".moe.router.expert_bias"));
  }
  if (has_loss("global_aux_loss")) {
    previous_counts_ = register_buffer("previous_counts", zeros({choice_.num_experts}, kInt64));
  }
}

std::string TopKRouter::extra_repr() const {
  return concat(choice_.topk, " of ", choice_.num_experts, ", ", name_of(gates_.scores),
                expert_bias_.defined() ? ", bias" : "");
}

// checkpoint() runs a function first without recording, but for a pass that is.
bool TopKRouter::trains() const {
  return is_training() && (grad_enabled() || thread_state().recording_node != nullptr);
}

bool TopKRouter::has_loss(std::string_view type) const {
  return std::any_of(losses_.begin(), losses_.end(),
                     [&](const MoEBalanceLoss& loss) { return loss.type == type; });
}

std::vector<int64_t> TopKRouter::counts_of(const std::vector<int32_t>& experts,
                                           const GroupTokens& tokens,
                                           bool by_row) const {
  const int64_t count = choice_.num_experts;
  std::vector<int64_t> out(static_cast<size_t>(count + (by_row ? tokens.rows * count : 0)), 0);
  for (size_t i = 0; i < experts.size(); ++i) {
    ++out[static_cast<size_t>(experts[i])];
    if (by_row) {
      const int64_t number = tokens.numbers[i / static_cast<size_t>(choice_.topk)];
      ++out[static_cast<size_t>((1 + number / tokens.seq_length) * count + experts[i])];
    }
  }
  return out;
}

Tensor TopKRouter::aux_loss(const Tensor& logits,
                            const Tensor& scores,
                            const BalanceCounts& counts,
                            const std::vector<int64_t>& numbers) const {
  Tensor out;
  if (!losses_.empty()) {
    std::vector<double> weights(static_cast<size_t>(counts.rows * counts.num_experts), 0);
    for (const MoEBalanceLoss& loss : losses_) {
      add_balance_weights(loss, counts, weights);
    }
    out = balance_loss(balance_probabilities(scores, gates_), weights, numbers, counts.seq_length);
  }
  if (z_loss_coeff_ > 0) {
    const Tensor z = router_z_loss(logits, z_loss_coeff_, counts.rows * counts.seq_length);
    out = out.defined() ? out + z : z;
  }
  return out;
}

// A token's part is the same in any micro-batch: that of the mean over a sequence's tokens.
void TopKRouter::exact_aux_loss(const Tensor& scores,
                                const BalanceCounts& counts,
                                const std::vector<int64_t>& numbers,
                                Routing& out) const {
  Tensor of_tokens;
  if (!losses_.empty()) {
    std::vector<double> weights(static_cast<size_t>(counts.rows * counts.num_experts), 0);
    for (const MoEBalanceLoss& loss : losses_) {
      check<ValueError>(loss.type == "seq_aux_loss", "exact mode: the balance loss ", loss.type,
                        " depends on the micro-batch; choose seq_aux_loss");
      BalanceCounts of_sequence = counts;
      of_sequence.rows = 1;  // the mean over its tokens
      add_balance_weights(loss, of_sequence, weights);
    }
    of_tokens = balance_loss_of_tokens(balance_probabilities(scores, gates_), weights, numbers,
                                       counts.seq_length);
  }
  if (z_loss_coeff_ > 0) {
    const Tensor z = router_z_loss_of_tokens(out.logits, z_loss_coeff_, counts.seq_length);
    of_tokens = of_tokens.defined() ? of_tokens + z : z;
  }
  if (!of_tokens.defined()) {
    return;
  }
  out.aux_loss = sum(of_tokens);
  out.exact_sequences = counts.rows;
  const Tensor terms = dense(of_tokens.detach());
  double units = 0;
  kernels::add_columns_to_exact(kFloat32, terms.numel(), 1, terms.raw(), 1, &units);
  out.exact_aux_loss = std::ldexp(units, kernels::kExactUnitExponent);
}

void TopKRouter::drop(Routing& routing,
                      const GroupTokens& tokens,
                      const std::vector<int64_t>& tokens_of_ranks) const {
  const std::span<const float> gates = values_of(routing.gates);
  const Assignments own = {.topk = choice_.topk,
                           .numbers = tokens.numbers,
                           .experts = routing.experts,
                           .gates = {gates.begin(), gates.end()}};
  Assignments gathered;
  const Assignments* all = &own;
  int64_t first = 0;
  if (tokens_of_ranks.size() > 1) {
    gathered = gather_assignments(own, *tokens.group, tokens_of_ranks);
    all = &gathered;
    for (int r = 0; r < tokens.group->rank(); ++r) {
      first += tokens_of_ranks[static_cast<size_t>(r)] * choice_.topk;
    }
  }
  const int64_t capacity =
      expert_capacity(tokens.total, choice_.topk, choice_.num_experts, *capacity_factor_);
  KeptAssignments found = keep_assignments(*all, choice_.num_experts, capacity, drop_policy_);
  const auto begin = found.kept.begin() + first;
  routing.kept.assign(begin, begin + std::ssize(routing.experts));
  if (ChoiceObserver* observer = choice_observer(); observer != nullptr) {
    observer->keep(layer_, tokens, own, drop_policy_, routing.kept);
  }
  routing.dropped_per_expert = std::move(found.dropped_per_expert);
  if (drop_policy_ == DropPolicy::kProbs) {
    routing.smallest_capacity_gap = found.smallest_gap;
  }
}

// Of each expert, for each token.
Tensor TopKRouter::logits(const Tensor& x, const GroupTokens& tokens, bool training) const {
  Tensor read = x.to(kFloat32);
  if (scale_ != nullptr) {
    read = rms_norm(read, {}, norm_epsilon_, kFloat32) *
           (scale_->to(kFloat32) * (1 / std::sqrt(static_cast<double>(hidden_))));
  }
  if (training && jitter_ > 0) {
    read = input_jitter(read, jitter_, layer_, tokens.numbers, tokens.seq_length);
  }
  Tensor out;
  if (in_exact()) {
    out = router_logits(read, *weight_, bias_ != nullptr ? Tensor(*bias_) : Tensor());
  } else {
    out = router_logits(read, weight_->to(kFloat32));
    if (bias_ != nullptr) {
      out = out + bias_->to(kFloat32);
    }
  }
  return training && forces_balance_ ? random_logits(out, layer_, tokens.numbers, tokens.seq_length)
                                     : out;
}

Routing TopKRouter::forward(const Tensor& x, const GroupTokens& tokens) {
  check_tokens(tokens, x, hidden_);
  const bool training = trains();
  Routing out;
  out.logits = logits(x, tokens, training);

  // What experts compete with. A softmax keeps the order of the logits, with finer steps.
  const bool balances = training && !losses_.empty();
  const bool has_bias = expert_bias_.defined();
  const bool by_scores = gates_.scores != GateRule::Scores::kSoftmax || has_bias ||
                         choice_.method == ChoiceRule::Method::kNoauxTc;
  Tensor scores;
  if (by_scores || !gates_.after_choice || balances) {
    scores = router_scores(out.logits, gates_);
  }
  const std::span<const float> unbiased = values_of(by_scores ? scores : out.logits);
  std::vector<float> with_bias;
  if (has_bias) {
    with_bias = biased(unbiased, values_of(expert_bias_.to(kFloat32)));
  }
  const std::span<const float> competing = has_bias ? with_bias : unbiased;
  ExpertChoice choice = choose_experts(competing, choice_);
  out.experts = std::move(choice.experts);
  ChoiceObserver* observer = training ? choice_observer() : nullptr;
  if (observer != nullptr) {
    observer->choose(layer_, ChoiceUse::kRouting, tokens, competing, choice_, out.experts);
  }
  out.gates =
      expert_gates(out.logits, scores, tensor(out.experts, {x.size(0), choice_.topk}), gates_);
  if (per_expert_scale_ != nullptr) {
    out.gates = out.gates * numbers_of_experts(*per_expert_scale_, out.experts, choice_.topk);
  }

  // The losses count what the scores alone would choose, without a bias, and by
  // moe_aux_loss_choice: scores without groups.
  const bool by_row = balances && has_loss("seq_aux_loss");
  const bool counts_twice = balances && (has_bias || balance_choice_.method != choice_.method);
  std::vector<int64_t> counts = counts_of(out.experts, tokens, by_row && !counts_twice);
  if (counts_twice) {
    ExpertChoice balanced = choose_experts(unbiased, balance_choice_);
    if (observer != nullptr) {
      observer->choose(layer_, ChoiceUse::kBalance, tokens, unbiased, balance_choice_,
                       balanced.experts);
    }
    const std::vector<int64_t> more = counts_of(balanced.experts, tokens, by_row);
    counts.insert(counts.end(), more.begin(), more.end());
    choice.smallest_gap = std::min(choice.smallest_gap, balanced.smallest_gap);
    choice.smallest_group_gap = std::min(choice.smallest_group_gap, balanced.smallest_group_gap);
  }
  const GroupSums group =
      sum_over_group(tokens.group, x.size(0), counts,
                     {choice.smallest_gap, choice.smallest_group_gap, choice.smallest_order_gap});
  const int64_t found =
      std::accumulate(group.tokens_of_ranks.begin(), group.tokens_of_ranks.end(), int64_t{0});
  check<ValueError>(found == tokens.total, "router: the routing group has ", tokens.total,
                    " tokens, but its ranks have ", found);
  out.smallest_router_gap = group.minima[0];
  out.smallest_group_gap = group.minima[1];

  const auto per_expert = group.sums.begin();
  const auto balanced = per_expert + (counts_twice ? choice_.num_experts : 0);
  out.tokens_per_expert.assign(per_expert, per_expert + choice_.num_experts);
  out.balance_counts.assign(balanced, balanced + choice_.num_experts);
  out.dropped_per_expert.assign(static_cast<size_t>(choice_.num_experts), 0);
  if (training) {
    BalanceCounts balance = {.num_experts = choice_.num_experts,
                             .rows = tokens.rows,
                             .seq_length = tokens.seq_length,
                             .num_groups = num_groups_,
                             .per_expert = out.balance_counts,
                             .per_row = {balanced + choice_.num_experts, group.sums.end()}};
    if (previous_counts_.defined()) {
      balance.previous = previous_counts_.to_vector<int64_t>();
    }
    if (in_exact()) {
      exact_aux_loss(scores, balance, tokens.numbers, out);
    } else {
      out.aux_loss = aux_loss(out.logits, scores, balance, tokens.numbers);
    }
  }
  if (training && capacity_factor_) {
    if (drop_policy_ == DropPolicy::kChoice) {
      out.smallest_capacity_gap = group.minima[2];
    }
    drop(out, tokens, group.tokens_of_ranks);
  }
  return out;
}

void TopKRouter::finish_step(const StepCounts& counts) {
  if (expert_bias_.defined() && weight_->requires_grad()) {  // of a frozen router it stays, too
    update_expert_bias(expert_bias_, counts.tokens_per_expert, bias_rate_);
  }
  if (previous_counts_.defined()) {
    check<ValueError>(std::ssize(counts.balance_counts) == choice_.num_experts,
                      "router: ", counts.balance_counts.size(), " counts for ", choice_.num_experts,
                      " experts");
    std::copy(counts.balance_counts.begin(), counts.balance_counts.end(),
              previous_counts_.data<int64_t>());
    previous_counts_.bump_version();
  }
}

}  // namespace tapestry
