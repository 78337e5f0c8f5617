#include "diagnosis/accuracy/effect_of_keys.h"

#include <algorithm>
#include <array>

#include "autograd/tensor/error.h"

namespace tapestry::accuracy {

namespace {

// Sections and keys that only say how the work is divided, what is watched and what is kept: none
// of them changes a bit in exact mode. What is not here is taken to change some.
constexpr std::array<std::string_view, 3> kSectionsOfLayout = {"parallel_config",
                                                               "recompute_config", "tensorboard"};
constexpr std::array<std::string_view, 56> kKeysOfLayout = {
    "training_config.output_dir",
    "training_config.log_interval",
    "training_config.log_style",
    "training_config.eval_interval",
    "training_config.eval_iters",
    "training_config.save_interval",
    "training_config.save_interval_seconds",
    "training_config.save_interval_minutes",
    "training_config.save_last",
    "training_config.async_save",
    "training_config.remove_redundancy",
    "training_config.max_shard_size",
    "training_config.exit_duration_in_mins",
    "training_config.best_metric_comparison",
    "training_config.eval_metric",
    "training_config.gradient_accumulation_steps",
    "training_config.wrap_with_ddp",
    "training_config.accumulate_allreduce_grads_in_fp32",
    "training_config.overlap_grad_reduce",
    "training_config.delay_grad_reduce",
    "training_config.use_distributed_optimizer",
    "training_config.bucket_size",
    "training_config.check_for_nan_in_grad",
    "training_config.autopsy",
    "training_config.max_capsules",
    "training_config.resume_training",
    "training_config.crc_check",
    "training_config.ckpt_format",
    "training_config.prefix",
    "training_config.keep_checkpoint_max",
    "training_config.keep_checkpoint_per_n_minutes",
    "training_config.num_threads",
    "training_config.log_param_grad_norms",
    "training_config.dump_activation_steps",
    "training_config.dump_grad_steps",
    "training_config.dump_weight_steps",
    "training_config.profile",
    "training_config.profile_save_path",
    "training_config.profile_step_start",
    "training_config.profile_step_end",
    "training_config.profile_level",
    "training_config.profile_with_stack",
    "training_config.profile_memory",
    "training_config.profile_communication",
    "optimizer_config.overlap_param_gather",
    "optimizer_config.optimizer_in_backward",
    "dataset_config.batch_size",
    "dataset_config.micro_batch_num",
    "dataset_config.data_layout",
    "monitor_config.monitor_on",
    "monitor_config.step_interval",
    "monitor_config.local_norm",
    "monitor_config.target",
    "monitor_config.max_logits_interval",
    "monitor_config.use_checkpoint_health_monitor",
    "monitor_config.health_ckpts_record_dir"};

}  // namespace

bool changes_bits(std::string_view section, std::string_view key) {
  const auto has = [](const auto& names, std::string_view name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  return !has(kSectionsOfLayout, section) && !has(kKeysOfLayout, concat(section, ".", key));
}

}  // namespace tapestry::accuracy
