#include "parallel_core/training/checkpoints/run_checkpoints.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>
#include <vector>

#include "autograd/io/atomic_file.h"
#include "autograd/tape/observer.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/rank_context.h"
#include "parallel_core/dist_checkpointing/agreement.h"
#include "parallel_core/dist_checkpointing/checkpoint_folder.h"
#include "parallel_core/estimates/memory_estimate.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/training/log/logging.h"
#include "text/util/numbers.h"

namespace tapestry {

std::string checkpoint_plan(const TrainingConfig& config) {
  const std::string in = concat(" in ", config.output_dir, "/checkpoint");
  if (config.save_interval || config.save_interval_seconds) {
    return concat("checkpoints: every ",
                  config.save_interval ? concat(*config.save_interval, " steps")
                                       : format_duration(*config.save_interval_seconds),
                  config.save_last ? " and at the end," : ", none at the end (save_last: False),",
                  in,
                  config.keep_checkpoint_per_n_minutes > 0
                      ? concat("; one for every ", config.keep_checkpoint_per_n_minutes,
                               " minutes and the newest are kept")
                      : concat("; the newest ", config.keep_checkpoint_max, " are kept"));
  }
  return config.save_last
             ? concat("checkpoints: at the end alone,", in,
                      "; save_interval is null, so nothing is saved before")
             : "checkpoints: none, unless a signal stops the run; save_interval is null and "
               "save_last False";
}

namespace {

// What a checkpoint takes; 0 where the first save has to tell.
int64_t expected_bytes(const ParallelModel& model, const AllConfig& config) {
  if (model.has_file_names_of_config()) {
    return static_cast<int64_t>(saved_bytes(config));
  }
  // A model of the user's: its parameters, where this rank has all of them.
  if (get_world_group().size() > 1) {
    return 0;
  }
  double elements = 0;
  for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
    elements += static_cast<double>(entry.parameter->numel());
  }
  return static_cast<int64_t>(
      elements * saved_bytes_per_parameter(config.optimizer_config, config.model_config));
}

bool is_saved(const TrainingConfig& t) {
  return t.save_interval || t.save_interval_seconds || t.save_last;
}

}  // namespace

RunCheckpoints::RunCheckpoints(TrainOneStepCell& cell,
                               const AllConfig& config,
                               const TrainOptions& options)
    : cell_(cell),
      config_(config),
      options_(options),
      watch_(config),
      saver_(cell.network(), cell.optimizer(), config, options.checkpoint),
      disk_(options.checkpoint.directory, expected_bytes(cell.network(), config)),
      acceptance_(*this),
      trainer_(options.trainer.value_or(TrainerState{})) {
  if (!options.checkpoint.directory.empty() && is_saved(config.training_config)) {
    all_or_none(get_world_group(), [&] {
      if (RankContext::current().rank() == 0) {
        check_room_for_checkpoint(options.checkpoint.directory,
                                  expected_bytes(cell.network(), config));
      }
    });
  }
  saver_.take_up_best(trainer_.best);
  if (config.monitor_config.use_checkpoint_health_monitor &&
      !options.checkpoint.directory.empty()) {
    keep_health();
  }
}

// Entries follow what is on disk: added when a checkpoint has its name, dropped when it is gone.
void RunCheckpoints::keep_health() {
  health_path_ = health_record_path(config_.monitor_config, options_.checkpoint.directory);
  const bool first = RankContext::current().rank() == 0;
  all_or_none(get_world_group(), [&] {
    if (first) {
      std::filesystem::create_directories(std::filesystem::path(health_path_).parent_path());
      health_ = HealthRecord::read(health_path_);
    }
  });
  saver_.set_observer(
      {.saved = [this](int64_t step, const std::string& folder) { record_health(step, folder); },
       .kept = [this] { return healthy_to_keep(); },
       .removed = [this] { forget_removed(); }});
}

void RunCheckpoints::record_health(int64_t step, const std::string& folder) {
  if (RankContext::current().rank() == 0) {
    health_.add(std::filesystem::path(folder).filename().string(), is_healthy_.at(step));
    write_health();
  }
  is_healthy_.erase(step);
}

// The newest healthy checkpoint, where it is not among those that stay anyway.
std::vector<std::string> RunCheckpoints::healthy_to_keep() const {
  const std::optional<std::string> name = health_.newest_healthy();
  const std::vector<std::string> all = checkpoints_in(options_.checkpoint.directory);
  const auto stay = std::min(options_.checkpoint.keep_max, static_cast<int64_t>(all.size()));
  const bool stays = std::any_of(all.end() - stay, all.end(), [&](const std::string& path) {
    return std::filesystem::path(path).filename().string() == name;
  });
  return name && !stays ? std::vector<std::string>{*name} : std::vector<std::string>();
}

void RunCheckpoints::forget_removed() {
  std::set<std::string> names;
  for (const std::string& path : checkpoints_in(options_.checkpoint.directory)) {
    names.insert(std::filesystem::path(path).filename().string());
  }
  health_.keep(names);
  write_health();
}

// Without its entry a checkpoint is not gone on with, which is no reason to end the run.
void RunCheckpoints::write_health() const {
  try {
    write_file_atomically(health_path_, health_.text());
  } catch (const IoError& error) {
    log_error(concat("THE HEALTH OF THE CHECKPOINTS COULD NOT BE RECORDED: ", error.what()));
  }
}

void RunCheckpoints::load_past(const TrainerState& state) {
  if (state.divergence) {
    watch_.set_past(*state.divergence);
  }
}

std::string RunCheckpoints::aftermath() {
  end_progress();
  saver_.finish();
  const std::string aside = saver_.set_unproven_aside();
  return concat(
      aside, saver_.proven_step()
                 ? concat("\nThe last good checkpoint is that of step ", *saver_.proven_step(), ".")
                 : std::string("\nThis run has saved no good checkpoint."));
}

void RunCheckpoints::fail() {
  const std::string left = aftermath();
  throw RuntimeError(concat("training: ", watch_.report(), left));
}

void RunCheckpoints::save(bool last) {
  if (!watch_.loss_is_finite()) {
    log_warning(concat("step ", step_, " is not saved: its loss is not finite"));
    return;
  }
  if (options_.metrics != nullptr) {
    options_.metrics->sync();  // a checkpoint never knows of steps that the file has lost
  }
  for (StepObserver* observer : options_.observers) {
    observer->flush();
  }
  saver_.finish();  // whether a best one is on disk has to be known
  std::string state;
  if (options_.trainer) {
    trainer_.position = cell_.position();
    trainer_.scaler = cell_.grad_scaler().state();
    trainer_.generator = RankContext::current().default_generator().state();
    trainer_.best = saver_.best();
    // What this start did not look at is old by now.
    trainer_.norm_spikes =
        cell_.norm_spikes() == nullptr ? std::nullopt : std::optional(cell_.norm_spikes()->state());
    trainer_.autopsy.reset();
    trainer_.task.clear();
    for (const StepObserver* piece : pieces_) {
      piece->save_past(trainer_);
    }
    trainer_.data = options_.data_state ? options_.data_state(next_) : std::string();
    state = trainer_state_json(trainer_);
  }
  if (!health_path_.empty()) {
    is_healthy_[step_] = *embedding_norm_ < config_.monitor_config.embedding_local_norm_threshold;
  }
  const PhaseScope phase("save");
  saver_.save(step_, state, last);
}

// The value of eval_metric; none where the step has not been evaluated.
static std::optional<double> compared_value(const StepRecord& record, const std::string& metric) {
  if (!record.eval_loss && record.eval_values.empty()) {
    return std::nullopt;
  }
  if (const auto found = record.eval_values.find(metric); found != record.eval_values.end()) {
    return found->second;
  }
  check<ValueError>(record.eval_loss && (metric == "loss" || metric == "perplexity"),
                    "training_config.eval_metric is '", metric,
                    "', but the evaluation has computed no value of that name");
  return metric == "loss" ? *record.eval_loss : std::exp(*record.eval_loss);
}

// Whether the step's evaluation is the best so far, by best_metric_comparison.
bool RunCheckpoints::is_best(const StepRecord& record) {
  const TrainingConfig& t = config_.training_config;
  if (options_.checkpoint.directory.empty() || !t.best_metric_comparison ||
      !watch_.loss_is_finite()) {
    return false;
  }
  const std::string metric = t.eval_metric.value_or("loss");
  const std::optional<double> value = compared_value(record, metric);
  if (!value || !std::isfinite(*value)) {
    return false;
  }
  const std::optional<BestEvaluation>& best = saver_.best();
  const bool same = best && best->metric == metric;  // values of two metrics cannot be compared
  if (!is_better(t, *value, same ? best : std::nullopt)) {
    return false;
  }
  saver_.propose_best(BestEvaluation{.metric = metric, .value = *value, .step = record.step});
  return true;
}

void RunCheckpoints::accept(const FinishedStep& step) {
  watch_.observe(step.record.step, step.result);
  saver_.poll();
  if (saver_.saved_bytes()) {
    disk_.set_bytes(*saver_.saved_bytes());
  }
  disk_.observe(step.record.step);
  if (watch_.loss_is_finite()) {
    saver_.accept();
  }
}

void RunCheckpoints::after(FinishedStep& step) {
  step_ = step.record.step;
  next_ = step.next;
  embedding_norm_ = step.record.embedding_local_norm;
  trainer_.tokens += step.result.tokens;
  trainer_.train_seconds += step.record.step_time_ms / 1000;
  if (!step.failure.empty()) {
    throw TrainingStopped(step.failure + aftermath());
  }
  if (watch_.has_diverged()) {
    fail();
  }
  const bool best = is_best(step.record);
  if (saver_.is_due(step_) || best) {
    save(/*last=*/false);
  }
}

void RunCheckpoints::finish(bool stopped_on_request) {
  if (step_ > 0 && watch_.ends_badly()) {
    fail();
  }
  saver_.finish();
  if (step_ > 0 &&
      (stopped_on_request || config_.training_config.save_last || saver_.has_failed())) {
    save(/*last=*/true);
    saver_.accept();
  }
  const std::string worse = watch_.worse_than_it_began();
  if (worse.empty()) {
    return;
  }
  // Who has stopped it means to look, or to go on.
  if (stopped_on_request) {
    log_warning(worse);
    return;
  }
  throw RuntimeError(concat("training: ", worse,
                            saver_.saved_step()
                                ? concat("\nThe weights of step ", *saver_.saved_step(),
                                         " are saved all the same; earlier ones may be better.")
                                : std::string()));
}

}  // namespace tapestry
