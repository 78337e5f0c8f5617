#include <algorithm>
#include <filesystem>
#include <string>

#include "autograd/kernels/gemm/gemm.h"
#include "autograd/kernels/machine/cpu.h"
#include "autograd/kernels/machine/team.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/rank_context.h"
#include "autograd/tensor/system_memory.h"
#include "parallel_core/config/layer_split.h"
#include "parallel_core/config/recompute_tables.h"
#include "parallel_core/config/show/render.h"
#include "parallel_core/dist_checkpointing/agreement.h"
#include "parallel_core/dist_checkpointing/checkpoint_folder.h"
#include "parallel_core/estimates/memory_estimate.h"
#include "parallel_core/estimates/recompute_estimate.h"
#include "parallel_core/lora/adapter_plan.h"
#include "parallel_core/training/checkpoints/run_checkpoints.h"
#include "parallel_core/training/files/disk_room.h"
#include "parallel_core/training/fitting_layouts.h"
#include "parallel_core/training/log/logging.h"
#include "parallel_core/training/ranks/equal_configurations.h"
#include "parallel_core/training/starting_run.h"
#include "text/util/file.h"

namespace tapestry {

namespace {

namespace fs = std::filesystem;

// Finds what would stop the run at its first written file, or hours later at its first checkpoint.
void check_output_paths(const TrainingConfig& training) {
  const fs::path output = training.output_dir;
  for (const char* name : {"metrics.jsonl", "config.yaml"}) {
    check<IoError>(!fs::is_directory(output / name), (output / name).string(),
                   ": is a folder, but the run writes a file of this name; move it away or choose "
                   "another training_config.output_dir");
    check<IoError>(!fs::exists(output / name) || fs::is_regular_file(output / name),
                   (output / name).string(),
                   ": is a pipe or a device, but the run writes a file of this name; remove it or "
                   "choose another training_config.output_dir");
  }
  const fs::path checkpoints = output / "checkpoint";
  check<IoError>(!fs::exists(checkpoints) || fs::is_directory(checkpoints), checkpoints.string(),
                 ": is a file, but the run writes a folder of this name; move it away or choose "
                 "another training_config.output_dir");
}

// Files look the same to all ranks, but one may see a new one later than the others.
bool is_started_again_on_first_rank(const AllConfig& config, const PretrainOptions& options) {
  const bool own = !options.overwrite && is_started_again(config.training_config);
  return !all_gather_text(*options.world, own ? "again" : "").front().empty();
}

// Where the layers are and what they recompute; what that spares is for the terminal too.
void log_recompute(const AllConfig& config) {
  const TransformerConfig& model = config.model_config;
  log_lines(layer_placement_text(layers_per_chunk(model.num_layers, config.parallel_config)),
            log_detail);
  log_lines(recompute_config_text(config), log_detail);
  log_lines(layer_recompute_text(model), log_detail);
  const PatternRemarks remarks = pattern_remarks(model);
  for (const std::string& note : remarks.notes) {
    log_info(note);
  }
  for (const std::string& warning : remarks.warnings) {
    log_warning(warning);
  }
  log_lines(recompute_cost_text(config), log_info);
}

}  // namespace

void check_before_start(StartingRun& run) {
  const AllConfig& config = run.config;
  run.is_first_rank = RankContext::current().rank() == 0;
  run.available = available_memory() / run.options.ranks_on_host;
  if (!run.options.model) {
    const int64_t data_parallel = get_data_parallel_world_size();
    check_memory(config, estimate_memory(config, data_parallel),
                 {.data_parallel_size = data_parallel,
                  .ranks = run.options.world->size(),
                  .ranks_on_host = run.options.ranks_on_host,
                  .available = run.available});
  }
  check_output_paths(config.training_config);
  check_evaluation(config, run.options.metrics,
                   run.options.evaluation != nullptr || config.post_training_config.task);
  if (run.options.task) {
    run.task = run.options.task(config);
  }
  check<ValueError>(run.task != nullptr || !config.post_training_config.task,
                    "post_training_config.task ", config.post_training_config.task.value_or(""),
                    ": this program makes no such task (PretrainOptions::task)");
  run.parts = make_parts(run.options.parts);
  require_parts(config, pointers_to(run.parts));
  for (const auto& part : run.parts) {
    part->check(config);
  }
  for (const auto& part : run.parts) {
    part->begin(config);
  }
}

void open_output(StartingRun& run) {
  run.is_started_again = is_started_again_on_first_rank(run.config, run.options);
  run.goes_on_in_place = run.is_started_again || resumes_in_place(run.config.training_config);
  run.folder.emplace(run.output(),
                     OutputFolderOptions{.overwrite = run.options.overwrite,
                                         .replace = run.options.replace,
                                         .resume = run.goes_on_in_place,
                                         .stop_requested = run.options.stop_requested},
                     *run.options.world);
  open_logs(run.output());
  for (const std::string& remark : run.folder->remarks()) {
    log_info(remark);
  }
}

void log_settings(const StartingRun& run) {
  const AllConfig& config = run.config;
  const PretrainOptions& options = run.options;
  log_detail(layout_line(config.parallel_config, get_data_parallel_world_size()));
  log_detail(concat(name_of(cpu_level()), ", ", num_threads(), " threads, OpenBLAS ",
                    kernels::blas_flavour()));
  if (!options.progress_text.empty()) {
    log_detail(options.progress_text);
  }
  if (!options.run_cmd.empty()) {
    log_info("run_cmd: " + options.run_cmd);
  }
  log_lines(config_log_text(config), log_detail);
  for (const std::string& note : config.notes) {
    log_warning(note);
  }
  for (const std::string& warning : plan_adapter(config).warnings) {
    log_warning(warning);
  }
  if (!options.model) {
    log_recompute(config);
  } else if (!config.model_config.layer_recompute.empty()) {
    log_warning(
        "recompute_config: of a model of one's own, layers that it runs by "
        "TransformerModel::run_layer are recomputed as a whole, and nothing else");
  }
  log_info(checkpoint_plan(config.training_config));
}

void tidy_output(const StartingRun& run) {
  if (run.is_first_rank) {
    remove_unfinished_checkpoints(run.checkpoints());
    for (const std::string& left : {run.output(), run.checkpoints()}) {
      for (const std::string& remark : data::remove_stale_temporaries(left, "")) {
        log_detail(remark);
      }
    }
  }
  if (!run.options.model && !run.options.rehearsed_steps) {
    all_or_none(*run.options.world, [&] {
      if (run.is_first_rank) {
        log_detail("disk: " + disk_room_text(run.config, get_data_parallel_world_size()));
      }
    });
  }
}

}  // namespace tapestry
