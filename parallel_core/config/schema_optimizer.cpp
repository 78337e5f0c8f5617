// Rows of `optimizer_config`, `moe_config` and `lora_config`.
#include "parallel_core/config/schema.h"

namespace tapestry::config {
namespace {

using O = OptimizerConfig;
using S = LearningRateSchedulerConfig;
using Z = ZeroConfig;
using E = MoEConfig;
using L = LoraConfig;
template <auto... Path>
constexpr Field o = field_of<&AllConfig::optimizer_config, Path...>();
template <auto... Path>
constexpr Field e = field_of<&AllConfig::moe_config, Path...>();
template <auto... Path>
constexpr Field l = field_of<&AllConfig::lora_config, Path...>();

constexpr Check kFraction = {.low = 0, .high = 1, .high_open = true};
constexpr std::string_view kZero = "what is sharded, parallel_config.zero_level says";
constexpr std::string_view kMoE = "mixtures of experts are not built yet";
constexpr std::string_view kLora = "low-rank fine-tuning is not built yet";

std::string check_betas(const Value& value) {
  const auto& list = value.as<Value::List>();
  if (list.size() != 2) {
    return "must be two numbers, got " + to_yaml(value);
  }
  for (const Value& beta : list) {
    if (beta.as<double>() < 0 || beta.as<double>() >= 1) {
      return "must be in [0, 1), got " + to_yaml(beta);
    }
  }
  return {};
}

std::string check_state_dtype(const Value& value) {
  const std::string dtype = to_yaml(value);
  return dtype == "float32" || dtype == "bfloat16" ? ""
                                                   : "must be float32 or bfloat16, got " + dtype;
}

std::string check_layer_freq(const Value& value) {
  const auto& list = value.as<Value::List>();
  if (list.empty()) {
    return "must not be empty";
  }
  for (const Value& item : list) {
    const int64_t number = item.as<int64_t>();
    if (list.size() == 1 ? number < 0 : number != 0 && number != 1) {
      return "must be one number f (every f-th layer) or one 0 or 1 per layer, got " +
             to_yaml(value);
    }
  }
  return {};
}

constexpr Key kOptimizerKeys[] = {
    {.name = "optimizer_type",
     .field = o<&O::optimizer_type>,
     .check = one_of("AdamW|Adam|SGD|Came|AdamWZeRO|experiment_adamw"),
     .value_aliases = "mint.AdamW=AdamW|SpeedAdamW=AdamW|AdamWeightDecay=AdamW",
     .accepted = "AdamW|Adam|SGD",
     .reason = "this optimizer is not built yet",
     .doc = "AdamW decays weights apart from the moments, Adam through the gradient."},
    {.name = "learning_rate",
     .field = o<&O::learning_rate>,
     .check = above(0),
     .doc = "Largest learning rate."},
    {.name = "learning_rate_scheduler_kwargs",
     .field = o<&O::learning_rate_scheduler_kwargs>,
     .doc = "Schedule by steps; not together with `lr_decay_style` and its keys. At s updates "
            "done: learning_rate s / warmup_steps, then decay counted from step 0."},
    {.name = "learning_rate_scheduler_kwargs.warmup_steps",
     .field = o<&O::learning_rate_scheduler_kwargs, &S::warmup_steps>,
     .check = at_least(0),
     .doc = "Steps of linear growth from 0."},
    {.name = "learning_rate_scheduler_kwargs.decay_steps",
     .field = o<&O::learning_rate_scheduler_kwargs, &S::decay_steps>,
     .check = above(0),
     .required = true,
     .doc = "Step at which the end is reached."},
    {.name = "learning_rate_scheduler_kwargs.end_learning_rate",
     .field = o<&O::learning_rate_scheduler_kwargs, &S::end_learning_rate>,
     .check = at_least(0),
     .doc = "Last learning rate."},
    {.name = "learning_rate_scheduler_kwargs.use_cosine",
     .field = o<&O::learning_rate_scheduler_kwargs, &S::use_cosine>,
     .doc = "Half a cosine; else a polynomial."},
    {.name = "learning_rate_scheduler_kwargs.power",
     .field = o<&O::learning_rate_scheduler_kwargs, &S::power>,
     .check = above(0),
     .doc = "Power of the polynomial."},
    {.name = "weight_decay",
     .field = o<&O::weight_decay>,
     .check = at_least(0),
     .doc = "Weight decay; none for parameters with `norm` or `bias` in the name."},
    {.name = "start_weight_decay",
     .field = o<&O::start_weight_decay>,
     .check = at_least(0),
     .default_text = "weight_decay",
     .doc = "Weight decay of the first step."},
    {.name = "end_weight_decay",
     .field = o<&O::end_weight_decay>,
     .check = at_least(0),
     .default_text = "weight_decay",
     .doc = "Weight decay of the last step."},
    {.name = "weight_decay_incr_style",
     .field = o<&O::weight_decay_incr_style>,
     .check = one_of("constant|linear|cosine"),
     .doc = "How weight decay grows; constant needs equal start and end."},
    {.name = "weight_decay_kwargs",
     .field = o<&O::weight_decay_kwargs>,
     .accepted = "null",
     .reason = "use start_weight_decay, end_weight_decay and weight_decay_incr_style",
     .doc = "Known for compatibility."},
    {.name = "clip_grad",
     .field = o<&O::clip_grad>,
     .check = at_least(0),
     .doc = "Largest norm over all gradients; 0: off. Not together with "
            "`training_config.grad_clip_kwargs`."},
    {.name = "betas",
     .field = o<&O::betas>,
     .check = satisfies(check_betas, "two numbers in [0, 1)"),
     .doc = "Decay of the first and second moment (Adam, AdamW)."},
    {.name = "beta1", .field = o<&O::beta1>, .check = kFraction, .doc = "First of `betas`."},
    {.name = "beta2", .field = o<&O::beta2>, .check = kFraction, .doc = "Second of `betas`."},
    {.name = "eps",
     .field = o<&O::eps>,
     .check = above(0),
     .doc = "Added to the root of the second moment (Adam, AdamW)."},
    {.name = "momentum", .field = o<&O::momentum>, .check = kFraction, .doc = "Momentum of SGD."},
    {.name = "dampening",
     .field = o<&O::dampening>,
     .check = kFraction,
     .doc = "Dampening of SGD's momentum."},
    {.name = "nesterov",
     .field = o<&O::nesterov>,
     .doc = "Nesterov momentum of SGD; needs `momentum` and no `dampening`."},
    {.name = "lr_decay_style",
     .field = o<&O::lr_decay_style>,
     .check = one_of("constant|WSD|linear|cosine|inverse-square-root"),
     .default_text = "constant",
     .doc = "Learning rate after warm-up."},
    {.name = "lr_decay_iters",
     .field = o<&O::lr_decay_iters>,
     .check = above(0),
     .default_text = "null (training_iters)",
     .doc = "Steps until `min_lr` is reached, warm-up included."},
    {.name = "lr_decay_samples",
     .field = o<&O::lr_decay_samples>,
     .check = above(0),
     .default_text = "null (train_samples)",
     .doc = "The same in sequences, with `dataset_config.train_samples`."},
    {.name = "lr_wsd_decay_iters",
     .field = o<&O::lr_wsd_decay_iters>,
     .check = above(0),
     .doc = "Steps of the last part of `WSD`."},
    {.name = "lr_wsd_decay_samples",
     .field = o<&O::lr_wsd_decay_samples>,
     .check = above(0),
     .doc = "The same in sequences."},
    {.name = "lr_wsd_decay_style",
     .field = o<&O::lr_wsd_decay_style>,
     .check = one_of("linear|cosine|exponential"),
     .doc = "Shape of the last part of `WSD`."},
    {.name = "lr_warmup_iters",
     .field = o<&O::lr_warmup_iters>,
     .check = at_least(0),
     .doc = "Steps of linear growth from `lr_warmup_init`."},
    {.name = "lr_warmup_samples",
     .field = o<&O::lr_warmup_samples>,
     .check = at_least(0),
     .doc = "The same in sequences, with `dataset_config.train_samples`."},
    {.name = "lr_warmup_fraction",
     .field = o<&O::lr_warmup_fraction>,
     .check = kFraction,
     .doc = "Warm-up as a share of the decay's length; goes before `lr_warmup_iters`."},
    {.name = "lr_warmup_init",
     .field = o<&O::lr_warmup_init>,
     .check = at_least(0),
     .doc = "Learning rate at the start of warm-up."},
    {.name = "min_lr",
     .field = o<&O::min_lr>,
     .check = at_least(0),
     .doc = "Learning rate at the end of the decay."},
    {.name = "use_checkpoint_opt_param_scheduler",
     .field = o<&O::use_checkpoint_opt_param_scheduler>,
     .doc = "On resuming, take the schedule of the checkpoint."},
    {.name = "override_opt_param_scheduler",
     .field = o<&O::override_opt_param_scheduler>,
     .doc = "On resuming, take the schedule configured here; not together with the key before."},
    {.name = "overlap_param_gather",
     .field = o<&O::overlap_param_gather>,
     .doc = "Gather updated parameters during the next forward pass, each bucket where it is first "
            "used; needs `use_distributed_optimizer` or `parallel_config.zero_level`. Results are "
            "the same."},
    {.name = "exp_avg_dtype",
     .field = o<&O::exp_avg_dtype>,
     .check = satisfies(check_state_dtype, "float32 or bfloat16"),
     .doc = "Type in which the first moment is kept (Adam, AdamW); bfloat16 is rounded "
            "stochastically. See `docs/memory.md` for this and the next four keys."},
    {.name = "exp_avg_sq_dtype",
     .field = o<&O::exp_avg_sq_dtype>,
     .check = satisfies(check_state_dtype, "float32 or bfloat16"),
     .doc = "The same for the second moment."},
    {.name = "main_grads_dtype",
     .field = o<&O::main_grads_dtype>,
     .check = satisfies(check_state_dtype, "float32 or bfloat16"),
     .doc = "Type in which gradients are accumulated; sums in bfloat16 are rounded "
            "stochastically."},
    {.name = "store_param_remainders",
     .field = o<&O::store_param_remainders>,
     .doc = "Hold a float32 weight as the bfloat16 that computing uses and the 16 bits that it "
            "lacks, so that the bfloat16 costs nothing; the values are the same. Needs "
            "`compute_dtype: bfloat16`, and AdamW or Adam."},
    {.name = "optimizer_in_backward",
     .field = o<&O::optimizer_in_backward>,
     .doc = "Update each parameter during the backward pass and drop its gradient at once. Only "
            "with `micro_batch_num: 1`, without clipping by norm and without float16."},
    {.name = "zero_without_ddp",
     .field = o<&O::zero_without_ddp>,
     .accepted = "False",
     .reason = kZero,
     .doc = "Sharding without the data-parallel wrapper."},
    {.name = "zero_config",
     .field = o<&O::zero_config>,
     .accepted = "null",
     .reason = kZero,
     .doc = "Sharding without the data-parallel wrapper."},
    {.name = "zero_config.param_resident",
     .field = o<&O::zero_config, &Z::param_resident>,
     .doc = "Keep some weights whole."},
    {.name = "zero_config.param_resident_rate",
     .field = o<&O::zero_config, &Z::param_resident_rate>,
     .check = {.low = 0, .high = 1, .low_open = true},
     .doc = "Share of weights that is kept whole."},
    {.name = "zero_config.allreduce_after_grad_accumulation",
     .field = o<&O::zero_config, &Z::allreduce_after_grad_accumulation>,
     .doc = "Reduce once per step."},
    {.name = "zero_config.grad_allreduce_op",
     .field = o<&O::zero_config, &Z::grad_allreduce_op>,
     .check = one_of("mean|sum"),
     .doc = "Mean or sum over ranks."},
    {.name = "zero_config.opt_parallel_group",
     .field = o<&O::zero_config, &Z::opt_parallel_group>,
     .doc = "Group of ranks."},
    {.name = "zero_config.cpu_offload",
     .field = o<&O::zero_config, &Z::cpu_offload>,
     .doc = "Known for compatibility."},
    {.name = "zero_config.with_context_parallel",
     .field = o<&O::zero_config, &Z::with_context_parallel>,
     .doc = "Known for compatibility: sharding always includes the context-parallel ranks."},
};

constexpr Key kMoEKeys[] = {
    {.name = "num_experts",
     .field = e<&E::num_experts>,
     .check = above(0),
     .null = Null::kDefault,
     .accepted = "1",
     .reason = kMoE,
     .doc = "Experts of a layer; 1: a dense MLP."},
    {.name = "moe_router_topk",
     .field = e<&E::moe_router_topk>,
     .check = above(0),
     .accepted = "2",
     .reason = kMoE,
     .doc = "Experts per token."},
    {.name = "moe_layer_freq",
     .field = e<&E::moe_layer_freq>,
     .check = satisfies(check_layer_freq, "one number, or one 0 or 1 per layer"),
     .accepted = "[1]",
     .reason = kMoE,
     .doc = "Layers with experts: every f-th one (index divisible by f), or one 0 or 1 per layer."},
    {.name = "moe_ffn_hidden_size",
     .field = e<&E::moe_ffn_hidden_size>,
     .check = above(0),
     .accepted = "null",
     .reason = kMoE,
     .doc = "Width inside an expert; null: `ffn_hidden_size`."},
    {.name = "moe_shared_expert_intermediate_size",
     .field = e<&E::moe_shared_expert_intermediate_size>,
     .check = above(0),
     .accepted = "null",
     .reason = kMoE,
     .doc = "Width of an expert that sees every token."},
    {.name = "moe_router_pre_softmax",
     .field = e<&E::moe_router_pre_softmax>,
     .accepted = "False",
     .reason = kMoE,
     .doc = "Softmax before the choice of experts."},
    {.name = "moe_router_load_balancing_type",
     .field = e<&E::moe_router_load_balancing_type>,
     .check = one_of("none|aux_loss"),
     .accepted = "none",
     .reason = kMoE,
     .doc = "Load balancing."},
    {.name = "moe_aux_loss_coeff",
     .field = e<&E::moe_aux_loss_coeff>,
     .check = at_least(0),
     .accepted = "0.0",
     .reason = kMoE,
     .doc = "Weight of the load-balance loss."},
    {.name = "moe_z_loss_coeff",
     .field = e<&E::moe_z_loss_coeff>,
     .check = at_least(0),
     .accepted = "null|0.0",
     .reason = kMoE,
     .doc = "Weight of the loss on large router logits."},
    {.name = "moe_input_jitter_eps",
     .field = e<&E::moe_input_jitter_eps>,
     .check = at_least(0),
     .accepted = "null|0.0",
     .reason = kMoE,
     .doc = "Noise on the router's input."},
    {.name = "moe_expert_capacity_factor",
     .field = e<&E::moe_expert_capacity_factor>,
     .accepted = "null",
     .reason = kMoE,
     .doc = "Capacity of an expert; null or negative: no limit."},
    {.name = "moe_pad_expert_input_to_capacity",
     .field = e<&E::moe_pad_expert_input_to_capacity>,
     .accepted = "False",
     .reason = kMoE,
     .doc = "Fill experts up to their capacity."},
    {.name = "moe_token_drop_policy",
     .field = e<&E::moe_token_drop_policy>,
     .check = one_of("probs|position"),
     .accepted = "probs",
     .reason = kMoE,
     .doc = "Which tokens an expert keeps."},
    {.name = "moe_token_dispatcher_type",
     .field = e<&E::moe_token_dispatcher_type>,
     .check = one_of("alltoall"),
     .doc = "How tokens reach their experts."},
    {.name = "use_self_defined_alltoall",
     .field = e<&E::use_self_defined_alltoall>,
     .accepted = "False",
     .reason = kMoE,
     .doc = "Emulate the exchange by gathers."},
    {.name = "moe_grouped_gemm",
     .field = e<&E::moe_grouped_gemm>,
     .accepted = "False",
     .reason = kMoE,
     .doc = "One product for all experts."},
};

constexpr Key kLoraKeys[] = {
    {.name = "use_lora",
     .field = l<&L::use_lora>,
     .accepted = "False",
     .reason = kLora,
     .doc = "Train low-rank additions to frozen weights."},
    {.name = "lora_rank",
     .field = l<&L::lora_rank>,
     .check = above(0),
     .accepted = "8",
     .reason = kLora,
     .doc = "Rank of the additions."},
    {.name = "lora_alpha",
     .field = l<&L::lora_alpha>,
     .check = above(0),
     .accepted = "32",
     .reason = kLora,
     .doc = "Scale of the additions, divided by the rank."},
    {.name = "lora_dropout",
     .field = l<&L::lora_dropout>,
     .check = between(0, 1),
     .accepted = "0.0",
     .reason = kLora,
     .doc = "Dropout of their input."},
    {.name = "target_cells",
     .field = l<&L::target_cells>,
     .accepted = "null",
     .reason = kLora,
     .doc = "One entry {target_cells: [regular expressions]} and any {cell, rank, alpha} of cells "
            "with values of their own."},
};

}  // namespace

std::span<const Key> optimizer_keys() { return kOptimizerKeys; }
std::span<const Key> moe_keys() { return kMoEKeys; }
std::span<const Key> lora_keys() { return kLoraKeys; }

}  // namespace tapestry::config
