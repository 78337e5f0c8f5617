// What a run writes for TensorBoard.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "parallel_core/config/config.h"
#include "parallel_core/tensorboard/event_writer.h"
#include "parallel_core/training/step/step_observer.h"

namespace tapestry {

/// What the numbers of a run are divided by.
struct TensorBoardRun {
  int rank = 0;
  int ranks = 1;
  int64_t global_batch_size = 1;
  double model_flops = 0;  ///< of a step of that batch; 0: not known
  /// Steps that the run has done before, whose events stay; 0: it is a new one, and the events of
  /// another are moved aside.
  int64_t steps_done = 0;
  int64_t samples_done = 0;
};

/// Scalars of a step, as rank 0 writes them: `learning-rate` (of the first group; of another one,
/// where it differs, `learning-rate/group_N`), `batch-size` (samples of the step), `loss` (before
/// the update), `grad-norm` (before clipping), `model-flops-throughput-per-npu` (TFLOP/s of a
/// rank), `B-samples-per-day` (billions); with the keys for it `loss-scale`, `iteration-time` (ms)
/// and `throughput` (samples a second and rank); after an evaluation `eval-loss`,
/// `eval-perplexity`, `test-loss` and `test-perplexity`.
std::vector<report::Scalar> step_scalars(const StepRecord& record,
                                         const StepResult& result,
                                         const TensorBoardConfig& config,
                                         const TensorBoardRun& run);

/// Which of them are also written over the samples that the run has seen, as "NAME vs samples".
bool is_over_samples(const std::string& tag);

/// Writes them to TENSORBOARD_DIR/rank_R, and the configuration as a text for each section; all
/// ranks have one of these, but a rank other than 0 only makes a file where it has something to
/// write. The configuration outlives it and has a tensorboard_dir.
class TensorBoardLog final : public StepObserver {
 public:
  /// Moves another run's events aside, or cuts off those of steps that the run does again. IoError.
  TensorBoardLog(const AllConfig& config, const TensorBoardRun& run);

  /// The values of every tensorboard_log_interval-th step, and those of evaluations at theirs.
  void after(FinishedStep& step) override;

  /// Values of this rank alone.
  void scalars(int64_t step, const std::vector<report::Scalar>& values);
  void histograms(int64_t step,
                  const std::string& kind,
                  const std::map<std::string, report::Histogram>& histograms);
  void flush() override { writer_.flush(); }

  /// Where another run's events have gone; empty: there were none.
  const std::string& moved_to() const { return moved_to_; }

 private:
  void begin();

  const AllConfig& config_;
  TensorBoardRun run_;
  int64_t samples_;  // that the run has trained on
  std::string moved_to_;
  report::EventWriter writer_;
  bool begun_ = false;
};

/// Writes histograms of all gradients, as they are before clipping, and of all weights, after the
/// update, every histogram_interval steps: `gradients/NAME` and `weights/NAME` by logical names, on
/// rank 0.
class HistogramLog final : public StepObserver {
 public:
  /// All ranks make one, in the same order. The arguments outlive it.
  HistogramLog(TrainOneStepCell& cell, int64_t interval, TensorBoardLog& log);
  ~HistogramLog() override;

  void after(FinishedStep& step) override;

 private:
  bool is_due(int64_t step) const { return step % interval_ == 0; }

  TrainOneStepCell& cell_;
  int64_t interval_;
  TensorBoardLog& log_;
};

/// What a configuration asks for; null without a tensorboard_dir.
std::unique_ptr<TensorBoardLog> make_tensorboard_log(const AllConfig& config,
                                                     const TensorBoardRun& run);

}  // namespace tapestry
