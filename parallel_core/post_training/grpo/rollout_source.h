// Batches of completions as the micro-batches of a run.
#pragma once

#include <cstdint>
#include <memory>

#include "parallel_core/data/data_source.h"
#include "parallel_core/post_training/grpo/rollout_supplier.h"
#include "parallel_core/post_training/rows/pack_sequences.h"

namespace tapestry::post_training {

/// What a RolloutSource has drawn last, for the objective of the step.
struct DrawnRollouts {
  const RolloutBatch* batch = nullptr;
  int64_t step = -1;  ///< BatchPosition::step
};

/// batch_size counts completions: micro-batch m of a step is batch_size * dp_size successive
/// completions of the batch's part that the step trains on (GenerationPlan), of which rank r takes
/// the r-th part, packed into rows. RowSequence::number is the completion in its RolloutBatch.
class RolloutSource final : public data::DataSource {
 public:
  /// `supplier` outlives the source.
  RolloutSource(RolloutSupplier& supplier, const GenerationPlan& plan, const RowRoom& room);

  /// Collective where it asks the supplier for another batch.
  data::Batch micro_batch(data::BatchPosition position,
                          int64_t micro_index,
                          int64_t micro_batch_num,
                          int64_t micro_batch_size,
                          int64_t dp_rank,
                          int64_t dp_size) override;
  int64_t seq_length() const override { return room_.seq_length; }
  /// Beyond any run: epochs do not end.
  int64_t size_in_samples() const override;
  /// Of the prompts. A completion that several steps train on counts as often.
  int64_t epoch(int64_t first_sample) const override;

  const std::shared_ptr<const DrawnRollouts>& drawn() const { return shown_; }

 private:
  RolloutSupplier& supplier_;
  GenerationPlan plan_;
  RowRoom room_;
  std::shared_ptr<DrawnRollouts> drawn_ = std::make_shared<DrawnRollouts>();
  std::shared_ptr<const DrawnRollouts> shown_ = drawn_;
};

}  // namespace tapestry::post_training
