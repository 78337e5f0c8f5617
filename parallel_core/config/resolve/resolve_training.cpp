// Rules of the run: its length, where it starts, what it saves, how gradients are treated.
#include <cstdint>
#include <limits>
#include <vector>

#include "parallel_core/config/resolve/resolve.h"
#include "parallel_core/config/schema/schema.h"

namespace tapestry::config {
namespace {

constexpr const char* kIters = "training_config.training_iters";
constexpr const char* kSamples = "dataset_config.train_samples";

void resolve_length(Resolution& r) {
  const auto& training = r.config().training_config;
  const auto& data = r.config().dataset_config;
  if (!r.sound({kIters, kSamples, "training_config.epochs", "dataset_config.batch_size",
                "dataset_config.micro_batch_num"})) {
    return;
  }
  if (training.training_iters > 0 && data.train_samples > 0) {
    r.error(kSamples, concat("is ", data.train_samples, " beside training_config.training_iters ",
                             training.training_iters, "; one of them gives the length of the run"));
  } else if (training.training_iters == 0 && data.train_samples == 0 && !training.epochs) {
    r.error(kIters,
            "training_iters is 0 and nothing else gives the length of the run; set it, "
            "training_config.epochs or dataset_config.train_samples");
  } else if (data.train_samples > 0 && !training.rampup_batch_size &&
             data.train_samples < global_batch_size(r.config())) {
    r.error(kSamples, concat("is ", data.train_samples, ", less than one global batch of ",
                             global_batch_size(r.config())));
  }
  const auto within = [&](const char* key, const std::vector<int64_t>& steps) {
    for (const int64_t step : steps) {
      if (training.training_iters > 0 && step > training.training_iters) {
        r.error(key, concat("step ", step, " is beyond training_iters ", training.training_iters));
      }
    }
  };
  const auto reached = [&](const char* key, std::optional<int64_t> interval, const char* what) {
    if (r.sound({key}) && interval && training.training_iters > 0 &&
        *interval > training.training_iters) {
      r.note(key, concat("is ", *interval, ", beyond the run of ", training.training_iters,
                         " steps: ", what, "; set it to at most ", training.training_iters,
                         ", or to null"));
    }
  };
  reached("training_config.eval_interval", training.eval_interval, "the model is never evaluated");
  within("training_config.dump_activation_steps", training.dump_activation_steps);
  within("training_config.dump_grad_steps", training.dump_grad_steps);
  within("training_config.dump_weight_steps", training.dump_weight_steps);
}

// A run that goes on has weights of its own.
void resolve_start_weights(Resolution& r) {
  auto& training = r.config().training_config;
  const auto& from_hf = r.config().model_config.from_hf;
  constexpr const char* kLoad = "training_config.load_checkpoint";
  if (from_hf && !r.given(kLoad) && !r.config().moe_config.upcycle_from &&
      !differs_from_default(r.config(), "training_config", "resume_training")) {
    training.load_checkpoint = *from_hf;
    r.derived(kLoad, "model_config.from_hf");
  }
}

void resolve_wrapper(Resolution& r) {
  auto& training = r.config().training_config;
  const auto& zero_level = r.config().parallel_config.zero_level;
  constexpr const char* kWrap = "training_config.wrap_with_ddp";
  constexpr const char* kSharded = "training_config.use_distributed_optimizer";
  constexpr const char* kLevel = "parallel_config.zero_level";
  if (zero_level && !training.use_distributed_optimizer) {
    if (r.given(kSharded)) {
      r.error(kSharded, concat("is False, but parallel_config.zero_level: ", *zero_level,
                               " shards the optimizer; leave this key out"));
    } else {
      r.derived(kSharded, kLevel);
    }
    training.use_distributed_optimizer = true;
  }
  if (training.use_distributed_optimizer && !training.wrap_with_ddp) {
    if (r.given(kWrap)) {
      r.error(kWrap, concat("is False, but ",
                            zero_level ? "zero_level" : "use_distributed_optimizer: True",
                            " needs it; leave this key out"));
    } else {
      r.derived(kWrap, zero_level ? kLevel : kSharded);
    }
    training.wrap_with_ddp = true;
  }
  const auto needs = [&](bool used, const char* key, bool base, const char* base_name) {
    if (used && !base) {
      r.error(key, concat("needs ", base_name, ": True"));
    }
  };
  needs(training.overlap_grad_reduce, "training_config.overlap_grad_reduce", training.wrap_with_ddp,
        "wrap_with_ddp");
  needs(training.delay_grad_reduce, "training_config.delay_grad_reduce",
        training.overlap_grad_reduce, "overlap_grad_reduce");
  needs(training.bucket_size.has_value(), "training_config.bucket_size", training.wrap_with_ddp,
        "wrap_with_ddp");
  needs(r.config().optimizer_config.overlap_param_gather, "optimizer_config.overlap_param_gather",
        training.use_distributed_optimizer, "training_config.use_distributed_optimizer");
}

void resolve_loss_scale(Resolution& r) {
  const auto& training = r.config().training_config;
  constexpr const char* kScale = "training_config.loss_scale";
  constexpr const char* kValue = "training_config.loss_scale_value";
  constexpr const char* kFactor = "training_config.loss_scale_factor";
  constexpr const char* kWindow = "training_config.loss_scale_window";
  if (!r.sound({kScale, kValue, kFactor, kWindow, "model_config.compute_dtype"})) {
    return;
  }
  if (training.loss_scale_factor && !training.loss_scale_value) {
    r.error(kFactor, "needs loss_scale_value");
  }
  if (training.loss_scale_window && (!training.loss_scale_value || !training.loss_scale_factor)) {
    r.error(kWindow, "needs loss_scale_value and loss_scale_factor");
  }
  const bool half = r.config().model_config.compute_dtype == kFloat16;
  if (training.loss_scale_value) {
    if (!training.loss_scale_factor || !training.loss_scale_window) {
      r.error(kValue,
              "starts dynamic loss scaling, which needs loss_scale_factor (usually 2) and "
              "loss_scale_window (usually 1000) as well");
    } else if (training.loss_scale) {
      r.note(kValue, "not used: the static loss_scale is set");
    } else if (!half) {
      r.note(kValue, "not used: only float16 compute has dynamic loss scaling");
    }
  } else if (half && !training.loss_scale) {
    r.note(
        "model_config.compute_dtype",
        "float16 without loss scaling: small gradients become 0; set training_config.loss_scale, "
        "or loss_scale_value, loss_scale_factor and loss_scale_window");
  }
}

// When a run saves.
void resolve_saving(Resolution& r) {
  auto& t = r.config().training_config;
  constexpr const char* kSteps = "training_config.save_interval";
  constexpr const char* kSeconds = "training_config.save_interval_seconds";
  constexpr const char* kMinutes = "training_config.save_interval_minutes";
  if (t.save_interval_minutes && t.save_interval_seconds) {
    r.error(kMinutes, "given beside save_interval_seconds; keep the one that is meant");
  } else if (t.save_interval_minutes) {
    constexpr double kSecondsOfMinute = 60;
    t.save_interval_seconds = *t.save_interval_minutes * kSecondsOfMinute;
    t.save_interval_minutes.reset();
    r.derived(kSeconds, kMinutes);
  }
  if (t.save_interval && t.save_interval_seconds) {
    r.error(kSteps, "given beside an interval in time; keep the one that is meant");
  }
  if (t.ckpt_format == "safetensors" && t.prefix != TrainingConfig().prefix) {
    r.error("training_config.prefix",
            "has no effect on safetensors files, whose names are Hugging Face's; set ckpt_format: "
            "ckpt, or leave it out");
  }
  if (t.keep_checkpoint_per_n_minutes > 0 && r.asked("training_config", "keep_checkpoint_max")) {
    r.error("training_config.keep_checkpoint_per_n_minutes",
            "given beside keep_checkpoint_max; keep the one that is meant");
  }
  if (t.best_metric_comparison && !t.eval_interval) {
    r.error("training_config.best_metric_comparison",
            "needs training_config.eval_interval, or nothing is ever compared");
  }
}

// Of the two names for one thing, the package's holds the product.
void resolve_accumulation(Resolution& r) {
  constexpr const char* kKey = "training_config.gradient_accumulation_steps";
  constexpr const char* kBatches = "dataset_config.micro_batch_num";
  auto& steps = r.config().training_config.gradient_accumulation_steps;
  int64_t& batches = r.config().dataset_config.micro_batch_num;
  if (!steps || !r.sound({kKey, kBatches})) {
    return;
  }
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (*steps > kMost / batches) {
    r.error(kKey, concat("is ", *steps, ", times ", kBatches, " ", batches, " more than ", kMost,
                         " micro-batches in a step"));
    return;
  }
  batches *= *steps;
  steps.reset();
  r.derived(kBatches, kKey);
}

// The static configurations' two keys of clipping.
void resolve_clipping(Resolution& r) {
  constexpr const char* kUse = "training_config.use_clip_grad";
  constexpr const char* kNorm = "training_config.max_grad_norm";
  constexpr const char* kClip = "optimizer_config.clip_grad";
  auto& training = r.config().training_config;
  double& clip = r.config().optimizer_config.clip_grad;
  if (!r.sound({kUse, kNorm, kClip})) {
    return;
  }
  if (training.grad_clip_kwargs &&
      r.asked_beside("training_config.grad_clip_kwargs", "optimizer_config", "clip_grad")) {
    r.error(kClip, concat("given beside training_config.grad_clip_kwargs; keep one of them",
                          clip > 0 ? "" : ": grad_clip_kwargs=null clips nothing"));
  }
  if (!training.use_clip_grad.value_or(false)) {
    if (training.max_grad_norm) {
      r.idle(kNorm, "without use_clip_grad: True");
    }
    if (training.use_clip_grad && (clip > 0 || training.grad_clip_kwargs)) {
      r.error(kUse,
              concat("is False beside ", clip > 0 ? kClip : "training_config.grad_clip_kwargs",
                     ", which clips; keep the one that is meant"));
    }
  } else {
    const double norm = training.max_grad_norm.value_or(1.0);
    const bool other_norm = r.given(kClip) && clip != norm;  // 0: no clipping
    if (training.grad_clip_kwargs || other_norm) {
      r.error(kUse,
              concat("clips to a norm of ", norm, " beside ",
                     other_norm ? concat(kClip, " ", clip) : "training_config.grad_clip_kwargs",
                     ", which says otherwise; keep one of them"));
    } else {
      clip = norm;
      r.derived(kClip, kUse);
    }
  }
  training.use_clip_grad.reset();
  training.max_grad_norm.reset();
}

void check_autopsy(Resolution& r) {
  const TrainingConfig& training = r.config().training_config;
  if (!training.autopsy && training.loss_spike_threshold) {
    r.error("training_config.loss_spike_threshold",
            "has no effect without training_config.autopsy");
  }
  if (!training.autopsy && training.on_anomaly != "continue") {
    r.error("training_config.on_anomaly",
            concat("is ", training.on_anomaly, ", which needs training_config.autopsy: True"));
  }
}

}  // namespace

void resolve_training(Resolution& r) {
  resolve_accumulation(r);
  resolve_clipping(r);
  resolve_saving(r);
  const auto& training = r.config().training_config;
  resolve_length(r);
  resolve_start_weights(r);
  resolve_wrapper(r);
  resolve_data(r);
  resolve_loss_scale(r);
  check_autopsy(r);
  if (training.new_dataset &&
      !differs_from_default(r.config(), "training_config", "resume_training")) {
    r.idle("training_config.new_dataset",
           "without resume_training: a run that starts anew begins its data anew");
  }
  if (training.profile_step_start > training.profile_step_end) {
    r.error("training_config.profile_step_start",
            concat("is ", training.profile_step_start, ", after profile_step_end ",
                   training.profile_step_end));
  } else if (training.profile && training.profile_dynamic_profiler_config_path.empty() &&
             training.training_iters > 0 && training.profile_step_start > training.training_iters) {
    r.error("training_config.profile_step_start",
            concat("is ", training.profile_step_start, ", but the run has ",
                   training.training_iters, " steps"));
  }
}

}  // namespace tapestry::config
