#include "parallel_core/training/training.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "autograd/tape/observer.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/rank_context.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/training/checkpoints/run_checkpoints.h"
#include "parallel_core/training/log/logging.h"
#include "parallel_core/training/step/run_part.h"
#include "parallel_core/training/watch/checkpoint_health.h"
#include "parallel_core/training/watch/expert_log.h"
#include "parallel_core/training/watch/nan_watch.h"
#include "parallel_core/training/watch/norm_watch.h"
#include "parallel_core/training/watch/step_monitor.h"

namespace tapestry {

namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

class MetricsOfSteps final : public StepObserver {
 public:
  explicit MetricsOfSteps(MetricsWriter* writer) : writer_(writer) {}
  StepPhase phase() const override { return StepPhase::kRecord; }
  void after(FinishedStep& step) override {
    if (writer_ != nullptr) {
      writer_->write(step.record, step.result);
    }
  }

 private:
  MetricsWriter* writer_;
};

void add_to(TrainSummary& summary, const FinishedStep& step) {
  summary.steps += 1;
  summary.last_loss = step.result.loss;
  if (summary.steps == 1) {
    summary.first_loss = step.result.loss;
  }
  summary.test_loss = step.record.test_loss;
}

}  // namespace

TrainSummary train(TrainOneStepCell& cell,
                   data::DataSource& source,
                   const AllConfig& config,
                   const TrainOptions& options) {
  const TrainingConfig& t = config.training_config;
  const int64_t batch = global_batch_size(config, get_data_parallel_world_size());
  const int64_t total =
      options.total_steps.value_or(total_training_iters(config, get_data_parallel_world_size()));
  check<ValueError>(total > 0 || t.epochs,
                    "training: nothing to do; set training_config.training_iters, "
                    "training_config.epochs or dataset_config.train_samples");
  const int64_t last_step = total > 0 ? total : std::numeric_limits<int64_t>::max();
  int64_t step = cell.position().seen;
  data::BatchPosition position =
      options.start.value_or(data::BatchPosition{.step = step, .first_sample = step * batch});
  // What lines say of the end; the data decide it where epochs do.
  int64_t shown_total = total;
  if (t.epochs) {
    const int64_t by_epochs =
        step + data::batches_until_epoch(source, position.first_sample, batch, *t.epochs);
    shown_total = total > 0 ? std::min(total, by_epochs) : by_epochs;
  }
  const auto data_are_used_up = [&](data::BatchPosition at) {
    return t.epochs && source.epoch(at.first_sample) >= *t.epochs;
  };

  StepEvaluation evaluation(cell.network(), config, options.validation, options.test);
  StepMonitor monitor(cell, config, shown_total);
  SkipWatch skipped(cell, config);
  NanWatch nan(cell, config);
  ExpertLog experts(config);
  MetricsOfSteps metrics(options.metrics);
  StepLog log(config, shown_total, options.step_flops);
  RunCheckpoints checkpoints(cell, config, options);
  std::vector<StepObserver*> observers = {&checkpoints.acceptance(), &evaluation};
  std::optional<EmbeddingNorm> embedding;
  if (config.monitor_config.use_checkpoint_health_monitor) {
    observers.push_back(&embedding.emplace(cell));
  }
  observers.insert(observers.end(), {&skipped, &monitor});
  std::optional<AbnormalNormWatch> abnormal;
  if (config.monitor_config.check_for_global_norm) {
    observers.push_back(&abnormal.emplace(config));
  }
  observers.insert(observers.end(), {&nan, &experts, &metrics, &log, &checkpoints});
  observers.insert(observers.end(), options.observers.begin(), options.observers.end());
  require_parts(config, options.parts);
  std::vector<std::unique_ptr<StepObserver>> of_parts;
  for (RunPart* part : options.parts) {
    if (auto observer = part->observer({.cell = cell, .config = config, .options = options})) {
      observers.push_back(of_parts.emplace_back(std::move(observer)).get());
    }
  }
  std::stable_sort(observers.begin(), observers.end(),
                   [](const auto* a, const auto* b) { return a->phase() < b->phase(); });

  checkpoints.set_pieces(observers);
  if (options.trainer) {
    for (StepObserver* observer : observers) {
      observer->load_past(*options.trainer);
    }
  }

  TrainSummary summary;
  RankContext::current().allocator().reset_peak();  // what is told is training's
  while (step < last_step && !data_are_used_up(position) && !summary.stopped_on_request) {
    ++step;
    for (StepObserver* observer : observers) {
      observer->before(step);
    }
    FinishedStep finished{.record = {.step = step, .epoch = source.epoch(position.first_sample)}};
    const auto start = Clock::now();
    {
      const PhaseScope whole("step");
      finished.result = cell([&] {
        const PhaseScope phase("data");
        return step_batches(source, config, position);
      }());
    }
    finished.record.step_time_ms = milliseconds_since(start);
    finished.record.memory = memory_stats();
    ++position.step;
    position.first_sample += batch;
    finished.next = position;
    finished.is_last = step >= last_step || data_are_used_up(position);
    for (StepObserver* observer : observers) {
      observer->after(finished);
    }
    add_to(summary, finished);
    summary.stopped_on_request =
        finished.stops || (options.stop_requested && options.stop_requested());
  }
  for (StepObserver* observer : observers) {
    observer->end();
  }
  end_progress();
  if (summary.steps > 1) {
    log_info(memory_line(memory_stats()));
  }
  checkpoints.end(summary.stopped_on_request);
  return summary;
}

}  // namespace tapestry
