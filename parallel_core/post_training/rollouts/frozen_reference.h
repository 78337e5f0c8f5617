// The frozen model that sampled completions are held against.
#pragma once

#include <memory>
#include <string>

#include "parallel_core/config/config.h"
#include "parallel_core/post_training/grpo/rollout_batch.h"
#include "parallel_core/post_training/rows/pack_sequences.h"
#include "parallel_core/training/run_task.h"

namespace tapestry::post_training {

/// post_training_config.reference of a run that samples: the folder's model, or the one that
/// training started with, as a second one in memory in the same layout, in the dtypes of inference
/// and without gradients or optimizer; of a run with adapters `adapter_off` needs none, and is what
/// an empty reference means where the adapter starts anew.
class FrozenReference {
 public:
  /// Loads the weights. ValueError for adapter_off without adapters, for the start of a mixture
  /// that was made of a dense model, and for one that a run which goes on does not know.
  /// Collective.
  FrozenReference(const AllConfig& config, const ModelBeforeTraining& model);
  ~FrozenReference();

  /// ln p of each completion token, logits divided by the temperature. Every rank gives the same
  /// completions and gets all values. Collective.
  CompletionValues log_probs(const SequenceSet& completions, const RowRoom& room) const;

  /// For the log.
  const std::string& description() const { return description_; }

 private:
  const AllConfig& config_;
  ParallelModel* policy_ = nullptr;     // with its adapter off
  std::unique_ptr<ParallelModel> own_;  // or a model of its own
  bool is_off_ = false;                 // adapters add nothing
  std::string description_;
};

}  // namespace tapestry::post_training
