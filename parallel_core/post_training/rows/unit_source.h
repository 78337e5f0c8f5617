// Units of sequences as the micro-batches of a run.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "parallel_core/data/data_source.h"
#include "parallel_core/post_training/rows/pack_sequences.h"
#include "parallel_core/sft/row_order.h"

namespace tapestry::post_training {

/// Whether epochs have the order of the first one.
enum class EpochOrder : uint8_t { kOwn, kOfFirst };

/// Which units are drawn when: every unit once an epoch, in the order of the file or in one of its
/// own each epoch, epoch after epoch without end. Not thread-safe.
class UnitOrder {
 public:
  /// Where a step draws `step` units, an epoch ends with a step, which has what is left, as in TRL.
  UnitOrder(int64_t units,
            bool shuffle,
            int64_t seed,
            EpochOrder epochs = EpochOrder::kOwn,
            int64_t step = 1);

  int64_t units() const { return rows_.num_examples(); }
  /// The unit that is drawn as number `sample`, from 0 over all epochs; kNone for those that the
  /// last step of an epoch lacks.
  int64_t unit(int64_t sample);
  int64_t epoch(int64_t sample) const { return sample / epoch_; }

  static constexpr int64_t kNone = -1;

 private:
  sft::RowOrder rows_;
  EpochOrder epochs_;
  int64_t epoch_;  // samples from one to the next
};

struct UnitSourceOptions {
  RowRoom room;
  int64_t first_unit = 0;  ///< of the set, which the order's unit 0 is
  /// Samples that can be drawn; 0: epochs do not end.
  int64_t samples = 0;
};

/// batch_size counts units: micro-batch m of a step is batch_size * dp_size successive units, of
/// which rank r takes the r-th part, packed into rows. A step has the same units in every layout.
/// What of an epoch's last step there is nothing for is a row of padding.
class UnitSource final : public data::DataSource {
 public:
  UnitSource(std::shared_ptr<const SequenceSet> set, UnitOrder order, const RowRoom& room)
      : UnitSource(std::move(set), std::move(order), UnitSourceOptions{.room = room}) {}
  UnitSource(std::shared_ptr<const SequenceSet> set,
             UnitOrder order,
             const UnitSourceOptions& options);

  data::Batch micro_batch(data::BatchPosition position,
                          int64_t micro_index,
                          int64_t micro_batch_num,
                          int64_t micro_batch_size,
                          int64_t dp_rank,
                          int64_t dp_size) override;
  int64_t seq_length() const override { return options_.room.seq_length; }
  /// Beyond any run where epochs do not end.
  int64_t size_in_samples() const override;
  int64_t epoch(int64_t first_sample) const override { return order_.epoch(first_sample); }

 private:
  int64_t longest_of(int64_t first, int64_t samples);

  std::shared_ptr<const SequenceSet> set_;
  UnitOrder order_;
  UnitSourceOptions options_;
};

}  // namespace tapestry::post_training
