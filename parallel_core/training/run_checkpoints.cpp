#include "parallel_core/training/run_checkpoints.h"

#include <cmath>

#include "autograd/tensor/error.h"
#include "autograd/tensor/rank_context.h"
#include "parallel_core/training/logging.h"

namespace tapestry {

std::string checkpoint_plan(const TrainingConfig& config) {
  const std::string in = concat(" in ", config.output_dir, "/checkpoint");
  if (config.save_interval || config.save_interval_seconds) {
    return concat("checkpoints: every ",
                  config.save_interval ? concat(*config.save_interval, " steps")
                                       : format_duration(*config.save_interval_seconds),
                  config.save_last ? " and at the end," : ", none at the end (save_last: False),",
                  in, "; the newest ", config.keep_checkpoint_max, " are kept");
  }
  return config.save_last
             ? concat("checkpoints: at the end alone,", in,
                      "; save_interval is null, so nothing is saved before")
             : "checkpoints: none, unless a signal stops the run; save_interval is null and "
               "save_last False";
}

RunCheckpoints::RunCheckpoints(TrainOneStepCell& cell,
                               const AllConfig& config,
                               const TrainOptions& options)
    : cell_(cell),
      config_(config),
      options_(options),
      watch_(config),
      saver_(cell.network(), cell.optimizer(), config, options.checkpoint),
      trainer_(options.trainer.value_or(TrainerState{})) {
  saver_.set_best(trainer_.best);
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
  std::string state;
  if (options_.trainer) {
    trainer_.position = cell_.position();
    trainer_.scaler = cell_.grad_scaler().state();
    trainer_.generator = RankContext::current().default_generator().state();
    trainer_.best = saver_.best();
    trainer_.data = options_.data_state ? options_.data_state(next_) : std::string();
    state = trainer_state_json(trainer_);
  }
  saver_.save(step_, state, last);
}

// Whether the step's evaluation is the best so far, by best_metric_comparison.
bool RunCheckpoints::is_best(const StepRecord& record) {
  const TrainingConfig& t = config_.training_config;
  if (!record.eval_loss || !t.best_metric_comparison || !watch_.loss_is_finite()) {
    return false;
  }
  const bool by_loss = t.eval_metric.value_or("loss") == "loss";
  const double value = by_loss ? *record.eval_loss : std::exp(*record.eval_loss);
  if (!is_better(t, value, saver_.best())) {
    return false;
  }
  saver_.set_best(BestEvaluation{
      .metric = by_loss ? "loss" : "perplexity", .value = value, .step = record.step});
  return true;
}

void RunCheckpoints::after(FinishedStep& step) {
  step_ = step.record.step;
  next_ = step.next;
  watch_.observe(step_, step.result);
  saver_.poll();
  if (watch_.loss_is_finite()) {
    saver_.accept();
  }
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

void RunCheckpoints::end(bool stopped_on_request) {
  if (step_ > 0 && watch_.ends_badly()) {
    fail();
  }
  saver_.finish();
  if (step_ > 0 &&
      (stopped_on_request || config_.training_config.save_last || saver_.has_failed())) {
    save(/*last=*/true);
    saver_.accept();
  }
}

}  // namespace tapestry
