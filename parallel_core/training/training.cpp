#include "parallel_core/training/training.h"

#include <chrono>
#include <limits>
#include <optional>
#include <utility>

#include "autograd/tape/observer.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/rank_context.h"
#include "parallel_core/config/render.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/training/checkpoint_health.h"
#include "parallel_core/training/expert_log.h"
#include "parallel_core/training/logging.h"
#include "parallel_core/training/nan_watch.h"
#include "parallel_core/training/norm_watch.h"
#include "parallel_core/training/run_checkpoints.h"
#include "parallel_core/training/step_autopsy.h"
#include "parallel_core/training/step_dumps.h"
#include "parallel_core/training/step_monitor.h"
#include "parallel_core/training/step_profiler.h"

namespace tapestry {

namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

class MetricsOfSteps final : public StepObserver {
 public:
  explicit MetricsOfSteps(MetricsWriter* writer) : writer_(writer) {}
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
  const auto data_are_used_up = [&](data::BatchPosition at) {
    return t.epochs && source.epoch(at.first_sample) >= *t.epochs;
  };

  const MonitorConfig& m = config.monitor_config;
  StepDumps dumps(cell, config);
  StepEvaluation evaluation(cell.network(), config, options.validation, options.test);
  StepMonitor monitor(cell, config, total);
  SkipWatch skipped(cell, config);
  NanWatch nan(cell, config);
  ExpertLog experts(config);
  MetricsOfSteps metrics(options.metrics);
  StepLog log(config, total, options.step_flops);
  RunCheckpoints checkpoints(cell, config, options);
  std::optional<EmbeddingNorm> embedding;
  std::optional<AbnormalNormWatch> abnormal;

  std::optional<StepAutopsy> autopsy;
  if (t.autopsy) {
    const CheckpointOptions& files = options.checkpoint;
    autopsy.emplace(
        cell, config,
        AutopsyOptions{.folder = t.output_dir + "/capsule",
                       .resolved_config = files.resolved_config.empty() ? resolved_yaml(config)
                                                                        : files.resolved_config,
                       .tokenizer_model = options.tokenizer_model,
                       .adapter_config = files.adapter_config,
                       .base_model = files.base_model});
  }

  std::vector<StepObserver*> observers = {&checkpoints.acceptance(), &dumps, &evaluation};
  if (m.use_checkpoint_health_monitor) {
    observers.push_back(&embedding.emplace(cell));
  }
  observers.insert(observers.end(), {&skipped, &monitor});
  if (m.check_for_global_norm) {
    observers.push_back(&abnormal.emplace(config));
  }
  observers.push_back(&nan);
  if (autopsy) {
    observers.push_back(&*autopsy);
  }
  observers.insert(observers.end(), {&experts, &metrics});
  observers.insert(observers.end(), options.observers.begin(), options.observers.end());
  observers.insert(observers.end(), {&log, &checkpoints});

  std::optional<StepProfiler> profiler;
  if (t.profile) {
    observers.push_back(&profiler.emplace(cell, config, options.memory_watch));
  }

  checkpoints.set_pieces(observers);
  if (options.trainer) {
    for (StepObserver* observer : observers) {
      observer->load_past(*options.trainer);
    }
  }

  TrainSummary summary;
  RankContext::current().allocator().reset_peak();  // what is told is training's
  int64_t step = cell.position().seen;
  data::BatchPosition position =
      options.start.value_or(data::BatchPosition{.step = step, .first_sample = step * batch});
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
  if (profiler) {
    profiler->end();
  }
  end_progress();
  if (summary.steps > 1) {
    log_info(memory_line(memory_stats()));
  }
  checkpoints.end(summary.stopped_on_request);
  return summary;
}

}  // namespace tapestry
