// Rows of `monitor`, `context`, `profiler`, `callbacks` and `lora_config`.
#include "parallel_core/config/mindformers2/keys.h"

namespace tapestry::config::mindformers2 {
namespace watch_table {
namespace {

constexpr std::string_view kHealth =
    "MindFormers 2.0 does not act on it; monitor_config under `tapestry` has checks of health that "
    "do, and with this number nothing is checked";
constexpr std::string_view kNorms =
    "monitor_config.monitor_on|monitor_config.local_norm_format|monitor_config.target";
constexpr std::string_view kSearched = "an expression found anywhere in a name";

constexpr Row kRows[] = {
    {"monitor", "health_checkpoint.embedding_local_norm_threshold", "float", "100.0",
     Fate::kNothing, "", kHealth},
    {"monitor", "health_checkpoint.global_norm_skip_threshold", "float", "100.0", Fate::kNothing,
     "", kHealth},
    {"monitor", "health_checkpoint.global_norm_skip_time", "int", "10", Fate::kNothing, "",
     kHealth},
    {"monitor", "train_state.local_norm", "bool|str|list?", "\"\"", Fate::kRule, kNorms,
     "True: of all parameters; texts: of those whose names contain one of them"},
    {"monitor", "train_state.local_loss", "bool", "False", Fate::kRule,
     "monitor_config.local_loss_format", "True: log"},
    {"monitor", "train_state.device_norm", "bool|str|list?", "False", Fate::kRule,
     "monitor_config.device_local_norm_format",
     "of all parameters of a rank together; single ones are those of local_norm"},
    {"monitor", "train_state.device_loss", "bool", "False", Fate::kRule,
     "monitor_config.device_local_loss_format", "True: log"},
    {"monitor", "tensorboard.tensorboard_dir", "str?", "\"\"", Fate::kRule,
     "tensorboard.tensorboard_dir", "empty: nothing is written"},
    {"monitor", "tensorboard.tensorboard_log_interval", "int", "1", Fate::kRule,
     "tensorboard.tensorboard_log_interval", "with a tensorboard_dir"},
    {"monitor", "tensorboard.tensorboard_queue_size", "int", "1000", Fate::kRule,
     "tensorboard.tensorboard_queue_size", "with a tensorboard_dir"},
    {"monitor", "tensorboard.output_dir", "str?", "\"\"", Fate::kRule,
     "tensorboard.tensorboard_dir", "the newer name of tensorboard_dir"},
    {"monitor", "tensorboard.log_interval", "int", "1", Fate::kRule,
     "tensorboard.tensorboard_log_interval", "the newer name of tensorboard_log_interval"},
    {"monitor", "tensorboard.queue_size", "int", "1000", Fate::kRule,
     "tensorboard.tensorboard_queue_size", "the newer name of tensorboard_queue_size"},
    {"monitor", "moe_monitor.save_tokens_per_expert_interval", "int?", "null", Fate::kSame,
     "monitor_config.save_tokens_per_expert_interval"},
    {"monitor", "moe_monitor.target_layers", "int|list?", "null", Fate::kRule,
     "monitor_config.tokens_per_expert_layers",
     "a number: the first layers; a list: their numbers"},

    {"context", "mode", "int", "1", Fate::kRefused, "",
     "operations run eagerly; files of static graphs have the sections of MindFormers 1.x", "1"},
    {"context", "max_device_memory", "str", "59GB", Fate::kNothing, "",
     "memory is taken as it is needed; --dry_run estimates it"},
    {"context", "device_target", "str", "Ascend", Fate::kNothing, "",
     "training runs on the processor", "Ascend|CPU"},

    {"profiler", "enable_profiling", "bool", "False", Fate::kSame, "training_config.profile"},
    {"profiler", "start_step", "int", "1", Fate::kRule, "training_config.profile_step_start",
     "with enable_profiling"},
    {"profiler", "end_step", "int", "1", Fate::kRule, "training_config.profile_step_end",
     "with enable_profiling"},
    {"profiler", "output_path", "str?", "null", Fate::kRule, "training_config.profile_save_path",
     "with enable_profiling; null: ./profile"},
    {"profiler", "profiler_rank", "list?", "null", Fate::kNothing, "", "all ranks are profiled"},
    {"profiler", "profiler_level", "int", "0", Fate::kRule, "training_config.profile_level",
     "0, 1 or 2", "0|1|2"},
    {"profiler", "mstx", "bool", "False", Fate::kRefused, "", "it marks ranges for an accelerator",
     "False"},
    {"profiler", "profile_memory", "bool", "False", Fate::kRule, "training_config.profile_memory",
     "with enable_profiling"},
    {"profiler", "profile_cpu", "bool", "True", Fate::kNothing, "", "the processor is profiled"},
    {"profiler", "with_stack", "bool", "True", Fate::kRule, "training_config.profile_with_stack",
     "with enable_profiling"},
    {"profiler", "enable_profiler", "any", "", Fate::kRefused, "",
     "it is enable_profiling since 2.0.0"},
    {"profiler", "stop_step", "any", "", Fate::kRefused, "", "it is end_step since 2.0.0"},

    {"callbacks", "MaxLogitsMonitor.step_interval", "int", "1", Fate::kRule,
     "monitor_config.max_logits_interval", "steps"},
    {"callbacks", "MaxLogitsReset.step_interval", "int", "1", Fate::kRule,
     "monitor_config.max_logits_interval", "the older name of MaxLogitsMonitor"},
    {"callbacks", "LossCallback.*", "any", "", Fate::kNothing, "",
     "every step has its line, here too: training_config.log_interval is 1"},
    {"callbacks", "MonitorCallback.*", "any", "", Fate::kNothing, "",
     "the section monitor says it"},
    {"callbacks", "CheckpointCallback.*", "any", "", Fate::kNothing, "",
     "the section checkpoint says it"},

    {"lora_config", "target_modules", "str", "\"\"", Fate::kRule,
     "lora_config.use_lora|lora_config.target_cells", kSearched},
    {"lora_config", "exclude_layers", "str?", "null", Fate::kRule, "lora_config.exclude_cells",
     kSearched},
    {"lora_config", "lora_rank", "int", "8", Fate::kRule, "lora_config.lora_rank", "the rank"},
    {"lora_config", "lora_alpha", "int", "16", Fate::kRule, "lora_config.lora_alpha",
     "divided by lora_rank"},
    {"lora_config", "lora_dropout", "float", "0.0", Fate::kRule, "lora_config.lora_dropout",
     "of the input"},
    {"lora_config", "lora_a_std", "float", "0.01", Fate::kRule, "lora_config.lora_a_std",
     "deviation of the first matrix"},
    {"lora_config", "lora_b_std", "float", "0.0", Fate::kRule, "lora_config.lora_b_std",
     "deviation of the second matrix"},
};

}  // namespace
}  // namespace watch_table

std::span<const Row> watch_rows() { return watch_table::kRows; }

}  // namespace tapestry::config::mindformers2
