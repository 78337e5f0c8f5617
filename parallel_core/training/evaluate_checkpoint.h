// Evaluation without training.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "parallel_core/comm/process_group.h"
#include "parallel_core/config/config.h"

namespace tapestry {

/// Mean loss per token of the parts that there are.
struct EvaluationSummary {
  std::optional<double> validation_loss;
  std::optional<double> test_loss;
};

/// Loads the weights of a checkpoint (see resolve_checkpoint) into the configuration's model and
/// takes its loss over eval_iters global batches of the validation and of the test part: those that
/// the checkpoint's run has evaluated on, or where it had other data, or none are known, those that
/// a training of this configuration evaluates on. Logs the results, writes no files. Every rank of
/// the world calls it. ValueError if there is neither part.
EvaluationSummary evaluate_checkpoint(
    const AllConfig& trained,
    const std::string& checkpoint,
    const std::shared_ptr<ProcessGroup>& world = single_process_group());

}  // namespace tapestry
