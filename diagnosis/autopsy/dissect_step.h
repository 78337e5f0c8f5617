// Runs a bad step again, under observation, and finds out what it came from.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "diagnosis/autopsy/fault.h"
#include "diagnosis/autopsy/machine.h"
#include "parallel_core/training/step/train_one_step.h"

namespace tapestry {

/// What dissect_step knows of a rank.
struct DissectedRank {
  autopsy::Machine machine;
  std::vector<double> local_losses;  ///< the first time
  bool changed = false;              ///< its losses or gradients had other bits the second time
};

/// On all ranks the same but for `again`.
struct StepFindings {
  bool transient = false;  ///< the second time the step was good
  StepResult again;
  std::optional<double> reference_loss;  ///< of the data of the step before
  autopsy::Fault fault;
  std::vector<DissectedRank> ranks;
};

struct DissectOptions {
  /// Whether a result, of this or of another run of the passes, is bad in the way that this one is.
  std::function<bool(const StepResult&)> is_bad;
  /// The values are finite, but too large.
  bool is_spike = false;
  /// Of a spike: the rank's data of a good step, of as many micro-batches; null: none are known.
  const std::vector<data::Batch>* reference = nullptr;
  /// Text of tokens; may be empty.
  std::function<std::string(const std::vector<int64_t>& tokens)> text;
};

/// Collective. The passes are run once more, of a spike with `reference` twice, and what the step
/// goes on with is the last run of its own data.
StepFindings dissect_step(ComputedStep& step, ParallelModel& model, const DissectOptions& options);

/// The ranks of the job, or this one alone where no groups were made.
ProcessGroup& all_ranks_of_job();

/// "forward 0 rank 2 decoder.layers.1.mlp linear 17 inf 34": the same wherever the step comes to
/// the same; empty where the fault has no op.
std::string fault_place(const autopsy::Fault& fault);

}  // namespace tapestry
