#include "parallel_core/training/watch/hash_log.h"

#include <vector>

#include "autograd/kernels/exact/exact_class.h"
#include "autograd/tape/observer.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/rank_context.h"
#include "parallel_core/training/log/logging.h"

namespace tapestry {

HashLog::HashLog(TrainOneStepCell& cell, const AllConfig& config, HashesFile* file)
    : class_(exact_class(config.model_config.compute_dtype)),
      file_(file),
      weights_(cell.network(), &cell.optimizer()) {
  if (cell.gradients() != nullptr) {
    gradients_.emplace(cell.network(), cell.optimizer(),
                       [gradients = cell.gradients()](const nn::Module::NamedParameter& entry) {
                         return gradients->held_gradient(entry).elements;
                       });
  }
  if (RankContext::current().rank() == 0) {
    log_info(
        concat("exact: bits of the class ", class_, "; metrics.jsonl has a hash of each step"));
  }
}

// Copies of a gradient or weight that differ: the ranks would go on apart.
void HashLog::end_for_copies(FinishedStep& step, bool with_gradients) const {
  std::vector<std::string> differing;
  if (with_gradients) {
    differing = gradients_->differing_copies();
    for (std::string& name : differing) {
      name = "the gradient of " + name;
    }
  }
  const std::vector<std::string>& weights = weights_.differing_copies();
  differing.insert(differing.end(), weights.begin(), weights.end());
  if (differing.empty() || !step.failure.empty()) {
    return;
  }
  step.failure =
      concat("exact: after step ", step.record.step,
             " ranks hold copies with different bits: ", differing[0],
             differing.size() > 1 ? concat(" and ", differing.size() - 1, " more") : std::string(),
             "; memory, a processor or a message is at fault. Go on from the last checkpoint, "
             "if it can be on another machine");
}

void HashLog::after(FinishedStep& step) {
  const PhaseScope phase("hash");
  HashesOfStep hashes{.parameters = weights_(),
                      .gradients = {},
                      .loss = step.result.loss,
                      .grad_norm = step.result.grad_norm};
  if (gradients_ && step.result.finite) {
    hashes.gradients = (*gradients_)();
  }
  end_for_copies(step, !hashes.gradients.empty());
  step.record.hash = concat(
      class_, ":",
      hash_text(step_hash(hashes.parameters, hashes.gradients, hashes.loss, hashes.grad_norm)));
  if (file_ != nullptr) {
    file_->write(step.record.step, class_, hashes);
  }
}

}  // namespace tapestry
