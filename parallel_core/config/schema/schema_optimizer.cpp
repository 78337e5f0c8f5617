// Rows of `optimizer_config`.
#include <cmath>

#include "parallel_core/config/schema/schema.h"

namespace tapestry::config {
namespace optimizer_section {
namespace {

using O = OptimizerConfig;
using S = LearningRateSchedulerConfig;
template <auto... Path>
constexpr Field f = field_of<&AllConfig::optimizer_config, Path...>();

constexpr Check kFraction = {.low = 0, .high = 1, .high_open = true};
constexpr std::string_view kZero = "parallel_config.zero_level decides what is sharded";

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

std::string check_names(const Value& value) {
  for (const Value& name : value.as<Value::List>()) {
    if (name.as<std::string>().empty()) {
      return "must be names or patterns; an empty one would match every parameter (`*` does)";
    }
  }
  return {};
}

// One row without brackets around it, or rows.
std::string check_coefficients(const Value& value) {
  const FloatTable table = [&] {
    FloatTable rows;
    detail::assign(rows, value);
    return rows;
  }();
  for (const std::vector<double>& row : table) {
    if (row.size() != 4 && (row.size() != 3 || table.size() > 1)) {
      return "must be three numbers a, b, c, or rows [[a, b, c], iterations], got " +
             to_yaml(value);
    }
    if (row.size() == 4 && (row[3] < 1 || row[3] > 1000 || row[3] != std::floor(row[3]))) {
      return "must have whole numbers of iterations between 1 and 1000, got " + to_yaml(value);
    }
  }
  return table.empty() ? "must not be empty" : "";
}

std::string check_learning_rate(const Value& value) {
  const auto rate = value.as<double>();
  return rate > 0 ? ""
         : rate == 0
             ? "must be > 0, got 0; `pretrain_gpt --lr_zero N` takes N steps that leave the "
               "weights as they are and logs their losses and norms"
             : "must be > 0, got " + to_yaml(value);
}

constexpr Key kKeys[] = {
    {.name = "optimizer_type",
     .field = f<&O::optimizer_type>,
     .check = one_of("AdamW|Adam|SGD|Lion|Came|Adafactor|Muon"),
     .registers = ModuleType::kOptimizer,
     .value_aliases = "mint.AdamW=AdamW|SpeedAdamW=AdamW|AdamWeightDecay=AdamW|AdamWZeRO=AdamW|"
                      "experiment_adamw=AdamW|CAME=Came",
     .doc = "Kind of optimizer. AdamW decays weights apart from the moments, Adam through the "
            "gradient. `docs/optimizers.md` has formulas, keys and costs of all."},
    {.name = "optimizer_kwargs",
     .field = f<&O::optimizer_kwargs>,
     .null = Null::kDefault,
     .doc = "What a registered `optimizer_type` is made with beside learning rate and weight "
            "decay; which entries it has and their defaults, the program that registers it says: "
            "`docs/register.md`."},
    {.name = "learning_rate",
     .field = f<&O::learning_rate>,
     .check = satisfies(check_learning_rate, "> 0"),
     .doc = "Largest learning rate."},
    {.name = "learning_rate_scheduler_kwargs",
     .field = f<&O::learning_rate_scheduler_kwargs>,
     .doc = "Schedule of the learning rate by steps; not together with `lr_decay_style` and its "
            "keys. After s updates of a warm-up the rate is learning_rate s / warmup_steps; the "
            "decay that follows is counted from step 0."},
    {.name = "learning_rate_scheduler_kwargs.warmup_steps",
     .field = f<&O::learning_rate_scheduler_kwargs, &S::warmup_steps>,
     .check = at_least(0),
     .doc = "Steps in which the learning rate grows linearly from 0."},
    {.name = "learning_rate_scheduler_kwargs.decay_steps",
     .field = f<&O::learning_rate_scheduler_kwargs, &S::decay_steps>,
     .check = above(0),
     .required = true,
     .example = "2000",
     .doc = "Step at which the learning rate reaches `end_learning_rate`."},
    {.name = "learning_rate_scheduler_kwargs.end_learning_rate",
     .field = f<&O::learning_rate_scheduler_kwargs, &S::end_learning_rate>,
     .check = at_least(0),
     .doc = "Last learning rate."},
    {.name = "learning_rate_scheduler_kwargs.use_cosine",
     .field = f<&O::learning_rate_scheduler_kwargs, &S::use_cosine>,
     .doc = "True: the learning rate falls as half a cosine; False: as a polynomial."},
    {.name = "learning_rate_scheduler_kwargs.power",
     .field = f<&O::learning_rate_scheduler_kwargs, &S::power>,
     .check = above(0),
     .doc = "Power of the polynomial by which the learning rate falls without `use_cosine`."},
    {.name = "weight_decay",
     .field = f<&O::weight_decay>,
     .check = at_least(0),
     .doc = "Weight decay. It does not apply to parameters with `norm` or `bias` in the name, "
            "unless `weight_decay_include` or `weight_decay_exclude` is given."},
    {.name = "weight_decay_include",
     .field = f<&O::weight_decay_include>,
     .check = satisfies(check_names, "no empty names"),
     .doc =
         "Names of parameters that decay in any case. A rule matches a name that it equals or is "
         "part of, or as a shell pattern (`*`, `?`, `[abc]`). Names are those of checkpoints, of "
         "the modules in memory, or of MindFormers 2.0 (`docs/optimizers.md`)."},
    {.name = "weight_decay_exclude",
     .field = f<&O::weight_decay_exclude>,
     .check = satisfies(check_names, "no empty names"),
     .doc = "Names of parameters that do not decay, unless `weight_decay_include` has them. If "
            "either of the two keys is given, of the others vectors and biases do not decay, and "
            "all else does."},
    {.name = "start_weight_decay",
     .field = f<&O::start_weight_decay>,
     .check = at_least(0),
     .default_text = "weight_decay",
     .doc = "Weight decay of the first step."},
    {.name = "end_weight_decay",
     .field = f<&O::end_weight_decay>,
     .check = at_least(0),
     .default_text = "weight_decay",
     .doc = "Weight decay of the last step."},
    {.name = "weight_decay_incr_style",
     .field = f<&O::weight_decay_incr_style>,
     .check = one_of("constant|linear|cosine"),
     .doc = "How weight decay changes from `start_weight_decay` to `end_weight_decay`; constant "
            "needs both to be equal."},
    {.name = "clip_grad",
     .field = f<&O::clip_grad>,
     .check = at_least(0),
     .doc = "Largest norm over all gradients; 0: gradients are not clipped. Not together with "
            "`training_config.grad_clip_kwargs`."},
    {.name = "betas",
     .field = f<&O::betas>,
     .check = satisfies(check_betas, "two numbers in [0, 1)"),
     .aliases = "adamw_betas",
     .default_text = "[0.9, 0.999]; Lion [0.9, 0.99], Muon [0.95, 0.95]",
     .doc = "Adam, AdamW, and Muon's AdamW: decay of the first and second moment. Lion: decay of "
            "the average that the update uses, and of the average that is stored. Came: see "
            "`decay_rate`."},
    {.name = "beta1",
     .field = f<&O::beta1>,
     .check = kFraction,
     .doc = "First of `betas`: decay of the first moment."},
    {.name = "beta2",
     .field = f<&O::beta2>,
     .check = kFraction,
     .doc = "Second of `betas`: decay of the second moment."},
    {.name = "eps",
     .field = f<&O::eps>,
     .check = above(0),
     .aliases = "adamw_eps",
     .doc =
         "Number that is added to the root of the second moment (Adam, AdamW, and Muon's AdamW)."},
    {.name = "momentum",
     .field = f<&O::momentum>,
     .check = kFraction,
     .default_text = "0.0; Muon 0.95",
     .doc = "Momentum of SGD and Muon. Adafactor: decay of the average of its updates; 0: no "
            "average, and no memory for it."},
    {.name = "dampening",
     .field = f<&O::dampening>,
     .check = kFraction,
     .doc = "Dampening of SGD's momentum."},
    {.name = "nesterov",
     .field = f<&O::nesterov>,
     .default_text = "False; Muon True",
     .doc = "Nesterov momentum of SGD, which needs `momentum` and no `dampening`, and of Muon."},
    {.name = "beta3",
     .field = f<&O::beta3>,
     .check = kFraction,
     .doc = "Decay of Came's instability."},
    {.name = "decay_rate",
     .field = f<&O::decay_rate>,
     .check = at_least(0),
     .doc = "Decay of the second moments of Came and Adafactor: 1 - t^-`decay_rate` at update t. "
            "With null, Came uses the second of `betas`."},
    {.name = "clip_threshold",
     .field = f<&O::clip_threshold>,
     .check = above(0),
     .doc = "Largest RMS of an update before the learning rate (Came, Adafactor)."},
    {.name = "scale_parameter",
     .field = f<&O::scale_parameter>,
     .doc = "Multiply the learning rate by the RMS of each weight (Came, Adafactor)."},
    {.name = "eps1",
     .field = f<&O::eps1>,
     .check = above(0),
     .doc = "Number that is added to squared gradients (Came, Adafactor)."},
    {.name = "eps2",
     .field = f<&O::eps2>,
     .check = at_least(0),
     .doc = "Smallest RMS of a weight for `scale_parameter` (Came, Adafactor)."},
    {.name = "eps3",
     .field = f<&O::eps3>,
     .check = above(0),
     .doc = "Number that is added to squared residuals (Came)."},
    {.name = "ns_steps",
     .field = f<&O::ns_steps>,
     .check = above(0),
     .doc = "Iterations of Muon's orthogonalisation."},
    {.name = "ns_coefficients",
     .field = f<&O::ns_coefficients>,
     .check = satisfies(check_coefficients, "three numbers, or rows [[a, b, c], iterations]"),
     .default_text = "null ([3.4445, -4.775, 2.0315])",
     .doc =
         "Coefficients a, b, c of Muon's iteration X = a X + (b A + c A A) X with A = X X^T: three "
         "numbers for all `ns_steps`, or rows [[a, b, c], iterations], one after the other, in "
         "place of `ns_steps`."},
    {.name = "adamw_include",
     .field = f<&O::adamw_include>,
     .check = satisfies(check_names, "no empty names"),
     .default_text = "null (embeddings, head, routers and convolutions)",
     .doc = "Names of matrices that Muon leaves to AdamW, as in `weight_decay_include`. All other "
            "matrices are Muon's then; vectors always take AdamW."},
    {.name = "ns_dtype",
     .field = f<&O::ns_dtype>,
     .check = one_of("auto|float32|bfloat16"),
     .doc = "Type of the products of Muon's orthogonalisation; auto: bfloat16 if the processor has "
            "units for it, else float32."},
    {.name = "adjust_lr",
     .field = f<&O::adjust_lr>,
     .check = one_of("match_rms_adamw|original"),
     .doc =
         "Factor by which Muon scales the learning rate for a matrix. match_rms_adamw: "
         "`matched_adamw_rms` sqrt(max(rows, columns)). original: sqrt(max(1, rows / columns))."},
    {.name = "matched_adamw_rms",
     .field = f<&O::matched_adamw_rms>,
     .check = above(0),
     .doc = "RMS of AdamW's updates, in units of the learning rate, that Muon's updates match with "
            "`adjust_lr: match_rms_adamw`."},
    {.name = "adamw_learning_rate",
     .field = f<&O::adamw_learning_rate>,
     .check = above(0),
     .default_text = "null (learning_rate)",
     .doc = "Largest learning rate of the parameters that Muon leaves to AdamW: embeddings, head, "
            "norms and biases. Both learning rates follow the schedule in the same way."},
    {.name = "qk_clip_enabled",
     .field = f<&O::qk_clip_enabled>,
     .doc = "After each update, scale down the weights of queries and keys of heads whose largest "
            "attention score in the step was at least `qk_clip_threshold` (QK-clip), with any "
            "optimizer. Not for layers whose queries and keys are normed (`qk_layernorm`)."},
    {.name = "qk_clip_threshold",
     .field = f<&O::qk_clip_threshold>,
     .check = above(0),
     .doc = "Attention score from which on `qk_clip_enabled` scales, and to which it scales."},
    {.name = "lr_decay_style",
     .field = f<&O::lr_decay_style>,
     .check = one_of("constant|WSD|linear|cosine|inverse-square-root|polynomial|cosine_restarts|"
                     "cooldown|cosine_annealing|warm_restarts"),
     .registers = ModuleType::kLrScheduler,
     .default_text = "constant",
     .doc = "How the learning rate falls after warm-up. `docs/optimizers.md` has the formulas."},
    {.name = "lr_schedule_kwargs",
     .field = f<&O::lr_schedule_kwargs>,
     .null = Null::kDefault,
     .doc = "What a registered `lr_decay_style` is made with: as `optimizer_kwargs`."},
    {.name = "lr_decay_iters",
     .field = f<&O::lr_decay_iters>,
     .check = above(0),
     .default_text = "null (training_iters)",
     .doc = "Steps until the learning rate reaches `min_lr`, warm-up included."},
    {.name = "lr_decay_samples",
     .field = f<&O::lr_decay_samples>,
     .check = above(0),
     .default_text = "null (train_samples)",
     .doc = "Sequences until the learning rate reaches `min_lr`, warm-up included; with "
            "`dataset_config.train_samples`, in place of `lr_decay_iters`."},
    {.name = "lr_wsd_decay_iters",
     .field = f<&O::lr_wsd_decay_iters>,
     .check = above(0),
     .doc =
         "With `lr_decay_style: WSD`, steps of the last part, in which the learning rate falls."},
    {.name = "lr_wsd_decay_samples",
     .field = f<&O::lr_wsd_decay_samples>,
     .check = above(0),
     .doc = "With `lr_decay_style: WSD`, sequences of the last part, in which the learning rate "
            "falls; with `dataset_config.train_samples`, in place of `lr_wsd_decay_iters`."},
    {.name = "lr_wsd_decay_style",
     .field = f<&O::lr_wsd_decay_style>,
     .check = one_of("linear|cosine|exponential"),
     .doc =
         "With `lr_decay_style: WSD`, shape of the last part, in which the learning rate falls."},
    {.name = "lr_num_cycles",
     .field = f<&O::lr_num_cycles>,
     .check = above(0),
     .default_text = "null (cosine and cooldown 0.5, cosine_restarts 1.0)",
     .doc = "Waves of the cosine with `lr_decay_style` cosine or cooldown, 0.5 for one fall; falls "
            "with cosine_restarts."},
    {.name = "lr_decay_power",
     .field = f<&O::lr_decay_power>,
     .check = above(0),
     .doc = "With `lr_decay_style: polynomial`, the power of what is left of the decay's length."},
    {.name = "lr_keep_iters",
     .field = f<&O::lr_keep_iters>,
     .check = at_least(0),
     .doc = "With `lr_decay_style: cooldown`, steps after the warm-up that have the largest "
            "learning rate."},
    {.name = "lr_final_iters",
     .field = f<&O::lr_final_iters>,
     .check = at_least(0),
     .doc = "With `lr_decay_style: cooldown`, steps that have `min_lr` before `final_lr` follows."},
    {.name = "final_lr",
     .field = f<&O::final_lr>,
     .check = at_least(0),
     .default_text = "null (min_lr)",
     .doc = "With `lr_decay_style: cooldown`, learning rate of the last part."},
    {.name = "lr_restart_iters",
     .field = f<&O::lr_restart_iters>,
     .check = at_least(0),
     .doc = "With `lr_decay_style: warm_restarts`, which needs it, steps of the first cycle."},
    {.name = "lr_restart_mult",
     .field = f<&O::lr_restart_mult>,
     .check = at_least(1),
     .doc = "With `lr_decay_style: warm_restarts`, factor by which each cycle is longer than the "
            "one before."},
    {.name = "lr_warmup_iters",
     .field = f<&O::lr_warmup_iters>,
     .check = at_least(0),
     .doc = "Warm-up: steps in which the learning rate grows linearly from `lr_warmup_init`."},
    {.name = "lr_warmup_samples",
     .field = f<&O::lr_warmup_samples>,
     .check = at_least(0),
     .doc = "Warm-up: sequences in which the learning rate grows linearly from `lr_warmup_init`; "
            "with `dataset_config.train_samples`, in place of `lr_warmup_iters`."},
    {.name = "lr_warmup_fraction",
     .field = f<&O::lr_warmup_fraction>,
     .check = kFraction,
     .doc = "Warm-up as a share of the decay's length; takes precedence over `lr_warmup_iters`, "
            "unless "
            "only that is on the command line."},
    {.name = "lr_warmup_init",
     .field = f<&O::lr_warmup_init>,
     .check = at_least(0),
     .doc = "Learning rate of the first step of a warm-up. null: step s of a warm-up of W steps "
            "has `learning_rate` s / W, so that the first update has an effect, too."},
    {.name = "min_lr",
     .field = f<&O::min_lr>,
     .check = at_least(0),
     .doc = "Learning rate at the end of the decay."},
    {.name = "use_checkpoint_opt_param_scheduler",
     .field = f<&O::use_checkpoint_opt_param_scheduler>,
     .doc = "When a run resumes, take the schedule from the checkpoint."},
    {.name = "override_opt_param_scheduler",
     .field = f<&O::override_opt_param_scheduler>,
     .doc = "When a run resumes, take the schedule that is configured here; not together with "
            "`use_checkpoint_opt_param_scheduler`."},
    {.name = "overlap_param_gather",
     .field = f<&O::overlap_param_gather>,
     .doc = "Gather updated parameters during the next forward pass, each bucket at its first use; "
            "needs `use_distributed_optimizer` or `parallel_config.zero_level`. Results do not "
            "change."},
    {.name = "exp_avg_dtype",
     .field = f<&O::exp_avg_dtype>,
     .check = satisfies(check_state_dtype, "float32 or bfloat16"),
     .doc = "Type in which the first moment is stored (Adam, AdamW, Lion, and Muon's AdamW); "
            "bfloat16 is rounded stochastically. See `docs/memory.md`."},
    {.name = "exp_avg_sq_dtype",
     .field = f<&O::exp_avg_sq_dtype>,
     .check = satisfies(check_state_dtype, "float32 or bfloat16"),
     .doc = "Type in which the second moment is stored (Adam, AdamW, and Muon's AdamW); bfloat16 "
            "is rounded stochastically. See `docs/memory.md`."},
    {.name = "main_grads_dtype",
     .field = f<&O::main_grads_dtype>,
     .check = satisfies(check_state_dtype, "float32 or bfloat16"),
     .doc = "Type in which gradients are accumulated; sums in bfloat16 are rounded "
            "stochastically."},
    {.name = "store_param_remainders",
     .field = f<&O::store_param_remainders>,
     .doc = "Store a float32 weight as the bfloat16 value that the computation uses and the 16 "
            "bits that it lacks, so that no separate bfloat16 copy is needed. The values do not "
            "change. Needs `compute_dtype: bfloat16`, and AdamW or Adam."},
    {.name = "optimizer_in_backward",
     .field = f<&O::optimizer_in_backward>,
     .doc = "Update each parameter during the backward pass and drop its gradient at once. Only "
            "with `micro_batch_num: 1`, without clipping by norm and without float16."},
};

}  // namespace
}  // namespace optimizer_section

std::span<const Key> optimizer_keys() { return optimizer_section::kKeys; }

}  // namespace tapestry::config
