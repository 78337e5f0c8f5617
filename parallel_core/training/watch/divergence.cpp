#include "parallel_core/training/watch/divergence.h"

#include <algorithm>
#include <cmath>

#include "autograd/tensor/error.h"
#include "parallel_core/training/step/metrics.h"
#include "text/util/numbers.h"

namespace tapestry {

namespace {

// Losses that are compared at either end of a run.
constexpr size_t kComparedLosses = 10;

std::string remedy(const std::string& text) { return "\n  - " + text; }

bool has_warmup(const OptimizerConfig& optimizer) {
  return optimizer.lr_warmup_iters > 0 || optimizer.lr_warmup_samples > 0 ||
         optimizer.lr_warmup_fraction.value_or(0) > 0 ||
         (optimizer.learning_rate_scheduler_kwargs &&
          optimizer.learning_rate_scheduler_kwargs->warmup_steps > 0);
}

}  // namespace

void DivergenceWatch::observe(int64_t step, const StepResult& result) {
  ++steps_;
  last_step_ = step;
  loss_ = result.loss;
  grad_norm_ = result.grad_norm;
  loss_scale_ = result.loss_scale;
  if (first_losses_.size() < kComparedLosses) {
    first_losses_.push_back(loss_);
  } else if (std::isfinite(loss_)) {
    lowest_later_ = std::min(lowest_later_, loss_);
  }
  last_losses_.push_back(loss_);
  if (last_losses_.size() > kComparedLosses) {
    last_losses_.pop_front();
  }
  // An update in the backward pass does not look at its gradients: the norm tells.
  if (result.finite && std::isfinite(result.loss) && std::isfinite(result.grad_norm)) {
    past_.in_a_row = 0;
    past_.last_finite_step = step;
    past_.last_finite_lr =
        result.lr.empty() ? 0 : *std::max_element(result.lr.begin(), result.lr.end());
  } else {
    ++past_.in_a_row;
  }
}

bool DivergenceWatch::loss_is_finite() const { return std::isfinite(loss_); }

bool DivergenceWatch::has_diverged() const {
  const auto& limit = config_.training_config.max_nonfinite_steps;
  return limit && past_.in_a_row >= *limit;
}

bool DivergenceWatch::ends_badly() const {
  return steps_ > 0 && (!loss_is_finite() || past_.last_finite_step == 0);
}

std::string DivergenceWatch::worse_than_it_began() const {
  const auto compared = std::min<int64_t>(steps_ / 2, static_cast<int64_t>(first_losses_.size()));
  if (compared == 0 || !loss_is_finite()) {  // ends_badly tells of the latter
    return {};
  }
  const double first = first_losses_.front();
  const double before = *std::max_element(first_losses_.begin(), first_losses_.begin() + compared);
  const double after = *std::min_element(last_losses_.end() - compared, last_losses_.end());
  const double chance = std::log(static_cast<double>(config_.model_config.vocab_size));
  const std::string text = concat("the run ends worse than it began: the lowest loss of its last ",
                                  compared, compared == 1 ? " step is " : " steps is ", after);
  const std::string remedies = ". What may help:" + step_size_remedies();
  if (after > 1.25 * first && after > chance + 1) {
    return concat(text, ", its first was ", first, "; a model that knows nothing, with the same ",
                  "probability for each of ", config_.model_config.vocab_size, " ids, has ", chance,
                  remedies);
  }
  if (compared == kComparedLosses && after > 2 * before && after > before + 1) {
    return concat(text, ", the highest of its first ", compared, " was ", before, remedies);
  }
  if (compared == kComparedLosses && lowest_later_ > 1.5 * first && lowest_later_ > first + 1) {
    return concat(text, ", its first was ", first, ", and none after the first ", compared,
                  " has come near it", remedies);
  }
  return {};
}

std::string DivergenceWatch::report() const {
  std::string text = past_.in_a_row == 1 ? concat("step ", last_step_, " was not finite")
                                         : concat("the last ", past_.in_a_row, " steps (",
                                                  last_step_ - past_.in_a_row + 1, " to ",
                                                  last_step_, ") were not finite");
  text += concat(": the loss is ", without_nan_sign(loss_), ", the norm of the gradients ",
                 without_nan_sign(grad_norm_));
  if (config_.optimizer_config.optimizer_in_backward) {
    text += "; the weights were updated all the same (optimizer_in_backward)";
  } else if (past_.last_finite_step > 0) {
    text += concat("; the weights have not changed since step ", past_.last_finite_step);
  } else {
    text += "; the weights are those that the run began with";
  }
  return text + ". What may help:" + remedies();
}

std::string DivergenceWatch::step_size_remedies() const {
  const OptimizerConfig& optimizer = config_.optimizer_config;
  std::string text =
      remedy(concat("a lower optimizer_config.learning_rate (it is ", optimizer.learning_rate,
                    past_.in_a_row > 0 && past_.last_finite_step > 0
                        ? concat(", and was ", past_.last_finite_lr, " at step ",
                                 past_.last_finite_step, ", the last one that was finite")
                        : std::string(),
                    ")", has_warmup(optimizer) ? "" : ", or optimizer_config.lr_warmup_iters"));
  if (!gradient_clipping(config_)) {
    text += remedy(optimizer.optimizer_in_backward
                       ? "clipping by value, which is off: training_config.grad_clip_kwargs"
                       : "clipping, which is off: optimizer_config.clip_grad: 1.0");
  }
  return text;
}

std::string DivergenceWatch::remedies() const {
  const TrainingConfig& training = config_.training_config;
  const OptimizerConfig& optimizer = config_.optimizer_config;
  const DType compute = config_.model_config.compute_dtype;
  std::string text;
  // A finite loss with gradients that overflow: the scale, or what few numbers float16 has.
  if (loss_is_finite() && loss_scale_ > 1) {
    const bool dynamic = compute == kFloat16 && training.loss_scale_value && !training.loss_scale;
    text +=
        remedy(dynamic ? concat("a smaller training_config.loss_scale_value (it is ",
                                *training.loss_scale_value, " and has come down to ", loss_scale_,
                                "), or more time for it to come down: a larger "
                                "training_config.max_nonfinite_steps")
                       : concat("a smaller training_config.loss_scale (it is ", loss_scale_, ")"));
  }
  if (past_.last_finite_step > 0 || optimizer.optimizer_in_backward) {
    text += step_size_remedies();
  } else if (!training.load_checkpoint.empty()) {
    text += remedy(concat("other weights: those of training_config.load_checkpoint ",
                          training.load_checkpoint, " give no finite step here"));
  } else if (!loss_is_finite() || loss_scale_ <= 1) {
    text += remedy(concat("a smaller model_config.init_method_std (it is ",
                          config_.model_config.init_method_std, "): no update has been made yet"));
  }
  if (compute == kFloat16) {
    text += remedy(
        "bfloat16 in place of float16, whose largest number is 65504: training_config.bf16: True");
  } else if (compute == kBFloat16) {
    text += remedy("float32 in place of bfloat16: model_config.compute_dtype: float32");
  }
  if (config_.model_config.params_dtype != kFloat32) {
    text += remedy(concat("model_config.params_dtype: float32 (it is ",
                          name_of(config_.model_config.params_dtype), ")"));
  }
  return text;
}

}  // namespace tapestry
