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
  const std::string& prefix = value.as<std::string>();
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
     .doc = "Passes over the training data; with `training_iters` the run ends at whichever comes "
            "first."},
    {.name = "log_interval",
     .field = f<&T::log_interval>,
     .check = above(0),
     .doc =
         "Steps between log lines, and one at the end; null: none. metrics.jsonl has every step."},
    {.name = "log_style",
     .field = f<&T::log_style>,
     .check = one_of("dynamic|static"),
     .doc = "Lines of a step in the log: the one of MindFormers' dynamic-graph package, or the two "
            "of its static configurations."},
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
     .doc = "Steps between saved checkpoints; null: none before the end, see `save_last`."},
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
     .doc = "Copy what is to be saved and write it while training goes on: a second copy of "
            "weights and optimizer state in memory, one save at a time. A save that fails is told "
            "at a later step."},
    {.name = "remove_redundancy",
     .field = f<&T::remove_redundancy>,
     .doc = "Divide the writing of what all data-parallel ranks hold among them; False: the first "
            "of them writes it. Every tensor is saved once either way."},
    {.name = "max_shard_size",
     .field = f<&T::max_shard_size>,
     .check = above(0),
     .doc = "Bytes of a file beyond which a checkpoint's tensors are divided among several. With "
            "`ckpt_format: ckpt` there is one file, whose tensors are cut into parts of at most so "
            "many bytes, and of 512 MiB."},
    {.name = "exit_duration_in_mins",
     .field = f<&T::exit_duration_in_mins>,
     .check = above(0),
     .aliases = "exit_duration",
     .doc = "Minutes after which the run saves and ends with exit code 0, as if a signal had come; "
            "null: none."},
    {.name = "save_last",
     .field = f<&T::save_last>,
     .doc =
         "Save a checkpoint at the end of the run. One is always saved where a signal stops it."},
    {.name = "max_nonfinite_steps",
     .field = f<&T::max_nonfinite_steps>,
     .check = above(0),
     .doc = "Steps in a row whose loss or gradients are not finite after which the run stops, with "
            "exit code 1 and without saving; null: it goes on."},
    {.name = "best_metric_comparison",
     .field = f<&T::best_metric_comparison>,
     .check = one_of("less_equal|greater_equal|less|greater"),
     .doc = "Also save after an evaluation whose `eval_metric` compares so with the best one "
            "before, and keep that checkpoint: checkpoint/best.json names it. Needs "
            "`eval_interval`; null: none is kept."},
    {.name = "eval_metric",
     .field = f<&T::eval_metric>,
     .check = one_of("perplexity|loss"),
     .doc = "Metric of the evaluation that `best_metric_comparison` looks at; null: loss."},
    {.name = "grad_clip_kwargs",
     .field = f<&T::grad_clip_kwargs>,
     .doc = "Clipping of the gradients; null: see `optimizer_config.clip_grad`. Not together with "
            "that key."},
    {.name = "grad_clip_kwargs.grad_clip_type",
     .field = f<&T::grad_clip_kwargs, &GradClipConfig::grad_clip_type>,
     .check = one_of("ClipGlobalNorm|GradClipByValue"),
     .required = true,
     .example = "ClipGlobalNorm",
     .doc = "Clip gradients by the norm over all parameters (ClipGlobalNorm), or element by "
            "element (GradClipByValue)."},
    {.name = "grad_clip_kwargs.clip_value",
     .field = f<&T::grad_clip_kwargs, &GradClipConfig::clip_value>,
     .check = above(0),
     .required = true,
     .example = "1.0",
     .doc = "The largest norm of all gradients, or with `grad_clip_type: GradClipByValue` the "
            "largest magnitude of one."},
    {.name = "use_clip_grad",
     .field = f<&T::use_clip_grad>,
     .until_resolved = true,
     .doc = "True: `optimizer_config.clip_grad` is `max_grad_norm`. False or null: gradients are "
            "clipped where another key says so."},
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
     .doc = "First scale of dynamic loss scaling, which float16 compute uses where `loss_scale` is "
            "not "
            "set."},
    {.name = "loss_scale_factor",
     .field = f<&T::loss_scale_factor>,
     .check = above(1),
     .doc = "Factor of the dynamic loss scale; needs `loss_scale_value`."},
    {.name = "loss_scale_window",
     .field = f<&T::loss_scale_window>,
     .check = above(0),
     .doc = "Finite steps before the scale grows; needs `loss_scale_factor`."},
    {.name = "loss_reduction",
     .field = f<&T::loss_reduction>,
     .check = one_of("mean|sum"),
     .doc = "Mean or sum over the micro-batches of a step."},
    {.name = "calculate_per_token_loss",
     .field = f<&T::calculate_per_token_loss>,
     .doc = "One mean over all tokens of the global batch in place of the mean of the "
            "micro-batches' means."},
    {.name = "gradient_accumulation_steps",
     .field = f<&T::gradient_accumulation_steps>,
     .check = between(1, 2147483647),
     .until_resolved = true,
     .doc =
         "Multiplies `dataset_config.micro_batch_num`: both say how many micro-batches' gradients "
         "are accumulated in a step, in every layout, also with a pipeline; null: 1."},
    {.name = "wrap_with_ddp",
     .field = f<&T::wrap_with_ddp>,
     .doc = "Reduce gradients over the data-parallel ranks in buckets. They are always reduced; "
            "`overlap_grad_reduce`, `delay_grad_reduce` and `bucket_size` need this key."},
    {.name = "accumulate_allreduce_grads_in_fp32",
     .field = f<&T::accumulate_allreduce_grads_in_fp32>,
     .doc = "Accumulate and reduce gradients in float32. Always so unless "
            "`optimizer_config.main_grads_dtype` says otherwise."},
    {.name = "overlap_grad_reduce",
     .field = f<&T::overlap_grad_reduce>,
     .doc = "Reduce gradients during the backward pass; needs `wrap_with_ddp`. Results are the "
            "same."},
    {.name = "delay_grad_reduce",
     .field = f<&T::delay_grad_reduce>,
     .doc = "Reduce gradients after the backward pass on all pipeline stages but the first; needs "
            "`overlap_grad_reduce`."},
    {.name = "use_distributed_optimizer",
     .field = f<&T::use_distributed_optimizer>,
     .doc = "Spread optimizer state and update over the data-parallel ranks (ZeRO-1); implies "
            "`wrap_with_ddp`. Results are the same."},
    {.name = "bucket_size",
     .field = f<&T::bucket_size>,
     .check = above(0),
     .doc = "Elements of one gradient bucket; needs `wrap_with_ddp`. null: 40 million, or one "
            "million for each data-parallel rank if that is more, and one bucket for everything "
            "where nothing is overlapped or sharded beyond z1."},
    {.name = "check_for_nan_in_grad",
     .field = f<&T::check_for_nan_in_grad>,
     .doc =
         "End the run at a loss or gradients that are not finite, in place of skipping the step, "
         "and say which rank and parameter they came from."},
    {.name = "autopsy",
     .field = f<&T::autopsy>,
     .doc = "Run a step again, before it changes anything, whose loss or gradients are not finite "
            "(unless a dynamic loss scale answers that) or are a spike, and say which op, module, "
            "rank, parameter and token it came from: log, and capsule/step_N in the output "
            "folder; docs/autopsy.md tells more. Costs nothing as long as steps are "
            "good."},
    {.name = "on_anomaly",
     .field = f<&T::on_anomaly>,
     .check = one_of("stop|skip|continue"),
     .doc = "What becomes of a step whose loss or gradients are not finite or are a spike, with "
            "`autopsy`: stop ends the run with exit code 1, skip leaves its update out, continue "
            "goes on as without `autopsy`: a step that is not finite updates nothing, "
            "`max_nonfinite_steps` in a row end the run, spikes are a matter of monitor_config. A "
            "step that is finite when it is run again is then updated with that. "
            "`check_for_nan_in_grad` means stop for what is not finite."},
    {.name = "loss_spike_threshold",
     .field = f<&T::loss_spike_threshold>,
     .check = above(1),
     .doc = "A loss of at least so many times the median of the last `loss_spike_window` losses "
            "that were none is a spike; null: none is. Needs `autopsy`."},
    {.name = "loss_spike_window",
     .field = f<&T::loss_spike_window>,
     .check = between(1, 1000),
     .doc = "Losses whose median `loss_spike_threshold` multiplies; before there are so many, none "
            "is a spike."},
    {.name = "max_capsules",
     .field = f<&T::max_capsules>,
     .check = at_least(0),
     .doc = "Bad steps that an output folder keeps as capsule/step_N, with weights and data, with "
            "`autopsy`; of later ones only the log tells. From the fourth in a row on they are not "
            "run again."},
    {.name = "schedule_counts_overflows",
     .field = f<&T::schedule_counts_overflows>,
     .doc = "Whether a step with a gradient that is not finite, which updates nothing, moves the "
            "schedules of learning rate and weight decay, as in MindFormers. False: they wait, as "
            "in Megatron."},
    {.name = "fp16",
     .field = f<&T::fp16>,
     .doc = "Compute in float16: sets `model_config.compute_dtype`."},
    {.name = "bf16",
     .field = f<&T::bf16>,
     .doc = "Compute in bfloat16: sets `model_config.compute_dtype`."},
    {.name = "resume_training",
     .field = f<&T::resume_training>,
     .doc = "True: go on with the latest checkpoint of `load_checkpoint`, or of `output_dir` where "
            "that is not set; a run that has none there yet starts from its beginning. A name such "
            "as step_00000100: with that one."},
    {.name = "crc_check",
     .field = f<&T::crc_check>,
     .doc = "Read a checkpoint's files whole and compare their checksums before going on with it, "
            "or those of its weights before starting from them. Sizes are always compared."},
    {.name = "load_checkpoint",
     .field = f<&T::load_checkpoint>,
     .null = Null::kDefault,
     .path = true,
     .doc = "Weights to start from: a safetensors file or a checkpoint folder. Empty: initial "
            "weights."},
    {.name = "ckpt_format",
     .field = f<&T::ckpt_format>,
     .check = one_of("ckpt|safetensors"),
     .doc = "Files of the tensors in a checkpoint. safetensors: model.safetensors under Hugging "
            "Face's names, and training_state.safetensors. ckpt: MindSpore's, `prefix`.ckpt under "
            "the names of MindFormers' parallel_core, and `prefix`-training_state.ckpt. Each is "
            "read whatever this key says."},
    {.name = "prefix",
     .field = f<&T::prefix>,
     .check = satisfies(plain_prefix, "the beginning of a file's name"),
     .doc = "How file names begin with `ckpt_format: ckpt`; with safetensors they are Hugging "
            "Face's, and another prefix is an error."},
    {.name = "keep_checkpoint_max",
     .field = f<&T::keep_checkpoint_max>,
     .check = above(0),
     .doc = "Checkpoints that are kept; the oldest is deleted after the newest is complete."},
    {.name = "keep_checkpoint_per_n_minutes",
     .field = f<&T::keep_checkpoint_per_n_minutes>,
     .check = at_least(0),
     .null = Null::kDefault,
     .doc = "In place of `keep_checkpoint_max`: keep one checkpoint for every so many minutes of "
            "the run, and the newest. 0: not so."},
    {.name = "no_load_optim",
     .field = f<&T::no_load_optim>,
     .null = Null::kDefault,
     .doc = "With `resume_training`: start the optimizer anew."},
    {.name = "no_load_rng",
     .field = f<&T::no_load_rng>,
     .null = Null::kDefault,
     .doc = "With `resume_training`: leave the rank's default generator as it is. Dropout and the "
            "order of the data need no generator."},
    {.name = "new_dataset",
     .field = f<&T::new_dataset>,
     .doc =
         "With `resume_training`: begin the data at their first sample, whatever data the run had "
         "before. Steps and schedules go on. Only for the start that changes the data."},
    {.name = "num_threads",
     .field = f<&T::num_threads>,
     .check = between(1, 4096),
     .doc = "Threads of one process; null: OMP_NUM_THREADS, or as many as there are cores."},
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
            "tables. See profile.md."},
    {.name = "profile_save_path",
     .field = f<&T::profile_save_path>,
     .path = true,
     .default_text = "`output_dir`/profile",
     .doc = "Folder of the profile, with a folder rank_K for what each rank has written."},
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
     .doc = "What of the framework the trace shows besides phases: `time` the calls of modules, "
            "`all` also the memory in use at their ends."},
    {.name = "profile_with_stack",
     .field = f<&T::profile_with_stack>,
     .doc = "Note with every slice where it was called (phase, module, op, source line), and write "
            "stacks.txt for flame graphs."},
    {.name = "profile_memory",
     .field = f<&T::profile_memory>,
     .doc =
         "Write memory.csv: who held what at the peak, by module, op and kind. Blocks are watched "
         "from the start of the run, so that a request that cannot be served names all holders."},
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
     .doc = "Delete the folders rank_K when they have been put together."},
    {.name = "profile_offline_analyse",
     .field = f<&T::profile_offline_analyse>,
     .doc = "Write the folders rank_K alone; the option --analyse_profile puts them together "
            "later."},
    {.name = "profile_op_time",
     .field = f<&T::profile_op_time>,
     .doc = "Time every op and write ops.csv and modules.csv; False: no ops in the trace either, "
            "whatever the level."},
    {.name = "profile_dynamic_profiler_config_path",
     .field = f<&T::profile_dynamic_profiler_config_path>,
     .null = Null::kDefault,
     .path = true,
     .doc = "A JSON file, or a folder with profiler_config.json, that says while the run goes on "
            "which steps to profile, in place of `profile_step_start` and `profile_step_end`."},
};

}  // namespace
}  // namespace training_section

std::span<const Key> training_keys() { return training_section::kKeys; }

}  // namespace tapestry::config
