#include "parallel_core/training/watch/hash_log.h"

#include "autograd/kernels/exact_class.h"
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

void HashLog::after(FinishedStep& step) {
  const PhaseScope phase("hash");
  HashesOfStep hashes{.parameters = weights_(),
                      .gradients = {},
                      .loss = step.result.loss,
                      .grad_norm = step.result.grad_norm};
  if (gradients_ && step.result.finite) {
    hashes.gradients = (*gradients_)();
  }
  step.record.hash = concat(
      class_, ":",
      hash_text(step_hash(hashes.parameters, hashes.gradients, hashes.loss, hashes.grad_norm)));
  if (file_ != nullptr) {
    file_->write(step.record.step, class_, hashes);
  }
}

}  // namespace tapestry
