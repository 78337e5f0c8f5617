#include "parallel_core/training/training.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "autograd/kernels/machine/exact.h"
#include "autograd/tape/observer.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/rank_context.h"
#include "parallel_core/config/batch_rampup.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/training/checkpoints/run_checkpoints.h"
#include "parallel_core/training/log/logging.h"
#include "parallel_core/training/step/run_part.h"
#include "parallel_core/training/watch/checkpoint_health.h"
#include "parallel_core/training/watch/expert_log.h"
#include "parallel_core/training/watch/hash_log.h"
#include "parallel_core/training/watch/max_logits_log.h"
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

// The pieces that look at every step, in the order of their phases.
class LoopPieces {
 public:
  /// `length`: of the run, as lines tell it.
  LoopPieces(TrainOneStepCell& cell,
             const AllConfig& config,
             const TrainOptions& options,
             const RunLength& length)
      : evaluation_(cell.network(), config, options),
        monitor_(cell, config, length),
        skipped_(cell, config),
        nan_(cell, config),
        experts_(config),
        max_logits_(config, length.total),
        metrics_(options.metrics),
        log_(config, length, options.step_flops),
        checkpoints_(cell, config, options) {
    all_ = {&checkpoints_.acceptance(), &evaluation_};
    if (config.training_config.exact) {
      all_.push_back(&hashes_.emplace(cell, config, options.hashes));
    }
    if (config.monitor_config.use_checkpoint_health_monitor) {
      all_.push_back(&embedding_.emplace(cell));
    }
    all_.insert(all_.end(), {&skipped_, &monitor_, &max_logits_});
    if (config.monitor_config.check_for_global_norm) {
      all_.push_back(&abnormal_.emplace(config));
    }
    all_.insert(all_.end(), {&nan_, &experts_, &metrics_, &log_, &checkpoints_});
    all_.insert(all_.end(), options.observers.begin(), options.observers.end());
    add_parts(cell, config, options);
    std::stable_sort(all_.begin(), all_.end(),
                     [](const auto* a, const auto* b) { return a->phase() < b->phase(); });
    checkpoints_.set_pieces(all_);
  }

  const std::vector<StepObserver*>& all() const { return all_; }
  RunCheckpoints& checkpoints() { return checkpoints_; }

 private:
  void add_parts(TrainOneStepCell& cell, const AllConfig& config, const TrainOptions& options) {
    require_parts(config, options.parts);
    for (RunPart* part : options.parts) {
      if (auto observer = part->observer({.cell = cell, .config = config, .options = options})) {
        all_.push_back(of_parts_.emplace_back(std::move(observer)).get());
      }
    }
  }

  StepEvaluation evaluation_;
  StepMonitor monitor_;
  SkipWatch skipped_;
  NanWatch nan_;
  ExpertLog experts_;
  MaxLogitsLog max_logits_;
  MetricsOfSteps metrics_;
  StepLog log_;
  RunCheckpoints checkpoints_;
  std::optional<HashLog> hashes_;
  std::optional<EmbeddingNorm> embedding_;
  std::optional<AbnormalNormWatch> abnormal_;
  std::vector<std::unique_ptr<StepObserver>> of_parts_;
  std::vector<StepObserver*> all_;
};

// Where a run is in its steps and its data, and where both end.
class LoopPosition {
 public:
  LoopPosition(const TrainOneStepCell& cell,
               data::DataSource& source,
               const AllConfig& config,
               const TrainOptions& options)
      : source_(source),
        epochs_(config.training_config.epochs),
        batches_(config, get_data_parallel_world_size()),
        step_(cell.position().seen) {
    check_rampup(config, get_data_parallel_world_size());
    const int64_t total =
        options.total_steps.value_or(total_training_iters(config, get_data_parallel_world_size()));
    check<ValueError>(total > 0 || epochs_,
                      "training: nothing to do; set training_config.training_iters, "
                      "training_config.epochs or dataset_config.train_samples");
    last_step_ = total > 0 ? total : std::numeric_limits<int64_t>::max();
    consumed_ = options.samples_done.value_or(batches_.consumed_after(step_));
    next_ = options.start.value_or(data::BatchPosition{.step = step_, .first_sample = consumed_});
    length_.total = total;
    if (epochs_) {
      set_epochs(total);
    }
  }

  int64_t step() const { return step_; }
  /// The batch of the next step.
  const data::BatchPosition& next() const { return next_; }
  /// What lines say of the end; the data decide it where epochs do.
  const RunLength& length() const { return length_; }
  /// Of the next step, on each data-parallel rank.
  int64_t micro_batches() const { return batches_.micro_batches_at(consumed_); }
  int64_t epoch() const { return source_.epoch(next_.first_sample); }
  bool is_at_end() const { return step_ >= last_step_ || (epochs_ && epoch() >= *epochs_); }

  void begin_step() { ++step_; }
  void end_step() {
    ++next_.step;
    const int64_t batch = batches_.batch_at(consumed_);
    next_.first_sample += batch;
    consumed_ += batch;
  }

 private:
  // When epochs end. Those of before this start count as if their steps had had such batches too,
  // which only lines see.
  void set_epochs(int64_t total) {
    const auto end_of = [&](int64_t epoch) {
      const int64_t ahead =
          data::batches_until_epoch(source_, 0, 1, epoch) - next_.first_sample;  // in samples
      return ahead >= 0 ? step_ + batches_.steps_until(consumed_ + ahead, consumed_)
                        : step_ - batches_.steps_within(consumed_,
                                                        std::max<int64_t>(consumed_ + ahead, 0));
    };
    for (int64_t epoch = 1; epoch <= *epochs_; ++epoch) {
      length_.epoch_ends.push_back(end_of(epoch));
      if (total > 0 && length_.epoch_ends.back() >= total) {
        break;
      }
    }
    const int64_t by_epochs = std::max(step_, length_.epoch_ends.back());
    length_.total = total > 0 ? std::min(total, by_epochs) : by_epochs;
  }

  data::DataSource& source_;
  std::optional<int64_t> epochs_;
  BatchSchedule batches_;
  int64_t step_;          // that runs, or is done
  int64_t consumed_ = 0;  // samples of the run before the next step
  int64_t last_step_ = 0;
  RunLength length_;
  data::BatchPosition next_;
};

// Runs one step and has all pieces look at it.
FinishedStep run_step(TrainOneStepCell& cell,
                      data::DataSource& source,
                      const AllConfig& config,
                      const std::vector<StepObserver*>& pieces,
                      LoopPosition& position) {
  position.begin_step();
  for (StepObserver* piece : pieces) {
    piece->before(position.step());
  }
  FinishedStep finished{.record = {.step = position.step(), .epoch = position.epoch()}};
  const auto start = Clock::now();
  {
    const PhaseScope whole("step");
    finished.result = cell([&] {
      const PhaseScope phase("data");
      return step_batches(source, config, position.next(), position.micro_batches());
    }());
  }
  finished.record.step_time_ms = milliseconds_since(start);
  finished.record.memory = memory_stats();
  finished.record.process = process_memory();
  position.end_step();
  finished.next = position.next();
  finished.is_last = position.is_at_end();
  for (StepObserver* piece : pieces) {
    piece->after(finished);
  }
  return finished;
}

}  // namespace

TrainSummary train(TrainOneStepCell& cell,
                   data::DataSource& source,
                   const AllConfig& config,
                   const TrainOptions& options) {
  const ExactScope exact(config.training_config.exact);
  LoopPosition position(cell, source, config, options);
  LoopPieces pieces(cell, config, options, position.length());
  if (options.trainer) {
    for (StepObserver* piece : pieces.all()) {
      piece->load_past(*options.trainer);
    }
  }
  TrainSummary summary;
  RankContext::current().allocator().reset_peak();  // what is told is training's
  std::string failure;
  while (!position.is_at_end() && !summary.stopped_on_request && failure.empty()) {
    try {
      const FinishedStep finished = run_step(cell, source, config, pieces.all(), position);
      add_to(summary, finished);
      summary.stopped_on_request =
          finished.stops || (options.stop_requested && options.stop_requested());
    } catch (const StepNotBegun& error) {
      failure = error.what();
    }
  }
  for (StepObserver* piece : pieces.all()) {
    piece->end();
  }
  end_progress();
  if (summary.steps > 1) {
    log_info(memory_line(memory_stats(), process_memory()));
  }
  pieces.checkpoints().finish(summary.stopped_on_request || !failure.empty());
  if (!failure.empty()) {
    const auto saved = pieces.checkpoints().saved_step();
    throw TrainingStopped(
        concat(failure, "\nThe run has stopped before step ", position.step(), "; ",
               saved ? concat("step ", *saved,
                              " is saved, and training_config.resume_training: True goes "
                              "on with it")
                     : std::string("this start has done no step that could be saved")));
  }
  return summary;
}

}  // namespace tapestry
