// Completions from a file as the batches of a run.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "parallel_core/post_training/grpo/rollout_file.h"
#include "parallel_core/post_training/grpo/rollout_supplier.h"
#include "parallel_core/post_training/rows/pack_sequences.h"
#include "parallel_core/post_training/rows/unit_source.h"

namespace tapestry::post_training {

/// The groups of post_training_config.rollouts, in the order of the file or, with shuffle_dataset
/// and dataset_config.shuffle, in one of their own each epoch, epoch after epoch. With beta above 0
/// the reference's log-probabilities of all of them are computed before training.
class StoredRollouts final : public RolloutSupplier {
 public:
  /// Of a resolved configuration. `options` as the run's tokenizer has it. Errors as
  /// read_rollouts and set_advantages.
  StoredRollouts(const AllConfig& config,
                 const GenerationPlan& plan,
                 const RowRoom& room,
                 const RolloutFileOptions& options);

  const RolloutBatch& batch(int64_t number) override;
  bool needs_model() const override { return false; }
  int64_t epoch(int64_t first) const override;
  void prepare(const AllConfig& config, const ModelBeforeTraining& model) override;
  std::string description() const override;
  std::string fingerprint() const override;
  /// Lines that were left out, for the log; empty if there are none.
  std::string remark() const { return file_.bad_lines.text(); }

 private:
  RolloutBatch made(int64_t number);

  PostTrainingConfig config_;
  GenerationPlan plan_;
  RowRoom room_;
  bool shuffle_;
  int64_t seed_;
  RolloutFile file_;
  UnitOrder order_;  // of the groups
  int64_t number_ = -1;
  RolloutBatch batch_;
};

}  // namespace tapestry::post_training
