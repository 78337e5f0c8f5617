// What a run must know of itself to go on, beside weights, optimizer and data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "autograd/tensor/generator.h"
#include "optim/grad_scaler.h"
#include "optim/lr_scheduler.h"
#include "parallel_core/training/step/norm_spikes.h"

namespace tapestry {

/// The best evaluation so far, whose checkpoint is kept.
struct BestEvaluation {
  std::string metric;  ///< "loss" or "perplexity"
  double value = 0;
  int64_t step = 0;
};

/// Losses and steps before, by which the next bad one is told (StepAutopsy).
struct PastOfAutopsy {
  std::optional<NormSpikes::State> losses;  ///< with loss_spike_threshold
  int64_t bad_in_a_row = 0;                 ///< steps, up to the last bad one
  int64_t last_bad_step = 0;                ///< 0: there was none
};

/// Steps that were not finite (DivergenceWatch).
struct PastOfDivergence {
  int64_t in_a_row = 0;
  int64_t last_finite_step = 0;  ///< 0: there was none
  double last_finite_lr = 0;     ///< of its update, the largest of all groups
};

struct TrainerState {
  optim::Schedule::Position position;
  optim::GradScaler::State scaler;
  Generator::State generator;  ///< the rank's default one
  std::string schedule;        ///< schedule_state; empty: groups keep their learning rates
  std::string data;            ///< data_state_json; empty for sources without a state
  std::optional<BestEvaluation> best;
  /// What the loop decides from of earlier steps. Absent in checkpoints of runs that did not look.
  std::optional<NormSpikes::State> norm_spikes;  ///< where norms are watched
  std::optional<PastOfAutopsy> autopsy;
  std::optional<PastOfDivergence> divergence;
  /// What the run's task keeps of earlier steps, one JSON object; empty: nothing.
  std::string task;
  int64_t tokens = 0;        ///< that the run has trained on
  double train_seconds = 0;  ///< that its steps have taken
  std::string layout;        ///< that wrote it, for readers: layout_line
};

/// One JSON object.
std::string trainer_state_json(const TrainerState& state);
/// IoError, naming `source` and the member, for anything else.
TrainerState parse_trainer_state(const std::string& json, const std::string& source);

}  // namespace tapestry
