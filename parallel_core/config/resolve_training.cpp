// Rules of training, data and optimizer. The schedule's errors are those of the original's
// OptimizerParamScheduler, found before any work.
#include <array>
#include <cstdint>
#include <filesystem>
#include <limits>

#include "parallel_core/config/resolve.h"
#include "parallel_core/config/schema.h"

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
  } else if (data.train_samples > 0 && data.train_samples < global_batch_size(r.config())) {
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

// The one source that the data come from.
void resolve_data_source(Resolution& r) {
  const auto& data = r.config().dataset_config;
  constexpr const char* kTrain = "dataset_config.train_data_path";
  std::string first;
  for (const auto& [key, is_given] :
       {std::pair{"data_path", data.data_path.has_value()},
        std::pair{"train_data_path", data.train_data_path.has_value()},
        std::pair{"text", data.text.has_value()},
        std::pair{"sft_data_path", data.sft_data_path.has_value()},
        std::pair{"step_data_dir", data.step_data_dir.has_value()}}) {
    if (is_given && !first.empty()) {
      r.error(concat("dataset_config.", key),
              concat("given beside ", first, "; keep the one that is meant"));
    }
    first = is_given ? key : first;
  }
  for (const auto& [key, path] : {std::pair{"valid_data_path", &data.valid_data_path},
                                  std::pair{"test_data_path", &data.test_data_path}}) {
    if (*path && !data.train_data_path) {
      r.error(concat("dataset_config.", key), "needs train_data_path beside it");
    }
  }
  if (data.train_data_path && differs_from_default(r.config(), "dataset_config", "split")) {
    r.error("dataset_config.split",
            "divides data_path, but each part has data of its own in train_data_path; leave one "
            "of them out");
  }
  if (data.train_data_path && !data.valid_data_path && r.config().training_config.eval_interval &&
      r.sound({kTrain, "dataset_config.valid_data_path"})) {
    r.error("training_config.eval_interval",
            "is set, but there is no dataset_config.valid_data_path beside train_data_path; name "
            "the validation data, or set eval_interval to null");
  }
}

// Files that the tokenizer `huggingface` is read from.
bool has_huggingface_tokenizer(const std::string& folder) {
  namespace fs = std::filesystem;
  const fs::path path = folder;
  return fs::exists(path / "tokenizer.json") ||
         (fs::exists(path / "vocab.json") && fs::exists(path / "merges.txt"));
}

// A run that starts from the folder of a model has its tokenizer, unless it names another. Data
// that are there already say themselves what they were made with, where the folder has two.
void take_tokenizer_of_folder(Resolution& r) {
  auto& data = r.config().dataset_config;
  const auto& from_hf = r.config().model_config.from_hf;
  constexpr const char* kType = "dataset_config.tokenizer_type";
  constexpr const char* kModel = "dataset_config.tokenizer_model";
  if (!from_hf || data.step_data_dir || data.tokenizer_model ||
      !has_huggingface_tokenizer(*from_hf)) {
    return;
  }
  if (!r.given(kType)) {
    const bool has_pieces = std::filesystem::exists(*from_hf + "/tokenizer.model");
    if (has_pieces && (data.data_path || data.train_data_path)) {
      return;
    }
    data.tokenizer_type = "huggingface";
    r.derived(kType, "model_config.from_hf");
  }
  if (data.tokenizer_type == "huggingface") {
    data.tokenizer_model = *from_hf;
    r.derived(kModel, "model_config.from_hf");
  }
}

void resolve_tokenizer(Resolution& r) {
  take_tokenizer_of_folder(r);
  const auto& data = r.config().dataset_config;
  constexpr const char* kCoverage = "dataset_config.character_coverage";
  if (data.tokenizer_type == "byte" && data.tokenizer_model) {
    r.error("dataset_config.tokenizer_model", "the byte tokenizer has no model file");
  }
  if (data.tokenizer_type == "huggingface" && !data.tokenizer_model && !data.data_path &&
      !data.train_data_path && !data.step_data_dir) {
    r.error("dataset_config.tokenizer_model",
            "is not given, and the tokenizer `huggingface` is not made of a text; name a "
            "tokenizer.json, or the folder of a model");
  }
  if (!data.character_coverage) {
    return;
  }
  if (data.tokenizer_type != "sentencepiece") {
    r.error(kCoverage, concat("has no effect with tokenizer_type ", data.tokenizer_type));
  } else if (data.data_path || data.train_data_path || data.step_data_dir || data.sft_data_path ||
             data.tokenizer_model) {
    r.error(kCoverage,
            "has no effect: no tokenizer is trained here; preprocess_data has an option of this "
            "name");
  }
}

void resolve_data(Resolution& r) {
  const auto& data = r.config().dataset_config;
  resolve_data_source(r);
  resolve_tokenizer(r);
  resolve_examples(r);
  if (data.step_data_dir && data.step_data_dir->empty()) {
    r.error("dataset_config.step_data_dir", "is empty; give a folder or leave the key out");
  }
  if (data.shuffle.value_or(false) && data.step_data_dir) {
    r.error("dataset_config.shuffle",
            "is True, but recorded steps are replayed in order; leave the key out, or train on a "
            "data set in place of step_data_dir");
  }
  const auto recorded = [&](bool given, const char* key) {
    if (given && data.step_data_dir) {
      r.error(key,
              "has no effect on recorded steps, which have loss_mask.npy and "
              "attention_mask.npy of their own; leave the key out");
    }
  };
  recorded(data.eod_mask_loss, "dataset_config.eod_mask_loss");
  recorded(data.reset_attention_mask, "dataset_config.reset_attention_mask");
  recorded(data.reset_position_ids, "dataset_config.reset_position_ids");
  recorded(data.pad_token_id.has_value(), "dataset_config.pad_token_id");
}

struct Schedule {
  double decay = 0;  // all in steps, or all in sequences
  double warmup = 0;
  std::optional<int64_t> wsd;
  const char* warmup_key = "optimizer_config.lr_warmup_iters";
  const char* wsd_key = "optimizer_config.lr_wsd_decay_iters";
};

Schedule schedule_of(const AllConfig& config) {
  const auto& optimizer = config.optimizer_config;
  Schedule s;
  if (config.dataset_config.train_samples > 0) {
    s.decay = static_cast<double>(
        optimizer.lr_decay_samples.value_or(config.dataset_config.train_samples));
    s.warmup = static_cast<double>(optimizer.lr_warmup_samples);
    s.wsd = optimizer.lr_wsd_decay_samples;
    s.warmup_key = "optimizer_config.lr_warmup_samples";
    s.wsd_key = "optimizer_config.lr_wsd_decay_samples";
  } else {
    s.decay = static_cast<double>(
        optimizer.lr_decay_iters.value_or(config.training_config.training_iters));
    s.warmup = static_cast<double>(optimizer.lr_warmup_iters);
    s.wsd = optimizer.lr_wsd_decay_iters;
  }
  if (optimizer.lr_warmup_fraction) {
    s.warmup = *optimizer.lr_warmup_fraction * s.decay;
    s.warmup_key = "optimizer_config.lr_warmup_fraction";
  }
  return s;
}

// Keys that count the other unit would have no effect.
void check_units(Resolution& r) {
  const bool samples = r.config().dataset_config.train_samples > 0;
  constexpr std::array<std::array<const char*, 2>, 3> kPairs = {{
      {"lr_decay_iters", "lr_decay_samples"},
      {"lr_wsd_decay_iters", "lr_wsd_decay_samples"},
      {"lr_warmup_iters", "lr_warmup_samples"},
  }};
  for (const auto& pair : kPairs) {
    const char* wrong = pair[samples ? 0 : 1];
    if (differs_from_default(r.config(), "optimizer_config", wrong)) {
      r.error(concat("optimizer_config.", wrong),
              concat("has no effect: the run is counted in ", samples ? "sequences" : "steps",
                     "; use ", pair[samples ? 1 : 0]));
    }
  }
}

void check_decay(Resolution& r) {
  const auto& optimizer = r.config().optimizer_config;
  const std::string style = optimizer.lr_decay_style.value_or("constant");
  if (optimizer.min_lr > optimizer.learning_rate) {
    r.error("optimizer_config.min_lr",
            concat("is ", number_text(optimizer.min_lr), ", more than learning_rate ",
                   number_text(optimizer.learning_rate)));
  }
  if (optimizer.lr_warmup_init > optimizer.learning_rate) {
    r.error("optimizer_config.lr_warmup_init",
            concat("is ", number_text(optimizer.lr_warmup_init), ", more than learning_rate ",
                   number_text(optimizer.learning_rate)));
  }
  check_units(r);
  const Schedule s = schedule_of(r.config());
  if (s.decay <= 0) {
    if (r.config().training_config.epochs && style != "constant") {
      r.error("optimizer_config.lr_decay_iters",
              concat("is needed for lr_decay_style ", style,
                     ": with epochs alone the number of steps is not known here"));
    }
    return;  // otherwise training_iters has been reported
  }
  if (s.warmup >= s.decay) {
    r.error(s.warmup_key, concat("the warm-up of ", s.warmup, " must be shorter than the decay of ",
                                 s.decay, " (lr_decay_iters or the length of the run)"));
  }
  if (style == "WSD" && !s.wsd) {
    r.error(s.wsd_key, "is required by lr_decay_style WSD");
  } else if (style == "WSD" && static_cast<double>(*s.wsd) > s.decay) {
    r.error(s.wsd_key, concat("is ", *s.wsd, ", longer than the decay of ", s.decay));
  }
}

// With learning_rate_scheduler_kwargs none of the other family's keys has an effect.
void check_single_family(Resolution& r) {
  constexpr const char* kOthers[] = {
      "lr_decay_style",       "lr_decay_iters",  "lr_decay_samples",  "lr_wsd_decay_iters",
      "lr_wsd_decay_samples", "lr_warmup_iters", "lr_warmup_samples", "lr_warmup_fraction",
      "lr_warmup_init",       "min_lr"};
  for (const char* name : kOthers) {
    if (differs_from_default(r.config(), "optimizer_config", name)) {
      r.error(concat("optimizer_config.", name),
              "belongs to another schedule than learning_rate_scheduler_kwargs; keep one of them");
    }
  }
}

void resolve_weight_decay(Resolution& r) {
  auto& optimizer = r.config().optimizer_config;
  constexpr const char* kStart = "optimizer_config.start_weight_decay";
  constexpr const char* kEnd = "optimizer_config.end_weight_decay";
  constexpr const char* kStyle = "optimizer_config.weight_decay_incr_style";
  if (!r.sound({"optimizer_config.weight_decay", kStart, kEnd, kStyle})) {
    return;
  }
  if (!optimizer.start_weight_decay) {
    optimizer.start_weight_decay = optimizer.weight_decay;
    r.derived(kStart, "optimizer_config.weight_decay");
  }
  if (!optimizer.end_weight_decay) {
    optimizer.end_weight_decay = optimizer.weight_decay;
    r.derived(kEnd, "optimizer_config.weight_decay");
  }
  const double start = *optimizer.start_weight_decay;
  const double end = *optimizer.end_weight_decay;
  if (optimizer.learning_rate_scheduler_kwargs) {
    for (const auto& [key, value] : {std::pair{kStart, start}, std::pair{kEnd, end}}) {
      if (value != optimizer.weight_decay) {
        r.error(key, concat("is ", number_text(value), ", but weight decay is constant (",
                            number_text(optimizer.weight_decay),
                            ") with learning_rate_scheduler_kwargs"));
      }
    }
  } else if (end < start) {
    r.error(kEnd, concat("end_weight_decay is ", number_text(end),
                         ", less than start_weight_decay ", number_text(start)));
  } else if (optimizer.weight_decay_incr_style == "constant" && start != end) {
    r.error(kStyle, concat("is constant, but weight decay goes from ", number_text(start), " to ",
                           number_text(end), "; choose linear or cosine"));
  }
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

}  // namespace

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
  if (t.keep_checkpoint_per_n_minutes > 0 && r.given("training_config.keep_checkpoint_max")) {
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
  if (training.grad_clip_kwargs && clip > 0) {
    r.error(kClip, "given beside training_config.grad_clip_kwargs; keep one of them");
  }
  if (!training.use_clip_grad.value_or(false)) {
    if (training.max_grad_norm) {
      r.note(kNorm, "has no effect without use_clip_grad: True");
    }
    if (training.use_clip_grad && (clip > 0 || training.grad_clip_kwargs)) {
      r.error(kUse,
              concat("is False beside ", clip > 0 ? kClip : "training_config.grad_clip_kwargs",
                     ", which clips; keep the one that is meant"));
    }
  } else {
    const double norm = training.max_grad_norm.value_or(1.0);
    if (training.grad_clip_kwargs || (clip > 0 && clip != norm)) {
      r.error(kUse, concat("clips to a norm of ", norm, " beside ",
                           clip > 0 ? kClip : "training_config.grad_clip_kwargs",
                           ", which says otherwise; keep one of them"));
    } else {
      clip = norm;
      r.derived(kClip, kUse);
    }
  }
  training.use_clip_grad.reset();
  training.max_grad_norm.reset();
}

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
  if (training.new_dataset &&
      !differs_from_default(r.config(), "training_config", "resume_training")) {
    r.note("training_config.new_dataset",
           "has no effect without resume_training: a run that starts anew begins its data anew");
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

namespace {

// What an update in the middle of the backward pass cannot have seen yet.
void check_optimizer_in_backward(Resolution& r) {
  constexpr const char* kKey = "optimizer_config.optimizer_in_backward";
  const auto& config = r.config();
  if (!config.optimizer_config.optimizer_in_backward) {
    return;
  }
  if (config.dataset_config.micro_batch_num != 1 && r.sound({"dataset_config.micro_batch_num"})) {
    r.error(kKey, concat("needs micro_batch_num: 1, it is ", config.dataset_config.micro_batch_num,
                         ": gradients of several micro-batches must be added up before the "
                         "update"));
  }
  const std::optional<GradClipConfig> clip = gradient_clipping(config);
  if (clip && clip->grad_clip_type == "ClipGlobalNorm") {
    r.error(kKey,
            "cannot stand beside clipping by norm, which needs all gradients before the first "
            "update; use GradClipByValue or none");
  }
  if (config.model_config.compute_dtype == kFloat16) {
    r.error(kKey,
            "cannot stand beside float16: a step that overflows could not be skipped any more");
  }
  if (!config.training_config.dump_grad_steps.empty()) {
    r.error(kKey,
            "cannot stand beside training_config.dump_grad_steps: the gradients never exist "
            "together");
  }
  if (config.optimizer_config.main_grads_dtype != kFloat32) {
    r.error("optimizer_config.main_grads_dtype",
            "has no effect with optimizer_in_backward: gradients are not accumulated");
  }
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

void check_param_remainders(Resolution& r) {
  if (r.config().optimizer_config.store_param_remainders &&
      r.config().model_config.compute_dtype != kBFloat16) {
    r.error("optimizer_config.store_param_remainders",
            concat("needs compute_dtype bfloat16 (training_config.bf16: True), it is ",
                   name_of(r.config().model_config.compute_dtype)));
  }
}

// Which optimizers read a key.
struct Effect {
  const char* key;
  std::vector<std::string_view> types;
};
const std::vector<Effect>& effects() {
  static const std::vector<Effect> all = {
      {"betas", {"AdamW", "Adam", "Lion", "Came", "Muon"}},
      {"eps", {"AdamW", "Adam", "Muon"}},
      {"exp_avg_dtype", {"AdamW", "Adam", "Lion", "Muon"}},
      {"exp_avg_sq_dtype", {"AdamW", "Adam", "Muon"}},
      {"store_param_remainders", {"AdamW", "Adam"}},
      {"momentum", {"SGD", "Adafactor", "Muon"}},
      {"dampening", {"SGD"}},
      {"nesterov", {"SGD", "Muon"}},
      {"beta3", {"Came"}},
      {"decay_rate", {"Came", "Adafactor"}},
      {"clip_threshold", {"Came", "Adafactor"}},
      {"scale_parameter", {"Came", "Adafactor"}},
      {"eps1", {"Came", "Adafactor"}},
      {"eps2", {"Came", "Adafactor"}},
      {"eps3", {"Came"}},
      {"ns_steps", {"Muon"}},
      {"ns_dtype", {"Muon"}},
      {"adjust_lr", {"Muon"}},
      {"matched_adamw_rms", {"Muon"}},
      {"adamw_learning_rate", {"Muon"}},
  };
  return all;
}

void check_effects(Resolution& r) {
  const std::string& type = r.config().optimizer_config.optimizer_type;
  for (const Effect& effect : effects()) {
    const std::string key = concat("optimizer_config.", effect.key);
    if (std::count(effect.types.begin(), effect.types.end(), type) > 0 ||
        !differs_from_default(r.config(), "optimizer_config", effect.key)) {
      continue;
    }
    const std::string message = concat("has no effect with optimizer_type ", type);
    // A file of AdamW is often tried with another optimizer.
    const std::string_view name = effect.key;
    if (name == "betas" || name == "eps") {
      r.note(key, message);
    } else {
      r.error(key, concat(message, "; leave it out"));
    }
  }
}

// Defaults that are not those of the table.
void set_defaults_of_type(Resolution& r) {
  if (!r.sound({"optimizer_config.optimizer_type"})) {
    return;
  }
  OptimizerConfig& optimizer = r.config().optimizer_config;
  const std::string type = concat("optimizer_type ", optimizer.optimizer_type);
  const auto set = [&](const char* key, auto& member, const auto& value) {
    const std::string path = concat("optimizer_config.", key);
    if (!r.given(path)) {
      member = value;
      r.derived(path, type);
    }
  };
  if (optimizer.optimizer_type == "Lion") {
    set("betas", optimizer.betas, std::vector{0.9, 0.99});
  } else if (optimizer.optimizer_type == "Muon") {
    set("betas", optimizer.betas, std::vector{0.95, 0.95});
    set("momentum", optimizer.momentum, 0.95);
    set("nesterov", optimizer.nesterov, true);
  }
}

}  // namespace

void resolve_optimizer(Resolution& r) {
  auto& optimizer = r.config().optimizer_config;
  constexpr const char* kBetas = "optimizer_config.betas";
  set_defaults_of_type(r);
  const auto beta = [&](const char* key, const std::optional<double>& value, size_t index) {
    if (!value || !r.sound({key, kBetas}) || optimizer.betas[index] == *value) {
      return;
    }
    if (r.given(kBetas)) {
      r.error(key, concat("is ", number_text(*value), ", but betas has ",
                          number_text(optimizer.betas[index])));
      return;
    }
    optimizer.betas[index] = *value;
  };
  beta("optimizer_config.beta1", optimizer.beta1, 0);
  beta("optimizer_config.beta2", optimizer.beta2, 1);
  if (!r.given(kBetas) && (optimizer.beta1 || optimizer.beta2)) {
    r.derived(kBetas, "beta1 and beta2");
  }
  check_optimizer_in_backward(r);
  check_autopsy(r);
  check_param_remainders(r);
  if (!r.sound({"optimizer_config.optimizer_type"})) {
    return;
  }
  check_effects(r);
  const bool sgd = optimizer.optimizer_type == "SGD";
  if (sgd && optimizer.nesterov && (optimizer.momentum == 0 || optimizer.dampening != 0)) {
    r.error("optimizer_config.nesterov", "needs momentum > 0 and dampening 0");
  }
  if (optimizer.optimizer_type == "Adafactor" && !optimizer.decay_rate) {
    r.error("optimizer_config.decay_rate", "is needed with optimizer_type Adafactor");
  }
  if (optimizer.optimizer_type == "Came" && r.sound({kBetas}) && optimizer.betas[0] == 0) {
    r.error(kBetas,
            "the first must be above 0 with optimizer_type Came: it divides by how far an "
            "update is from the average");
  }
  if (optimizer.use_checkpoint_opt_param_scheduler && optimizer.override_opt_param_scheduler) {
    r.error("optimizer_config.override_opt_param_scheduler",
            "and use_checkpoint_opt_param_scheduler cannot both be True; the latter is so by "
            "default");
  }
}

void resolve_schedule(Resolution& r) {
  auto& optimizer = r.config().optimizer_config;
  resolve_weight_decay(r);
  if (!r.sound({"optimizer_config.learning_rate_scheduler_kwargs"})) {
    return;
  }
  if (optimizer.learning_rate_scheduler_kwargs) {
    check_single_family(r);
    return;
  }
  if (!r.sound({"optimizer_config.lr_decay_style", "optimizer_config.learning_rate",
                "optimizer_config.min_lr", "optimizer_config.lr_warmup_init",
                "optimizer_config.lr_warmup_iters", "optimizer_config.lr_warmup_samples",
                "optimizer_config.lr_warmup_fraction", "optimizer_config.lr_decay_iters",
                "optimizer_config.lr_decay_samples", "optimizer_config.lr_wsd_decay_iters",
                "optimizer_config.lr_wsd_decay_samples", kIters, kSamples})) {
    return;
  }
  check_decay(r);
  if (!optimizer.lr_decay_style) {
    optimizer.lr_decay_style = "constant";
    r.derived("optimizer_config.lr_decay_style", "absent learning_rate_scheduler_kwargs");
  }
}

}  // namespace tapestry::config
