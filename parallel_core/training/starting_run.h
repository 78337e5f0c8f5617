// The stages of a run that begins, in the order in which pretrain() goes through them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "optim/lr_scheduler.h"
#include "parallel_core/distributed/distributed_data_parallel.h"
#include "parallel_core/optimizer/schedule_state.h"
#include "parallel_core/training/checkpoints/adapter_run.h"
#include "parallel_core/training/checkpoints/resume.h"
#include "parallel_core/training/checkpoints/saved_model.h"
#include "parallel_core/training/files/output_folder.h"
#include "parallel_core/training/pretrain.h"
#include "parallel_core/training/step/hashes_file.h"
#include "parallel_core/training/step/run_part.h"
#include "parallel_core/training/watch/expert_counts_file.h"
#include "parallel_core/training/watch/last_step.h"
#include "parallel_core/training/watch/mlflow_log.h"
#include "parallel_core/training/watch/prometheus_log.h"
#include "parallel_core/training/watch/tensorboard_log.h"

namespace tapestry {

/// Weights that a run begins with, and where they come from.
struct RunWeights {
  std::string path;         ///< folder or file; empty: the start values of the seed
  bool upcycles = false;    ///< they are a dense model's, whose MLPs become experts
  bool in_pieces = false;   ///< no rank ever holds the whole model (z3)
  AdapterRun adapter = {};  ///< off without lora_config.use_lora
};

/// What a run has made so far. Each member is filled by one stage and read by those after it; they
/// go in the opposite order, the folder with its lock almost last.
struct StartingRun {
  StartingRun(const AllConfig& run_config, const PretrainOptions& run_options)
      : config(run_config), options(run_options) {}
  StartingRun(const StartingRun&) = delete;
  StartingRun& operator=(const StartingRun&) = delete;

  const std::string& output() const { return config.training_config.output_dir; }
  std::string checkpoints() const { return output() + "/checkpoint"; }

  const AllConfig& config;
  const PretrainOptions& options;
  int64_t available = 0;       ///< bytes that this rank could use before it allocated any
  bool is_first_rank = false;  ///< which writes the files
  std::vector<std::unique_ptr<RunPart>> parts;
  std::unique_ptr<RunTask> task;  ///< null: the next token
  bool is_started_again = false;  ///< see resume.h
  bool goes_on_in_place = false;  ///< in the files of an earlier start of the same run
  std::optional<OutputFolder> folder;
  std::optional<ResumePoint> resume;
  RunWeights weights;
  RunData data;
  std::unique_ptr<ParallelModel> model;
  std::unique_ptr<DistributedDataParallel> data_parallel;
  std::unique_ptr<optim::Optimizer> optimizer;
  ResumedSchedule schedule;
  optim::ConstantSchedule zero_schedule{0, 0};
  std::optional<TrainOneStepCell> cell;
  std::unique_ptr<StepObjective> objective;  ///< of the task
  TrainerState trainer;
  HfSource beside_weights;    ///< on the first rank
  std::string resolved_yaml;  ///< content of config.yaml
  std::optional<MetricsWriter> metrics;
  std::optional<HashesFile> hashes;
  std::optional<ExpertCountsFile> expert_counts;
  std::unique_ptr<TensorBoardLog> board;
  std::unique_ptr<PrometheusLog> prometheus;  ///< on the first rank, as the next one
  std::unique_ptr<MlflowLog> mlflow;
  TrainOptions loop;
  std::vector<std::unique_ptr<StepObserver>> further_observers;
  std::optional<LastStep> last_step;
  std::optional<HistogramLog> histograms;
};

// Before anything is written (start_output.cpp).

/// Memory, output paths and parts: what can be wrong with a configuration on this machine.
void check_before_start(StartingRun& run);
/// Takes the output folder and begins the logs.
void open_output(StartingRun& run);
/// Says in the log what runs where, and with which settings.
void log_settings(const StartingRun& run);
/// Removes what killed runs have left, and says how much room the disk has.
void tidy_output(const StartingRun& run);

// What the run begins from (start_source.cpp).

/// The checkpoint that the run goes on with, if it does.
void find_checkpoint(StartingRun& run);
/// Which weights are loaded, verified before data and model are made.
void choose_weights(StartingRun& run);
/// Opens the data and reads the first step's batch.
void open_run_data(StartingRun& run);
void log_data(const StartingRun& run);

// Model and optimizer (start_model.cpp).

/// Makes the model and, where a rank can hold all of it, loads its weights.
void make_run_model(StartingRun& run);
/// Writes the start's summary to the log. `time`: see expected_time.
void log_summary(const StartingRun& run, const std::string& time);
/// Gradient buffers and optimizer, with the weights that only their shards can hold.
void make_run_optimizer(StartingRun& run);
/// Lets the task compute what it needs of the model, whose own weights come back afterwards
/// (start_task.cpp): before there is an optimizer, or where weights are in pieces (z3) after that.
void prepare_task(StartingRun& run);

// State of the run, its files and the pieces of its loop (start_loop.cpp).

/// Schedule, step cell and position, those of the checkpoint in a run that goes on.
void restore_state(StartingRun& run);
/// Moves earlier files aside and begins this run's: nothing that it begins with can be wrong any
/// more.
void begin_files(StartingRun& run);
/// Everything that train() is told.
void assemble_loop(StartingRun& run);
/// Tells those who watch from outside that the run is over, and how.
void tell_the_end(StartingRun& run, const TrainSummary& summary);

}  // namespace tapestry
