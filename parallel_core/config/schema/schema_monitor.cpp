// Rows of `monitor_config`.
#include <algorithm>
#include <array>

#include "parallel_core/config/schema/schema.h"

namespace tapestry::config {
namespace monitor_section {
namespace {

using M = MonitorConfig;
template <auto... Path>
constexpr Field f = field_of<&AllConfig::monitor_config, Path...>();

std::string check_formats(const Value& value) {
  std::string unexpected;
  for (const Value& item : value.as<Value::List>()) {
    const auto& text = item.as<std::string>();
    if (text != "log" && text != "tensorboard") {
      unexpected += (unexpected.empty() ? "'" : ", '") + text + "'";
    }
  }
  return unexpected.empty() ? std::string()
                            : "unexpected " + unexpected + "; expected log, tensorboard or both";
}

constexpr Check kFormats = satisfies(check_formats, "log, tensorboard or both");

constexpr Key kKeys[] = {
    {.name = "monitor_on",
     .field = f<&M::monitor_on>,
     .doc = "Switches on the measurements of monitor_config; see `docs/monitoring.md`. The checks "
            "for NaN and `local_norm` work without it."},
    {.name = "target",
     .field = f<&M::target>,
     .check = satisfies(check_patterns, "regular expressions"),
     .doc = "Regular expressions, found anywhere in a parameter's name, that choose the parameters "
            "of `local_norm_format` and `optimizer_state_format`."},
    {.name = "invert",
     .field = f<&M::invert>,
     .doc = "Choose the parameters that `target` does not match."},
    {.name = "step_interval",
     .field = f<&M::step_interval>,
     .check = above(0),
     .doc = "Steps between the measurements of monitor_config."},
    {.name = "local_loss_format",
     .field = f<&M::local_loss_format>,
     .check = kFormats,
     .doc = "Where the mean loss of each of this rank's micro-batches is shown: log, tensorboard; "
            "null: nowhere."},
    {.name = "device_local_loss_format",
     .field = f<&M::device_local_loss_format>,
     .check = kFormats,
     .doc = "Where the sum of a rank's micro-batch losses over a step is shown, on the last stage: "
            "log, tensorboard; null: nowhere."},
    {.name = "local_norm_format",
     .field = f<&M::local_norm_format>,
     .check = kFormats,
     .doc = "Where the norm of each parameter's gradient on this rank, before it is summed over "
            "the data-parallel ranks, is shown: log, tensorboard; null: nowhere."},
    {.name = "device_local_norm_format",
     .field = f<&M::device_local_norm_format>,
     .check = kFormats,
     .doc = "Where the norm of the gradients of all parameters of a rank, before they are summed "
            "over the data-parallel ranks, is shown: log, tensorboard; null: nowhere."},
    {.name = "optimizer_state_format",
     .field = f<&M::optimizer_state_format>,
     .check = kFormats,
     .doc = "Where the norms of the optimizer's states of each parameter are shown: log, "
            "tensorboard; null: nowhere."},
    {.name = "weight_state_format",
     .field = f<&M::weight_state_format>,
     .check = kFormats,
     .doc = "Where the norm of all weights is shown: log, tensorboard; null: nowhere."},
    {.name = "throughput_baseline",
     .field = f<&M::throughput_baseline>,
     .check = above(0),
     .doc = "Samples per second and rank that a run should reach. The measured number is divided "
            "by it."},
    {.name = "print_struct",
     .field = f<&M::print_struct>,
     .doc = "Log the names of all trainable parameters after the first step, and end the run."},
    {.name = "local_norm",
     .field = f<&M::local_norm>,
     .doc = "Log the sum of squares of each parameter's local gradient at every step, one line "
            "each, and write it to metrics.jsonl."},
    {.name = "value_format",
     .field = f<&M::value_format>,
     .check = one_of("fixed|scientific|general"),
     .doc = "How the log shows what monitor_config measures: `0.1235`, `1.234568e-01` or "
            "`0.123457`; metrics.jsonl has full numbers."},
    {.name = "slow_rank_factor",
     .field = f<&M::slow_rank_factor>,
     .check = above(1),
     .doc =
         "Warn of a rank whose forward and backward passes take this many times the median of all "
         "ranks, over `step_interval` steps; null: never. The times are in metrics.jsonl."},
    {.name = "max_logits_interval",
     .field = f<&M::max_logits_interval>,
     .check = above(0),
     .doc = "Steps between measurements of the largest attention score of each head, for the log, "
            "metrics.jsonl and TensorBoard; null: never. Works without `monitor_on`."},
    {.name = "save_tokens_per_expert_interval",
     .field = f<&M::save_tokens_per_expert_interval>,
     .check = above(0),
     .doc = "Write how many tokens went to each expert to tokens_per_expert.jsonl in the output "
            "folder, a line for each layer, after every so many micro-batches; null: never."},
    {.name = "tokens_per_expert_layers",
     .field = f<&M::tokens_per_expert_layers>,
     .check = at_least(0),
     .default_text = "null (all)",
     .doc =
         "Layers of which `save_tokens_per_expert_interval` writes lines: [N] are the first N of "
         "the model's own, several numbers are layers, from 0; those of `mtp_num_layers` follow "
         "the model's own."},
    {.name = "use_skip_data_by_global_norm",
     .field = f<&M::use_skip_data_by_global_norm>,
     .aliases = "/use_skip_data_by_global_norm",
     .doc = "Leave out the update of a step whose global norm is a spike. Needs `monitor_on`."},
    {.name = "check_for_global_norm",
     .field = f<&M::check_for_global_norm>,
     .doc = "End the run at the first spike of the global norm at a step, and record it in "
            "abnormal_global_norm.json in the output folder. When the run comes to this step "
            "again, a spike no longer ends it."},
    {.name = "global_norm_spike_threshold",
     .field = f<&M::global_norm_spike_threshold>,
     .check = above(0),
     .doc = "A global norm of at least this, or one that is not finite, is a spike."},
    {.name = "global_norm_spike_count_threshold",
     .field = f<&M::global_norm_spike_count_threshold>,
     .check = above(0),
     .doc = "Spikes of the global norm in a row that end the run."},
    {.name = "global_norm_spike_factor",
     .field = f<&M::global_norm_spike_factor>,
     .check = above(1),
     .doc = "Threshold of the global norm relative to the median of the last "
            "`global_norm_median_window` norms that were no spikes, in place of "
            "`global_norm_spike_threshold`. Until there are that many norms, only a given "
            "`global_norm_spike_threshold` applies."},
    {.name = "global_norm_median_window",
     .field = f<&M::global_norm_median_window>,
     .check = between(1, 1000),
     .doc = "Number of norms whose median `global_norm_spike_factor` multiplies."},
    {.name = "use_checkpoint_health_monitor",
     .field = f<&M::use_checkpoint_health_monitor>,
     .aliases = "/use_checkpoint_health_monitor",
     .doc = "Record in health_ckpts.json which checkpoints are healthy, and resume only from "
            "healthy ones. Needs `monitor_on`."},
    {.name = "embedding_local_norm_threshold",
     .field = f<&M::embedding_local_norm_threshold>,
     .check = above(0),
     .doc = "A checkpoint is unhealthy if, in the step before it, the sum of squares of the token "
            "table's local gradient on some rank reached this value or was not finite."},
    {.name = "health_ckpts_record_dir",
     .field = f<&M::health_ckpts_record_dir>,
     .path = true,
     .default_text = "null (output_dir)",
     .doc = "Folder of health_ckpts.json."},
    {.name = "check_for_nan_in_loss_and_grad",
     .field = f<&M::check_for_nan_in_loss_and_grad>,
     .aliases = "/check_for_nan_in_loss_and_grad",
     .doc = "End the run at a loss, local loss, local norm or global norm that is not finite, and "
            "log the rank and the parameter where it arose."},
};

}  // namespace
}  // namespace monitor_section

std::span<const Key> monitor_keys() { return monitor_section::kKeys; }

}  // namespace tapestry::config
