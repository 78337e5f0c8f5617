// Rows of `moe_config`.
#include "parallel_core/config/schema/schema.h"

namespace tapestry::config {
namespace moe_section {
namespace {

using E = MoEConfig;
using C = MoECompatibility;
template <auto... Path>
constexpr Field f = field_of<&AllConfig::moe_config, Path...>();
template <auto Member>
constexpr Field of_others = f<&E::compatibility, Member>;

std::string check_layer_freq(const Value& value) {
  const auto& list = value.as<Value::List>();
  if (list.empty()) {
    return "must not be empty";
  }
  for (const Value& item : list) {
    const int64_t number = item.as<int64_t>();
    if (list.size() == 1 ? number < 1 : number != 0 && number != 1) {
      return "must be one number f > 0 (every f-th layer) or one 0 or 1 per layer, got " +
             to_yaml(value);
    }
  }
  return {};
}

constexpr std::string_view kLossTypes = "expert|aux_loss|seq_aux_loss|global_aux_loss|device|comm";

std::string check_loss_types(const Value& value) {
  const auto known = split_text(kLossTypes, '|');
  for (const Value& item : value.as<Value::List>()) {
    const auto& type = item.as<std::string>();
    bool found = false;
    for (const std::string_view name : known) {
      found = found || type == name;
    }
    if (!found) {
      return "unknown balance loss '" + type + "'; the nearest is '" +
             std::string(nearest(type, known)) + "'";
    }
  }
  return {};
}

constexpr Key kKeys[] = {
    {.name = "num_experts",
     .field = f<&E::num_experts>,
     .form = Form::kTold,
     .check = between(1, 2147483647),
     .null = Null::kDefault,
     .aliases = "expert_num|n_routed_experts|num_moe_experts|num_local_experts",
     .doc = "Number of experts of a layer, of which each token goes to `moe_router_topk`; 1: a "
            "dense MLP."},
    {.name = "moe_router_topk",
     .field = f<&E::moe_router_topk>,
     .form = Form::kTold,
     .check = above(0),
     .aliases = "num_experts_chosen|num_experts_per_tok",
     .doc = "Number of experts per token, at most `num_experts`. 1 needs gates that are no softmax "
            "over the chosen experts: `moe_router_pre_softmax: True` or "
            "`moe_router_score_function: sigmoid` or `sqrtsoftplus`."},
    {.name = "moe_layer_freq",
     .field = f<&E::moe_layer_freq>,
     .form = Form::kTold,
     .check = satisfies(check_layer_freq, "one number > 0, or one 0 or 1 per layer"),
     .doc = "Layers with experts: every f-th one (those whose number from 0 is divisible by f), or "
            "one 0 or 1 per layer."},
    {.name = "first_k_dense_replace",
     .field = f<&E::first_k_dense_replace>,
     .form = Form::kTold,
     .check = at_least(0),
     .doc = "Number of first layers that have a dense MLP instead of experts. Not together with a "
            "`moe_layer_freq` other than 1."},
    {.name = "moe_ffn_hidden_size",
     .field = f<&E::moe_ffn_hidden_size>,
     .form = Form::kTold,
     .check = between(1, 2147483647),
     .aliases = "moe_intermediate_size",
     .default_text = "ffn_hidden_size",
     .doc = "Width inside an expert (of each half with swiglu)."},
    {.name = "moe_shared_expert_intermediate_size",
     .field = f<&E::moe_shared_expert_intermediate_size>,
     .form = Form::kTold,
     .check = between(1, 2147483647),
     .aliases = "shared_expert_intermediate_size",
     .doc = "Width of a shared expert, which sees every token in addition to the chosen experts; "
            "null: there is none."},
    {.name = "shared_expert_num",
     .field = of_others<&C::shared_expert_num>,
     .check = at_least(0),
     .until_resolved = true,
     .aliases = "n_shared_experts",
     .doc = "Short for `moe_shared_expert_intermediate_size`: this many times "
            "`moe_ffn_hidden_size`. 0: there is no shared expert."},
    {.name = "use_shared_expert_gating",
     .field = f<&E::use_shared_expert_gating>,
     .form = Form::kTold,
     .doc = "Multiply the shared expert's output by the sigmoid of one number per token, a product "
            "with a learned vector."},
    {.name = "moe_shared_expert_overlap",
     .field = f<&E::moe_shared_expert_overlap>,
     .doc = "Compute the shared expert while tokens are on their way to the experts' ranks and "
            "back. Results do not change."},
    {.name = "moe_router_score_function",
     .field = f<&E::moe_router_score_function>,
     .form = Form::kTold,
     .check = one_of("softmax|sigmoid|sqrtsoftplus"),
     .doc =
         "Scores of the experts: a softmax of the router's logits, or of each its sigmoid or the "
         "square root of its softplus."},
    {.name = "use_gating_sigmoid",
     .field = of_others<&C::use_gating_sigmoid>,
     .until_resolved = true,
     .doc = "Short for `moe_router_score_function`: True is sigmoid, False softmax."},
    {.name = "moe_router_pre_softmax",
     .field = f<&E::moe_router_pre_softmax>,
     .form = Form::kTold,
     .doc = "Apply the softmax over all experts before the choice, so that a token's gates do not "
            "add up to 1. False: over the chosen experts."},
    {.name = "norm_topk_prob",
     .field = f<&E::norm_topk_prob>,
     .form = Form::kTold,
     .default_text = "False with moe_router_pre_softmax, else True",
     .doc = "Divide the gates of a token's experts by their sum, if there is more than one. False "
            "with softmax is `moe_router_pre_softmax: True`."},
    {.name = "moe_router_topk_scaling_factor",
     .field = f<&E::moe_router_topk_scaling_factor>,
     .form = Form::kTold,
     .check = above(0),
     .aliases = "routed_scaling_factor",
     .doc = "Factor of a token's gates, applied after everything else."},
    {.name = "topk_method",
     .field = f<&E::topk_method>,
     .form = Form::kTold,
     .check = one_of("greedy|group_limited_greedy|noaux_tc"),
     .doc = "How experts are chosen. greedy: the best of all. Otherwise: the best of the "
            "`moe_router_group_topk` best of `moe_router_num_groups` groups of neighbouring "
            "experts; a group is as good as its best expert (group_limited_greedy) or as its two "
            "best together (noaux_tc). Of equal scores the first wins."},
    {.name = "moe_router_num_groups",
     .field = f<&E::moe_router_num_groups>,
     .form = Form::kTold,
     .check = above(0),
     .aliases = "n_group",
     .doc = "Number of groups of experts; must divide `num_experts`. Needed unless `topk_method` "
            "is greedy."},
    {.name = "moe_router_group_topk",
     .field = f<&E::moe_router_group_topk>,
     .form = Form::kTold,
     .check = above(0),
     .aliases = "topk_group",
     .doc = "Number of groups from which a token's experts come. Needed unless `topk_method` is "
            "greedy."},
    {.name = "moe_router_norm_epsilon",
     .field = f<&E::moe_router_norm_epsilon>,
     .form = Form::kDecided,
     .check = at_least(0),
     .doc = "Added to the sum of its gates by which a token's gates are divided, where "
            "`norm_topk_prob` says so."},
    {.name = "moe_beside_dense",
     .field = f<&E::moe_beside_dense>,
     .form = Form::kDecided,
     .doc = "Layers with experts have the dense MLP of `ffn_hidden_size` too, as in Gemma 4. Both "
            "read the sum behind attention, each through a norm of its own; each result is normed, "
            "and so is their sum. The router reads that sum divided by its root mean square, times "
            "a learned vector and hidden_size^-1/2; the gate of an expert is multiplied by a "
            "learned number. Needs `norm_placement: sandwich`."},
    {.name = "moe_router_has_bias",
     .field = f<&E::moe_router_has_bias>,
     .form = Form::kDecided,
     .doc = "Whether the router's matrix has a bias, as in GPT-OSS."},
    {.name = "moe_router_enable_expert_bias",
     .field = f<&E::moe_router_enable_expert_bias>,
     .form = Form::kTold,
     .aliases = "balance_via_topk_bias",
     .doc = "Balance the load without a loss: a number per expert is added to the scores, only for "
            "the choice. After each step it moves against the expert's load (Wang et al. 2024, "
            "arXiv:2408.15664)."},
    {.name = "moe_router_bias_update_rate",
     .field = f<&E::moe_router_bias_update_rate>,
     .form = Form::kTold,
     .check = at_least(0),
     .aliases = "topk_bias_update_rate",
     .doc = "Amount by which the numbers of `moe_router_enable_expert_bias` move after each step."},
    {.name = "moe_router_load_balancing_type",
     .field = f<&E::moe_router_load_balancing_type>,
     .form = Form::kTold,
     .check = one_of("none|aux_loss|seq_aux_loss|global_aux_loss|device|comm"),
     .value_aliases = "expert=aux_loss",
     .accepted = "none|aux_loss|seq_aux_loss|global_aux_loss|device",
     .reason = "comm pools the experts of a rank, so that the loss would depend on the layout; "
               "device pools them into expert_group_size groups whatever the layout",
     .doc = "Balance loss that `moe_aux_loss_coeff` weights. aux_loss: the load of each expert "
            "over a micro-batch of one data-parallel rank. seq_aux_loss: over a row. "
            "global_aux_loss: over all of the step before. device: the load of groups of experts."},
    {.name = "moe_aux_loss_coeff",
     .field = f<&E::moe_aux_loss_coeff>,
     .form = Form::kTold,
     .check = at_least(0),
     .doc = "Weight of the balance loss. The weighted loss has this value if all experts have the "
            "same load."},
    {.name = "moe_aux_loss_choice",
     .field = f<&E::moe_aux_loss_choice>,
     .check = one_of("routed|scores"),
     .doc = "What counts as an assignment in balance losses, of which a bias of "
            "`moe_router_enable_expert_bias` is never part. routed: the choice as `topk_method` "
            "makes it. scores: the `moe_router_topk` best of all experts, whatever groups there "
            "are, as in MindFormers 2.0."},
    {.name = "aux_loss_factor",
     .field = of_others<&C::aux_loss_factor>,
     .check = {.low = 0, .high = 1, .low_open = true, .high_open = true},
     .until_resolved = true,
     .doc = "Short for `moe_router_load_balancing_type: aux_loss` with this number as "
            "`moe_aux_loss_coeff`."},
    {.name = "aux_loss_types",
     .field = f<&E::aux_loss_types>,
     .form = Form::kTold,
     .check =
         satisfies(check_loss_types, "expert (= aux_loss), seq_aux_loss, global_aux_loss, device"),
     .doc = "Several balance losses, in place of `moe_router_load_balancing_type`; "
            "`aux_loss_factors` has their weights."},
    {.name = "aux_loss_factors",
     .field = f<&E::aux_loss_factors>,
     .form = Form::kTold,
     .check = at_least(0),
     .doc = "Weights of the balance losses, in the order of `aux_loss_types`."},
    {.name = "expert_group_size",
     .field = f<&E::expert_group_size>,
     .form = Form::kTold,
     .check = above(0),
     .doc = "Number of groups of neighbouring experts for the balance loss `device`; must divide "
            "`num_experts`."},
    {.name = "moe_z_loss_coeff",
     .field = f<&E::moe_z_loss_coeff>,
     .form = Form::kTold,
     .check = at_least(0),
     .aliases = "z_loss_factor",
     .doc = "Weight of the loss on large router logits: the mean over tokens of the square of "
            "their log-sum-exp."},
    {.name = "moe_input_jitter_eps",
     .field = f<&E::moe_input_jitter_eps>,
     .form = Form::kTold,
     .check = {.low = 0, .high = 1, .high_open = true},
     .doc = "While training, the router's input is multiplied by random numbers from 1 - eps to "
            "1 + eps."},
    {.name = "moe_expert_capacity_factor",
     .field = f<&E::moe_expert_capacity_factor>,
     .form = Form::kTold,
     .aliases = "capacity_factor",
     .doc = "During training, an expert takes at most ceil(tokens x k / experts x factor) of the "
            "tokens of a micro-batch and data-parallel rank; null, 0 or negative: all."},
    {.name = "moe_pad_expert_input_to_capacity",
     .field = f<&E::moe_pad_expert_input_to_capacity>,
     .doc = "Pad messages to experts to the size of their capacity. Results do not change."},
    {.name = "moe_token_drop_policy",
     .field = f<&E::moe_token_drop_policy>,
     .form = Form::kTold,
     .check = one_of("probs|position|choice"),
     .doc = "Tokens that an expert keeps when it is full: those with the highest gates (probs), "
            "the first (position), or those whose first choice it is before those whose second it "
            "is (choice)."},
    {.name = "enable_sdrop",
     .field = of_others<&C::enable_sdrop>,
     .until_resolved = true,
     .doc = "Short for `moe_token_drop_policy`: True is position, False choice."},
    {.name = "callback_moe_droprate",
     .field = f<&E::callback_moe_droprate>,
     .doc = "Log for each layer the share of assignments that were dropped. The callback "
            "`MoEDropRateCallback` sets it."},
    {.name = "upcycle_from",
     .field = f<&E::upcycle_from>,
     .path = true,
     .doc = "Folder or file of a dense model to start from (Komatsuzaki et al. 2022, "
            "arXiv:2212.05055). Each expert is a copy of its MLP, the router is new, a shared "
            "expert's output is 0 at first, and everything else is the dense model's."},
    {.name = "moe_router_force_load_balancing",
     .field = f<&E::moe_router_force_load_balancing>,
     .doc =
         "During training, use random numbers in place of the router's logits, so that all experts "
         "get about as many tokens. For measuring speed: the model does not learn to route."},
    {.name = "router_dense_type",
     .field = of_others<&C::router_dense_type>,
     .aliases = "moe_router_dtype",
     .accepted = "float32",
     .reason = "the router computes in float32, so that rounding decides on no expert; leave this "
               "key out",
     .doc = "Known for compatibility."},
    {.name = "moe_apply_probs_on_input",
     .field = f<&E::moe_apply_probs_on_input>,
     .form = Form::kDecided,
     .doc = "Multiply what an expert reads of a token by its gate, in place of what it returns."},
    {.name = "use_self_defined_alltoall",
     .field = f<&E::use_self_defined_alltoall>,
     .doc = "Known for compatibility: messages have exactly the rows that go to a rank."},
    {.name = "moe_grouped_gemm",
     .field = f<&E::moe_grouped_gemm>,
     .aliases = "use_gmm",
     .doc = "Known for compatibility: experts are always computed by grouped products, with or "
            "without a capacity."},
};

}  // namespace
}  // namespace moe_section

std::span<const Key> moe_keys() { return moe_section::kKeys; }

}  // namespace tapestry::config
