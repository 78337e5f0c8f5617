#include "diagnosis/verify/exact/rerun_step.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "autograd/tensor/error.h"
#include "diagnosis/accuracy/temporary_folder.h"
#include "diagnosis/verify/layout_text.h"
#include "diagnosis/verify/op_trace.h"
#include "parallel_core/dist_checkpointing/agreement.h"
#include "parallel_core/dist_checkpointing/checkpoint_folder.h"
#include "parallel_core/dist_checkpointing/manifest.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/training/files/resumed_run.h"
#include "parallel_core/training/log/logging.h"
#include "text/util/checksum.h"

namespace tapestry {

namespace {

namespace fs = std::filesystem;

// A folder of the first rank's choice that all ranks know of and that goes with its object.
class SharedTemporary {
 public:
  explicit SharedTemporary(ProcessGroup& world) {
    all_or_none(world, [&] {
      if (world.rank() == 0) {
        own_.emplace();
      }
    });
    path_ = all_gather_text(world, own_ ? own_->path() : std::string()).front();
  }
  const std::string& path() const { return path_; }

 private:
  std::optional<accuracy::TemporaryFolder> own_;
  std::string path_;
};

// What a run watches, writes or waits for besides training is left out; the rest is its own.
AllConfig config_of_rerun(const AllConfig& config,
                          const std::string& output,
                          const std::string& checkpoint) {
  AllConfig own = config;
  TrainingConfig& t = own.training_config;
  t.output_dir = output;
  t.exit_duration_in_mins.reset();
  t.profile = false;
  t.dump_activation_steps.clear();
  t.dump_grad_steps.clear();
  t.dump_weight_steps.clear();
  t.async_save = false;
  if (!checkpoint.empty()) {
    t.resume_training = {.on = true, .checkpoint = {}};
    t.load_checkpoint = checkpoint;
    t.no_load_optim = t.no_load_rng = t.new_dataset = false;
  } else if (t.resume_training.on && t.load_checkpoint.empty()) {
    t.resume_training = {};  // of its own checkpoints: there are none before its start
  }
  return own;
}

int64_t number_of(const std::map<int64_t, int64_t>& tokens, int64_t step) {
  const auto found = tokens.find(step);
  return found == tokens.end() ? 0 : found->second;
}

// How many data-parallel ranks a run had in a step: from the tokens that went through the model,
// else from the logs of its ranks.
int64_t data_parallel_size_of(const std::string& folder, int64_t step, const AllConfig& config) {
  const accuracy::RunHashes recorded = accuracy::read_run_hashes(folder);
  const DatasetConfig& d = config.dataset_config;
  const int64_t of_rank = d.batch_size * d.micro_batch_num * config.model_config.seq_length;
  const int64_t tokens = number_of(recorded.tokens, step);
  if (!config.training_config.rampup_batch_size && tokens > 0 && tokens % of_rank == 0) {
    return tokens / of_rank;
  }
  const int64_t of_model = world_size(config.parallel_config, 1);
  int64_t ranks = 0;
  while (fs::is_directory(fs::path(folder) / "log" / concat("rank_", ranks))) {
    ++ranks;
  }
  return std::max<int64_t>(1, ranks / of_model);
}

std::vector<accuracy::RerunThing> things_of(const OpTrace& trace) {
  std::vector<accuracy::RerunThing> things;
  things.reserve(trace.size());
  for (const ComputedThing& thing : trace) {
    things.push_back({.what = thing.what,
                      .micro_batch = thing.micro_batch,
                      .pass = thing.pass,
                      .module = thing.module,
                      .name = thing.name,
                      .bits = data::hexadecimal(thing.checksum),
                      .inputs = data::hexadecimal(thing.inputs)});
  }
  return things;
}

}  // namespace

std::string run_of_config(const std::string& config_file) {
  const fs::path path(config_file);
  check<ValueError>(path.filename() == "config.yaml", config_file,
                    ": expected the config.yaml in the folder of a run");
  return path.has_parent_path() ? path.parent_path().string() : ".";
}

std::vector<std::string> overrides_of_place(const std::string& run_folder) {
  std::vector<std::string> overrides = resumed_run(run_folder).overrides;
  std::erase_if(overrides, [](const std::string& text) {
    return text.starts_with("training_config.resume_training=") ||
           text.starts_with("training_config.output_dir=");
  });
  return overrides;
}

int64_t step_of_checkpoint(const std::string& checkpoint) {
  const std::optional<Manifest> manifest = read_manifest(checkpoint);
  check<IoError>(manifest.has_value(), checkpoint, ": is no checkpoint of a run, which has a file ",
                 kManifestFile);
  return manifest->step;
}

std::string checkpoint_before(const std::string& run_folder, int64_t step) {
  std::vector<std::string> all = checkpoints_in((fs::path(run_folder) / "checkpoint").string());
  std::reverse(all.begin(), all.end());
  for (const std::string& checkpoint : all) {
    const std::optional<Manifest> manifest = read_manifest(checkpoint);
    if (manifest && manifest->step < step) {
      return checkpoint;
    }
  }
  return {};
}

accuracy::StepRerun rerun_steps(const AllConfig& config, const RerunOptions& options) {
  check<ValueError>(config.training_config.exact,
                    "training_config.exact is False: steps of this run do not have the same bits "
                    "when they are run again elsewhere");
  accuracy::StepRerun rerun;
  rerun.checkpoint = options.checkpoint;
  rerun.step = options.step;
  if (!options.checkpoint.empty()) {
    rerun.first_step = step_of_checkpoint(options.checkpoint) + 1;
  }
  check<ValueError>(rerun.first_step <= options.step, options.checkpoint, ": is of step ",
                    rerun.first_step - 1, ", which is not before step ", options.step);
  PretrainOptions training = options.training;
  training.rehearsed_steps = options.step;
  training.overwrite = true;  // the folder is new, but for what another rank may have begun
  training.replace = false;
  const SharedTemporary folder(*training.world);
  const std::string output = (fs::path(folder.path()) / "output").string();
  pretrain(config_of_rerun(config, output, options.checkpoint), training);
  close_logs();
  training.world->barrier();  // the first rank's files are complete
  rerun.hashes = accuracy::read_run_hashes(output).steps;
  rerun.of_step = accuracy::read_step_hashes(output, options.step);
  training.world->barrier();
  check<ValueError>(rerun.hashes.contains(options.step), "step ", options.step,
                    " has no hash when it is run again: the run ends before it");
  return rerun;
}

accuracy::StepRerun trace_step(const TraceRequest& request, const ConfigLoader& load) {
  std::vector<std::string> overrides = overrides_of_place(request.folder);
  overrides.emplace_back("parallel_config.data_parallel_size=null");
  const AllConfig own = load(overrides);
  const int64_t ranks = data_parallel_size_of(request.folder, request.step, own);
  for (std::string& override : single_process_overrides(own, ranks)) {
    overrides.push_back(std::move(override));
  }
  if (request.batch_size > 0) {
    const int64_t batch = own.dataset_config.batch_size;
    check<ValueError>(batch % request.batch_size == 0, "micro-batches of ", batch,
                      " sequences cannot be divided into those of ", request.batch_size);
    overrides.push_back(concat("dataset_config.batch_size=", request.batch_size));
    overrides.push_back(
        concat("dataset_config.micro_batch_num=",
               own.dataset_config.micro_batch_num * ranks * (batch / request.batch_size)));
  }
  RerunOptions options = {.training = request.training,
                          .checkpoint = checkpoint_before(request.folder, request.step),
                          .step = request.step};
  auto trace = std::make_shared<OpTrace>();
  options.training.observers.push_back(
      [trace, step = request.step](TrainOneStepCell& cell) -> std::unique_ptr<StepObserver> {
        return std::make_unique<OpTracer>(
            cell, trace,
            TraceOptions{.name = "trace_step",
                         .wanted = [step](int64_t at) { return at == step; },
                         .inputs = true,
                         .start_weights = true});
      });
  accuracy::StepRerun rerun = rerun_steps(load(overrides), options);
  rerun.things = things_of(*trace);
  return rerun;
}

}  // namespace tapestry
