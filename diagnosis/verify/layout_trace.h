// What one process computes in a training, kept for layouts to be compared with.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "autograd/tensor/tensor.h"
#include "diagnosis/verify/expert_choices.h"
#include "diagnosis/verify/sample_recorder.h"
#include "diagnosis/verify/verify_layout.h"
#include "optim/lr_scheduler.h"
#include "parallel_core/dist_checkpointing/logical_state.h"
#include "parallel_core/training/step/train_one_step.h"

namespace tapestry {

/// What the process has done in a step.
struct StepTrace {
  StepResult result;
  std::vector<ActivationKey> order;
  std::map<ActivationKey, Tensor> activations;
  LogicalState gradients;
  LogicalState weights;
};

struct LayoutTrace {
  LogicalState initial;
  LogicalState start;
  std::vector<std::string> tensors;  ///< in the order of their making
  optim::Schedule::Position position;
  std::vector<StepTrace> steps;
  ExpertChoices choices;

  size_t index_of(const std::string& tensor) const;
};

/// Trains pair.single on the current rank, whose groups are those of one process.
LayoutTrace trace_single_process(const LayoutPair& pair,
                                 const VerifyOptions& options,
                                 int64_t steps);

}  // namespace tapestry
