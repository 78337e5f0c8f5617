#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <string>
#include <utility>

#include "autograd/io/atomic_file.h"
#include "autograd/kernels/exact/exact_class.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"
#include "parallel_core/config/show/render.h"
#include "parallel_core/dist_checkpointing/agreement.h"
#include "parallel_core/dist_checkpointing/checkpoint_folder.h"
#include "parallel_core/dist_checkpointing/stored_hashes.h"
#include "parallel_core/dist_checkpointing/training_state_file.h"
#include "parallel_core/estimates/time_estimate.h"
#include "parallel_core/optimizer/get_optimizer.h"
#include "parallel_core/training/log/logging.h"
#include "parallel_core/training/ranks/equal_configurations.h"
#include "parallel_core/training/starting_run.h"

namespace tapestry {

namespace {

namespace fs = std::filesystem;

// A request to stop that also comes when so many minutes have passed.
std::function<bool()> with_time_limit(std::function<bool()> requested,
                                      const std::optional<double>& minutes) {
  if (!minutes) {
    return requested;
  }
  const auto end = std::chrono::steady_clock::now() +
                   std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                       std::chrono::duration<double, std::ratio<60>>(*minutes));
  return [requested = std::move(requested), end] {
    return std::chrono::steady_clock::now() >= end || (requested && requested());
  };
}

// Ranks hear of a signal at different times; all have to stop after the same step.
std::function<bool()> stop_of_all(const PretrainOptions& options,
                                  const std::optional<double>& minutes) {
  std::function<bool()> own = with_time_limit(options.stop_requested, minutes);
  if (options.world->size() == 1 || !own) {
    return own;
  }
  return [world = options.world, requested = own] {
    const Tensor stop = full({1}, requested() ? 1 : 0, kInt32);
    world->all_reduce(stop, ReduceOp::kMax);
    return stop.item() != 0;
  };
}

// Puts everything but the weights back to where the checkpoint was made.
void go_on_with(const ResumePoint& point,
                const TrainingConfig& t,
                ParallelModel& model,
                optim::Optimizer& optimizer,
                TrainOneStepCell& cell) {
  if (t.no_load_optim) {
    load_buffers(point.checkpoint, model);
  } else {
    load_optimizer_state(point.checkpoint, model, optimizer);
    cell.grad_scaler().set_state(point.trainer.scaler);
  }
  if (!t.no_load_rng) {
    RankContext::current().default_generator().set_state(point.trainer.generator);
  }
  optim::Schedule::Position position = point.trainer.position;
  if (t.rampup_batch_size && !position.samples) {  // the run had none before
    position.samples = point.data ? point.data->in_run().first_sample : 0;
  }
  cell.set_position(position);
  if (NormSpikes* spikes = cell.norm_spikes(); spikes != nullptr && point.trainer.norm_spikes) {
    spikes->set_state(*point.trainer.norm_spikes);
  }
}

// Of a run whose best checkpoint is gone, removed by hand or spoilt, the next evaluation is the
// best.
void forget_best_that_is_gone(TrainerState& trainer,
                              const std::string& checkpoint,
                              const std::string& own_folder,
                              ProcessGroup& world) {
  if (!trainer.best) {
    return;
  }
  const std::string name = checkpoint_name(trainer.best->step);
  const fs::path beside = fs::path(checkpoint).parent_path();
  std::error_code none;
  const bool there =
      fs::is_directory(beside / name, none) || fs::is_directory(fs::path(own_folder) / name, none);
  if (all_gather_text(world, there ? "there" : "").front().empty()) {
    log_warning(concat("the best checkpoint, ", (beside / name).string(),
                       ", is not there any more; the next evaluation is the best anew"));
    trainer.best.reset();
  }
}

// One comment line, whatever the text holds.
std::string comment_line(const std::string& text) {
  std::string line = "# " + text;
  std::replace_if(
      line.begin(), line.end(), [](unsigned char c) { return c < ' '; }, ' ');
  return line + "\n";
}

// The schedule of a new run, or the checkpoint's.
ResumedSchedule schedule_of(const StartingRun& run) {
  const AllConfig& config = run.config;
  const int64_t ranks = get_data_parallel_world_size();
  if (run.resume) {
    ResumedSchedule schedule =
        resume_schedule(config, ranks, run.resume->trainer.schedule, run.resume->checkpoint);
    if (!schedule.remark.empty()) {
      log_warning(schedule.remark);
    }
    return schedule;
  }
  ResumedSchedule schedule = {.schedule = get_optimizer_param_scheduler(config, ranks),
                              .state = schedule_state(config, ranks),
                              .remark = {}};
  if (schedule.schedule->learning_rate({}) == 0) {
    log_info(
        "the first update has a learning rate of 0 and changes nothing: the schedule's formula "
        "begins there; lr_decay_style with lr_warmup_iters does not, unless lr_warmup_init is 0");
  }
  return schedule;
}

void move_earlier_files(StartingRun& run) {
  const std::string aside = run.folder->move_earlier_aside(
      {run.data.tokenizer_model, run.resume ? run.resume->checkpoint : std::string()});
  if (!aside.empty()) {
    log_info("the files of the earlier run are now in " + aside);
  }
  if (!run.resume) {
    return;
  }
  const std::string later = run.folder->move_later_aside(run.resume->checkpoint);
  if (!later.empty()) {
    log_info("what the run did after this step is now in " + later);
  }
}

std::unique_ptr<TensorBoardLog> make_board(const StartingRun& run) {
  const int64_t ranks = get_data_parallel_world_size();
  std::unique_ptr<TensorBoardLog> board = make_tensorboard_log(
      run.config, {.rank = RankContext::current().rank(),
                   .ranks = run.options.world->size(),
                   .global_batch_size = global_batch_size(run.config, ranks),
                   .model_flops = run.options.model ? 0 : model_flops(run.config, ranks),
                   .steps_done = run.cell->position().seen,
                   .samples_done = run.data.opened.in_run().first_sample});
  if (board && !board->moved_to().empty()) {
    log_info(concat("TensorBoard events of an earlier run are now in ", board->moved_to()));
  }
  return board;
}

std::string name_of_host() {
  std::array<char, 257> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

// What programs outside see of the run, on the first rank.
void open_telemetry(StartingRun& run) {
  const AllConfig& config = run.config;
  const int64_t steps_done = run.cell->position().seen;
  run.prometheus =
      make_prometheus_log(config,
                          {.run = run_name(config),
                           .host = name_of_host(),
                           .rank = RankContext::current().rank(),
                           .ranks = run.options.world->size(),
                           .layout = run.trainer.layout,
                           .output_dir = fs::absolute(run.output()).lexically_normal().string(),
                           .checkpoints = run.checkpoints(),
                           .planned_steps = total_steps(config, run.data.opened.in_run())},
                          {.steps = steps_done,
                           .tokens = run.trainer.tokens,
                           .samples = run.data.opened.in_run().first_sample});
  run.mlflow = make_mlflow_log(config, run.resolved_yaml,
                               run.goes_on_in_place ? std::optional(steps_done) : std::nullopt);
}

CheckpointOptions checkpoint_options(StartingRun& run) {
  const TrainingConfig& training = run.config.training_config;
  CheckpointOptions checkpoint;
  checkpoint.directory = run.options.rehearsed_steps ? std::string() : run.checkpoints();
  checkpoint.keep_max = training.keep_checkpoint_max;
  checkpoint.resolved_config = run.resolved_yaml;
  checkpoint.source = std::move(run.beside_weights);
  checkpoint.adapter_config = run.weights.adapter.adapter_config;
  checkpoint.base_model = run.weights.adapter.base_model;
  checkpoint.max_shard_bytes = static_cast<uint64_t>(training.max_shard_size);
  checkpoint.ckpt_prefix = training.ckpt_format == "ckpt" ? training.prefix : std::string();
  checkpoint.remove_redundancy = training.remove_redundancy;
  return checkpoint;
}

// The run's own pieces of the loop, beside those that train() makes.
void add_observers(StartingRun& run) {
  std::vector<StepObserver*>& observers = run.loop.observers;
  for (const auto& make : run.options.observers) {
    observers.push_back(run.further_observers.emplace_back(make(*run.cell)).get());
  }
  if (run.task != nullptr) {
    for (auto& piece : run.task->observers(run.config, *run.cell)) {
      observers.push_back(run.further_observers.emplace_back(std::move(piece)).get());
    }
  }
  if (run.options.rehearsed_steps) {
    observers.push_back(&run.last_step.emplace(*run.options.rehearsed_steps));
  }
  if (run.expert_counts) {
    observers.push_back(&*run.expert_counts);
  }
  if (run.prometheus) {
    observers.push_back(&*run.prometheus);
  }
  if (run.mlflow) {
    observers.push_back(&*run.mlflow);
  }
  if (!run.board) {
    return;
  }
  observers.push_back(&*run.board);
  if (const auto& interval = run.config.tensorboard.histogram_interval) {
    observers.push_back(&run.histograms.emplace(*run.cell, *interval, *run.board));
  }
}

// Whether what was loaded is what was saved. Collective.
void check_hashes(const StartingRun& run) {
  const std::string& folder = run.resume->checkpoint;
  const std::optional<StoredHashes> stored = read_stored_hashes(folder);
  if (!run.config.training_config.exact || !stored) {
    return;
  }
  StateHash hash(*run.model, run.optimizer.get(), HashedState::kWeightsAndStates);
  check_stored_hashes(*stored, hash(), folder);
  const std::string_view own = exact_class(run.config.model_config.compute_dtype);
  if (run.is_first_rank && stored->bit_class != own) {
    log_warning(concat("exact: ", folder, " was made by a machine of the class ", stored->bit_class,
                       ", this one is of the class ", own,
                       ": the run goes on with other bits than there"));
  }
}

}  // namespace

void restore_state(StartingRun& run) {
  run.schedule = schedule_of(run);
  const optim::Schedule& applied = run.options.zero_learning_rate
                                       ? static_cast<const optim::Schedule&>(run.zero_schedule)
                                       : *run.schedule.schedule;
  run.cell.emplace(*run.model, *run.optimizer, applied, run.config, run.data_parallel.get());
  if (run.task != nullptr) {
    run.objective = run.task->objective(run.config, *run.cell);
    run.cell->set_objective(run.objective.get());
  }
  if (run.config.training_config.rampup_batch_size) {
    run.cell->set_position({.samples = 0});
  }
  if (run.resume) {
    go_on_with(*run.resume, run.config.training_config, *run.model, *run.optimizer, *run.cell);
    run.trainer = run.resume->trainer;
    check_hashes(run);
    forget_best_that_is_gone(run.trainer, run.resume->checkpoint, run.checkpoints(),
                             *run.options.world);
  }
  run.trainer.schedule = run.schedule.state;
  run.trainer.layout = layout_line(run.config.parallel_config, get_data_parallel_world_size());
}

void begin_files(StartingRun& run) {
  const PretrainOptions& options = run.options;
  all_or_none(*options.world, [&] {
    if (run.is_first_rank) {
      run.beside_weights = hf_source_of(run.config, run.data, run.weights.path);
    }
  });
  run.resolved_yaml = resolved_yaml(run.config);
  if (!options.run_cmd.empty()) {
    run.resolved_yaml = comment_line("run_cmd: " + options.run_cmd) + run.resolved_yaml;
  }
  if (options.overwrite || options.replace) {
    options.world->barrier();  // every rank has read what may be moved now
  }
  if (run.is_first_rank) {
    move_earlier_files(run);
    write_file_atomically(run.output() + "/config.yaml", run.resolved_yaml);
    run.metrics.emplace(
        run.output() + "/metrics.jsonl",
        run.goes_on_in_place ? std::optional(run.cell->position().seen) : std::nullopt);
    if (run.config.training_config.exact) {
      run.hashes.emplace(
          run.output() + "/hashes.jsonl",
          run.goes_on_in_place ? std::optional(run.cell->position().seen) : std::nullopt);
    }
    if (run.config.monitor_config.save_tokens_per_expert_interval) {
      run.expert_counts.emplace(run.config, run.goes_on_in_place
                                                ? std::optional(run.cell->position().seen)
                                                : std::nullopt);
    }
  }
  run.board = make_board(run);
  if (run.is_first_rank && !run.options.rehearsed_steps) {
    open_telemetry(run);
  }
}

void assemble_loop(StartingRun& run) {
  const AllConfig& config = run.config;
  TrainOptions& loop = run.loop;
  if (!run.options.rehearsed_steps) {
    loop.validation = run.data.validation.get();
    loop.test = run.data.test.get();
  }
  loop.evaluation_metrics = run.options.metrics;
  loop.evaluation = run.options.evaluation;
  loop.objective = run.objective.get();
  loop.metrics = run.metrics ? &*run.metrics : nullptr;
  loop.hashes = run.hashes ? &*run.hashes : nullptr;
  add_observers(run);
  loop.parts = pointers_to(run.parts);
  loop.checkpoint = checkpoint_options(run);
  loop.tokenizer_model = run.data.tokenizer_model;
  loop.stop_requested = stop_of_all(run.options, config.training_config.exit_duration_in_mins);
  loop.start = run.data.start;
  loop.samples_done = run.data.opened.in_run().first_sample;
  loop.total_steps = total_steps(config, run.data.opened.in_run());
  loop.trainer = std::move(run.trainer);
  loop.data_state = [&data = run.data](data::BatchPosition next) {
    return data_state_json(data.state(next));
  };
  if (!run.options.model) {
    loop.step_flops = step_work(config, get_data_parallel_world_size()).flops;
  }
}

void tell_the_end(StartingRun& run, const TrainSummary& summary) {
  const bool stopped = summary.stopped_on_request;
  if (run.prometheus) {
    run.prometheus->finish(stopped ? telemetry::RunState::kStopped
                                   : telemetry::RunState::kFinished);
  }
  if (run.mlflow) {
    run.mlflow->finish(stopped ? telemetry::MlflowStatus::kKilled
                               : telemetry::MlflowStatus::kFinished);
  }
}

}  // namespace tapestry
