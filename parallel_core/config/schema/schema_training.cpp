// Rows of `training_config`.
#include <algorithm>
#include <array>
#include <string>

#include "parallel_core/config/schema/schema.h"

namespace tapestry::config {
namespace training_section {
namespace {

using T = TrainingConfig;
template <auto... Path>
constexpr Field f = field_of<&AllConfig::training_config, Path...>();

// The beginning of a file's name, by which weights and states can be told apart.
std::string plain_prefix(const Value& value) {
  const auto& prefix = value.as<std::string>();
  const auto is_wrong = [](char c) {
    return c == '/' || static_cast<unsigned char>(c) < ' ' || c == '\x7f';
  };
  constexpr size_t kMost = 100;
  const bool good = !prefix.empty() && prefix.size() <= kMost && prefix.front() != '.' &&
                    std::none_of(prefix.begin(), prefix.end(), is_wrong) &&
                    !prefix.ends_with("-training_state");
  return good ? std::string() : "it is no beginning of a file's name: " + to_yaml(value);
}

std::string positive_steps(const Value& value) {
  for (const Value& step : value.as<Value::List>()) {
    if (step.as<int64_t>() < 1) {
      return "steps count from 1, got " + to_yaml(step);
    }
  }
  return {};
}

// [start, increment, samples]; what depends on the number of ranks is checked when that is known.
std::string check_rampup_list(const Value& value) {
  const auto& list = value.as<Value::List>();
  constexpr size_t kNumbers = 3;
  if (list.size() != kNumbers) {
    return "expected [start, increment, samples], got " + to_yaml(value);
  }
  for (size_t i = 0; i < 2; ++i) {
    if (list[i].as<int64_t>() < 1) {
      return std::string(i == 0 ? "the batch of the first steps" : "the increment") +
             " must be above 0, got " + to_yaml(value);
    }
  }
  return list[2].as<int64_t>() < 0 ? "the samples must not be negative, got " + to_yaml(value)
                                   : std::string();
}

constexpr Key kKeys[] = {
    {.name = "seed",
     .field = f<&T::seed>,
     .check = at_least(0),
     .null = Null::kDefault,
     .doc = "Seed of initial weights, dropout and the order of the data."},
    {.name = "output_dir",
     .field = f<&T::output_dir>,
     .check = satisfies(
         [](const Value& v) {
           return std::string(v.as<std::string>().empty() ? "must not be empty" : "");
         },
         "not empty"),
     .path = true,
     .doc = "Folder of logs, metrics.jsonl, config.yaml and checkpoints."},
    {.name = "training_iters",
     .field = f<&T::training_iters>,
     .check = at_least(0),
     .doc = "Steps (updates) of the whole run. 0: the length comes from `epochs` or "
            "`dataset_config.train_samples`."},
    {.name = "epochs",
     .field = f<&T::epochs>,
     .check = above(0),
     .doc = "Passes over the training data. If `training_iters` is given too, the run ends at "
            "whichever comes first."},
    {.name = "log_interval",
     .field = f<&T::log_interval>,
     .check = above(0),
     .doc = "Steps between log lines; the last step is always logged. null: no lines. "
            "metrics.jsonl has every step."},
    {.name = "log_style",
     .field = f<&T::log_style>,
     .check = one_of("dynamic|static"),
     .doc = "Format of a step's log lines: dynamic is the one line of MindFormers' dynamic-graph "
            "package, static the two lines of its static configurations."},
    {.name = "log_format",
     .field = f<&T::log_format>,
     .check = one_of("text|json"),
     .doc = "Format of everything that the run says, on the terminal and in log/rank_N: text, or "
            "json with one JSON object a line; see `docs/monitoring.md`."},
    {.name = "eval_interval",
     .field = f<&T::eval_interval>,
     .check = above(0),
     .doc = "Steps between evaluations on the validation split; null: none."},
    {.name = "eval_iters",
     .field = f<&T::eval_iters>,
     .check = above(0),
     .doc = "Global batches of one evaluation."},
    {.name = "save_interval",
     .field = f<&T::save_interval>,
     .check = above(0),
     .doc =
         "Steps between saved checkpoints. null: none before the end of the run, see `save_last`."},
    {.name = "save_interval_seconds",
     .field = f<&T::save_interval_seconds>,
     .check = above(0),
     .aliases = "save_checkpoint_seconds",
     .doc = "Seconds between saved checkpoints, by rank 0's clock, in place of `save_interval`."},
    {.name = "save_interval_minutes",
     .field = f<&T::save_interval_minutes>,
     .check = above(0),
     .doc = "Minutes between saved checkpoints, by rank 0's clock, in place of `save_interval`."},
    {.name = "async_save",
     .field = f<&T::async_save>,
     .doc = "Copy the state to be saved, and write the copy while training goes on. This needs a "
            "second copy of weights and optimizer state in memory. Only one save runs at a time; a "
            "failed save is reported at a later step."},
    {.name = "remove_redundancy",
     .field = f<&T::remove_redundancy>,
     .doc = "Divide the writing of tensors that all data-parallel ranks hold among these ranks. "
            "False: the first of them writes all. Every tensor is saved once either way."},
    {.name = "max_shard_size",
     .field = f<&T::max_shard_size>,
     .check = above(0),
     .doc = "Largest file of a checkpoint in bytes; more tensors go into further files. With "
            "`ckpt_format: ckpt` there is one file, whose tensors are cut into parts of at most "
            "this many bytes, and at most 512 MiB."},
    {.name = "exit_duration_in_mins",
     .field = f<&T::exit_duration_in_mins>,
     .check = above(0),
     .aliases = "exit_duration",
     .doc = "Minutes after which the run saves and ends with exit code 0, as after a signal; null: "
            "no limit."},
    {.name = "save_last",
     .field = f<&T::save_last>,
     .doc = "Save a checkpoint at the end of the run. A run that a signal stops always saves one."},
    {.name = "max_nonfinite_steps",
     .field = f<&T::max_nonfinite_steps>,
     .check = above(0),
     .doc = "Number of consecutive steps with a loss or gradients that are not finite after which "
            "the run stops, with exit code 1 and without saving. null: the run goes on."},
    {.name = "best_metric_comparison",
     .field = f<&T::best_metric_comparison>,
     .check = one_of("less_equal|greater_equal|less|greater"),
     .doc = "After an evaluation, also save a checkpoint if its `eval_metric` compares in this way "
            "with the best one before, and keep that checkpoint; checkpoint/best.json names it. "
            "Needs `eval_interval`. null: no best checkpoint."},
    {.name = "eval_metric",
     .field = f<&T::eval_metric>,
     .check = satisfies(
         [](const Value& v) {
           return std::string(v.as<std::string>().empty() ? "must not be empty" : "");
         },
         "not empty"),
     .doc = "Metric of the evaluation that `best_metric_comparison` compares: loss, perplexity, or "
            "one that the program has (docs/own_data.md). null: loss."},
    {.name = "grad_clip_kwargs",
     .field = f<&T::grad_clip_kwargs>,
     .doc = "Clipping of the gradients; null: see `optimizer_config.clip_grad`. Not together with "
            "that key."},
    {.name = "grad_clip_kwargs.grad_clip_type",
     .field = f<&T::grad_clip_kwargs, &GradClipConfig::grad_clip_type>,
     .check = one_of("ClipGlobalNorm|GradClipByValue"),
     .registers = ModuleType::kGradProcessFunc,
     .required = true,
     .example = "ClipGlobalNorm",
     .doc = "Clip gradients by the norm over all parameters (ClipGlobalNorm), or element by "
            "element (GradClipByValue)."},
    {.name = "grad_clip_kwargs.clip_value",
     .field = f<&T::grad_clip_kwargs, &GradClipConfig::clip_value>,
     .check = above(0),
     .required = true,
     .example = "1.0",
     .doc = "Largest norm of all gradients; with `grad_clip_type: GradClipByValue` the largest "
            "magnitude of one element."},
    {.name = "use_clip_grad",
     .field = f<&T::use_clip_grad>,
     .until_resolved = true,
     .doc =
         "True: clip gradients at norm `max_grad_norm`, which sets `optimizer_config.clip_grad`. "
         "False or null: `clip_grad` and `grad_clip_kwargs` decide whether gradients are clipped."},
    {.name = "max_grad_norm",
     .field = f<&T::max_grad_norm>,
     .check = above(0),
     .until_resolved = true,
     .doc = "Largest norm over all gradients, with `use_clip_grad: True`; null: 1.0."},
    {.name = "loss_scale",
     .field = f<&T::loss_scale>,
     .check = above(0),
     .doc = "Static scale: the loss is multiplied by it, the gradients are divided by it."},
    {.name = "loss_scale_value",
     .field = f<&T::loss_scale_value>,
     .check = at_least(1),
     .doc = "First scale of dynamic loss scaling, which float16 compute uses if `loss_scale` is "
            "not set."},
    {.name = "loss_scale_factor",
     .field = f<&T::loss_scale_factor>,
     .check = above(1),
     .doc = "Factor by which the dynamic loss scale grows and shrinks; needs `loss_scale_value`."},
    {.name = "loss_scale_window",
     .field = f<&T::loss_scale_window>,
     .check = above(0),
     .doc = "Number of finite steps after which the dynamic loss scale grows; needs "
            "`loss_scale_factor`."},
    {.name = "loss_func_kwargs",
     .field = f<&T::loss_func_kwargs>,
     .doc = "Choice of the loss of a token."},
    {.name = "loss_func_kwargs.loss_func_type",
     .field = f<&T::loss_func_kwargs, &LossFuncConfig::loss_func_type>,
     .check = one_of("VocabParallelCrossEntropy|CrossEntropyLoss"),
     .registers = ModuleType::kLossFunc,
     .doc = "Kind of loss; both built-in names mean the cross entropy."},
    {.name = "loss_reduction",
     .field = f<&T::loss_reduction>,
     .check = one_of("mean|sum"),
     .doc = "Mean or sum over the micro-batches of a step."},
    {.name = "calculate_per_token_loss",
     .field = f<&T::calculate_per_token_loss>,
     .doc = "True: the loss of a step is one mean over all tokens of the global batch. False: it "
            "is the mean of the micro-batches' means."},
    {.name = "exact",
     .field = f<&T::exact>,
     .doc =
         "True: losses, gradients, weights and checkpoints have the same bits for every number of "
         "threads, every layout of ranks and every split into micro-batches; each step's line in "
         "`metrics.jsonl` has a hash of them. See exact.md."},
    {.name = "gradient_accumulation_steps",
     .field = f<&T::gradient_accumulation_steps>,
     .check = between(1, 2147483647),
     .until_resolved = true,
     .doc =
         "Factor of `dataset_config.micro_batch_num`, the number of micro-batches whose gradients "
         "a step accumulates. It applies in every layout, also with a pipeline. null: 1."},
    {.name = "rampup_batch_size",
     .field = f<&T::rampup_batch_size>,
     .check = satisfies(check_rampup_list, "three integers"),
     .doc =
         "Ramp-up of the global batch, [start, increment, samples]: the first steps have `start` "
         "sequences, and the number grows by `increment` until it is the global batch, after "
         "`samples` sequences. All levels are multiples of `batch_size` times the data-parallel "
         "ranks. null: every step has the global batch."},
    {.name = "wrap_with_ddp",
     .field = f<&T::wrap_with_ddp>,
     .doc =
         "Reduce gradients over the data-parallel ranks in buckets. Gradients are reduced in any "
         "case; `overlap_grad_reduce`, `delay_grad_reduce` and `bucket_size` need this key."},
    {.name = "accumulate_allreduce_grads_in_fp32",
     .field = f<&T::accumulate_allreduce_grads_in_fp32>,
     .doc = "Accumulate and reduce gradients in float32. This is always done unless "
            "`optimizer_config.main_grads_dtype` is bfloat16."},
    {.name = "overlap_grad_reduce",
     .field = f<&T::overlap_grad_reduce>,
     .doc = "Reduce gradients during the backward pass; needs `wrap_with_ddp`. Results do not "
            "change."},
    {.name = "delay_grad_reduce",
     .field = f<&T::delay_grad_reduce>,
     .doc = "Reduce gradients after the backward pass on all pipeline stages but the first; needs "
            "`overlap_grad_reduce`."},
    {.name = "use_distributed_optimizer",
     .field = f<&T::use_distributed_optimizer>,
     .doc = "Shard optimizer state and update over the data-parallel ranks (ZeRO-1); implies "
            "`wrap_with_ddp`. Results do not change."},
    {.name = "bucket_size",
     .field = f<&T::bucket_size>,
     .check = above(0),
     .doc = "Elements of one gradient bucket; needs `wrap_with_ddp`. null: 40 million, or one "
            "million for each data-parallel rank if that is more. If nothing is overlapped or "
            "sharded beyond z1, null means one bucket for everything."},
    {.name = "check_for_nan_in_grad",
     .field = f<&T::check_for_nan_in_grad>,
     .doc = "End the run at a loss or gradients that are not finite, instead of skipping the step, "
            "and log the rank and the parameter where they arose."},
    {.name = "autopsy",
     .field = f<&T::autopsy>,
     .doc = "If the loss or gradients of a step are not finite (and no dynamic loss scale handles "
            "it) or are a spike, run the step again before it changes anything. The log names the "
            "op, module, rank, parameter and token that caused it; capsule/step_N in the output "
            "folder holds the step. See docs/autopsy.md. Good steps cost nothing."},
    {.name = "on_anomaly",
     .field = f<&T::on_anomaly>,
     .check = one_of("stop|skip|continue"),
     .doc = "With `autopsy`: what happens to a step whose loss or gradients are not finite or are "
            "a spike. stop: the run ends with exit code 1. skip: the step's update is left out. "
            "continue: as without `autopsy`: a step that is not finite updates nothing, "
            "`max_nonfinite_steps` in a row end the run, monitor_config decides about spikes; a "
            "step that is finite when it is run again is updated with that result. "
            "`check_for_nan_in_grad` means stop for values that are not finite."},
    {.name = "loss_spike_threshold",
     .field = f<&T::loss_spike_threshold>,
     .check = above(1),
     .doc = "A loss of at least this many times the median of the last `loss_spike_window` losses "
            "that were no spikes is a spike. null: no loss is a spike. Needs `autopsy`."},
    {.name = "loss_spike_window",
     .field = f<&T::loss_spike_window>,
     .check = between(1, 1000),
     .doc = "Number of losses whose median `loss_spike_threshold` multiplies. Until there are that "
            "many losses, none is a spike."},
    {.name = "max_capsules",
     .field = f<&T::max_capsules>,
     .check = at_least(0),
     .doc = "With `autopsy`: largest number of bad steps that an output folder keeps as "
            "capsule/step_N, with weights and data. Later bad steps appear only in the log. From "
            "the fourth consecutive bad step on they are not run again."},
    {.name = "schedule_counts_overflows",
     .field = f<&T::schedule_counts_overflows>,
     .doc = "Whether the schedules of learning rate and weight decay advance at a step that "
            "updates nothing because a gradient is not finite. True: they advance, as in "
            "MindFormers. False: they wait, as in Megatron."},
    {.name = "fp16",
     .field = f<&T::fp16>,
     .doc = "Compute in float16: sets `model_config.compute_dtype`."},
    {.name = "bf16",
     .field = f<&T::bf16>,
     .doc = "Compute in bfloat16: sets `model_config.compute_dtype`."},
    {.name = "resume_training",
     .field = f<&T::resume_training>,
     .doc = "True: resume from the latest checkpoint of `load_checkpoint`, or of `output_dir` if "
            "that is not set; a run without a checkpoint there starts from its beginning. A name "
            "such as step_00000100: resume from that checkpoint."},
    {.name = "crc_check",
     .field = f<&T::crc_check>,
     .doc = "Before resuming from a checkpoint, or starting from its weights, read its files "
            "completely and compare their checksums. Sizes are always compared."},
    {.name = "load_checkpoint",
     .field = f<&T::load_checkpoint>,
     .null = Null::kDefault,
     .path = true,
     .doc = "Weights to start from: a safetensors file or a checkpoint folder. Empty: initial "
            "weights."},
    {.name = "ckpt_format",
     .field = f<&T::ckpt_format>,
     .check = one_of("ckpt|safetensors"),
     .doc = "Format of a checkpoint's tensor files. safetensors: model.safetensors with Hugging "
            "Face's names, and training_state.safetensors. ckpt: MindSpore's format, `prefix`.ckpt "
            "with the names of MindFormers' parallel_core, and `prefix`-training_state.ckpt. Runs "
            "can read both formats whatever this key is."},
    {.name = "prefix",
     .field = f<&T::prefix>,
     .check = satisfies(plain_prefix, "the beginning of a file's name"),
     .doc = "Beginning of the file names with `ckpt_format: ckpt`. With safetensors the names are "
            "Hugging Face's, and another prefix is an error."},
    {.name = "keep_checkpoint_max",
     .field = f<&T::keep_checkpoint_max>,
     .check = above(0),
     .doc = "Number of checkpoints that are kept; the oldest is deleted after the newest is "
            "complete."},
    {.name = "keep_checkpoint_per_n_minutes",
     .field = f<&T::keep_checkpoint_per_n_minutes>,
     .check = at_least(0),
     .null = Null::kDefault,
     .doc = "Keep the newest checkpoint and one for every interval of this many minutes of the "
            "run, in place of `keep_checkpoint_max`. 0: off."},
    {.name = "no_load_optim",
     .field = f<&T::no_load_optim>,
     .null = Null::kDefault,
     .doc = "With `resume_training`: start with a new optimizer state."},
    {.name = "no_load_rng",
     .field = f<&T::no_load_rng>,
     .null = Null::kDefault,
     .doc = "With `resume_training`: do not restore the rank's default generator. Dropout and the "
            "order of the data do not use it."},
    {.name = "new_dataset",
     .field = f<&T::new_dataset>,
     .doc =
         "With `resume_training`: begin the data at their first sample, whatever data the run had "
         "before. Steps and schedules continue. Use it only for the start that changes the data."},
    {.name = "num_threads",
     .field = f<&T::num_threads>,
     .check = between(1, 4096),
     .doc = "Threads of one process; null: OMP_NUM_THREADS, or the number of cores."},
    {.name = "log_param_grad_norms",
     .field = f<&T::log_param_grad_norms>,
     .doc = "Write the norm of each parameter's gradient to metrics.jsonl."},
    {.name = "dump_activation_steps",
     .field = f<&T::dump_activation_steps>,
     .check = satisfies(positive_steps, "steps from 1"),
     .null = Null::kDefault,
     .doc = "Steps whose intermediate values (first row of the first micro-batch) are written as "
            "safetensors."},
    {.name = "dump_grad_steps",
     .field = f<&T::dump_grad_steps>,
     .check = satisfies(positive_steps, "steps from 1"),
     .null = Null::kDefault,
     .doc = "Steps whose accumulated gradients (before clipping) are written as safetensors."},
    {.name = "dump_weight_steps",
     .field = f<&T::dump_weight_steps>,
     .check = satisfies(positive_steps, "steps from 1"),
     .null = Null::kDefault,
     .doc = "Steps after whose update the weights are written as safetensors."},
    {.name = "profile",
     .field = f<&T::profile>,
     .doc = "Record a profile of some steps: a trace of phases, modules and communication, and "
            "tables. See docs/profile.md."},
    {.name = "profile_save_path",
     .field = f<&T::profile_save_path>,
     .path = true,
     .default_text = "`output_dir`/profile",
     .doc = "Folder of the profile; rank K writes to its sub-folder rank_K."},
    {.name = "profile_step_start",
     .field = f<&T::profile_step_start>,
     .check = above(0),
     .doc = "First profiled step."},
    {.name = "profile_step_end",
     .field = f<&T::profile_step_end>,
     .check = above(0),
     .doc = "Last profiled step; not before `profile_step_start`."},
    {.name = "profile_level",
     .field = f<&T::profile_level>,
     .check = one_of("level0|level1|level2"),
     .doc = "Detail of the trace: level1 adds every op, level2 also the memory in use at every "
            "allocation."},
    {.name = "profile_framework",
     .field = f<&T::profile_framework>,
     .check = one_of("all|time|None"),
     .doc = "Details of the trace besides phases: `time` shows the calls of modules, `all` also "
            "the memory in use at their ends."},
    {.name = "profile_with_stack",
     .field = f<&T::profile_with_stack>,
     .doc = "Record with every slice the place of its call (phase, module, op, source line), and "
            "write stacks.txt for flame graphs."},
    {.name = "profile_memory",
     .field = f<&T::profile_memory>,
     .doc = "Write memory.csv: who held what at the peak, by module, op and kind. Memory blocks "
            "are tracked from the start of the run, so that the error for a request that cannot be "
            "served names all holders."},
    {.name = "profile_communication",
     .field = f<&T::profile_communication>,
     .doc = "Write communication.csv: calls, bytes, time and waiting by group and collective."},
    {.name = "profile_parallel_strategy",
     .field = f<&T::profile_parallel_strategy>,
     .doc = "Write parallel_strategy.json: each rank's place on the parallel axes, its groups and "
            "layers."},
    {.name = "profile_data_process",
     .field = f<&T::profile_data_process>,
     .doc = "Show how long reading each micro-batch takes, and write data.csv."},
    {.name = "profile_data_simplification",
     .field = f<&T::profile_data_simplification>,
     .doc = "Delete the folders rank_K once they have been combined."},
    {.name = "profile_offline_analyse",
     .field = f<&T::profile_offline_analyse>,
     .doc = "Write only the folders rank_K; the option --analyse_profile combines them later."},
    {.name = "profile_op_time",
     .field = f<&T::profile_op_time>,
     .doc = "Time every op and write ops.csv and modules.csv. False: the trace has no ops either, "
            "at any level."},
    {.name = "profile_dynamic_profiler_config_path",
     .field = f<&T::profile_dynamic_profiler_config_path>,
     .null = Null::kDefault,
     .path = true,
     .doc = "A JSON file, or a folder with profiler_config.json, that selects the profiled steps "
            "during the run, in place of `profile_step_start` and `profile_step_end`."},
};

}  // namespace
}  // namespace training_section

std::span<const Key> training_keys() { return training_section::kKeys; }

}  // namespace tapestry::config
