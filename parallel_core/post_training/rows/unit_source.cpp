#include "parallel_core/post_training/rows/unit_source.h"

#include <limits>
#include <utility>
#include <vector>

namespace tapestry::post_training {

namespace {

std::vector<int64_t> ones(int64_t count) {
  return std::vector<int64_t>(static_cast<size_t>(count), 1);
}

}  // namespace

UnitOrder::UnitOrder(int64_t units, bool shuffle, int64_t seed, EpochOrder epochs)
    : rows_({ones(units)}, {}, {.capacity = 1, .packing = false, .shuffle = shuffle, .seed = seed}),
      epochs_(epochs) {}

int64_t UnitOrder::unit(int64_t sample) {
  if (epochs_ == EpochOrder::kOfFirst) {
    sample %= units();
  }
  while (rows_.num_rows() <= sample) {
    rows_.add_epoch();
  }
  return rows_.row(sample).front();
}

UnitSource::UnitSource(std::shared_ptr<const SequenceSet> set,
                       UnitOrder order,
                       const UnitSourceOptions& options)
    : set_(std::move(set)), order_(std::move(order)), options_(options) {}

int64_t UnitSource::size_in_samples() const {
  return options_.samples > 0 ? options_.samples : std::numeric_limits<int64_t>::max() / 2;
}

data::Batch UnitSource::micro_batch(data::BatchPosition position,
                                    int64_t micro_index,
                                    int64_t micro_batch_num,
                                    int64_t micro_batch_size,
                                    int64_t dp_rank,
                                    int64_t dp_size) {
  data::internal::check_layout(position, micro_index, micro_batch_num, micro_batch_size, dp_rank,
                               dp_size);
  const int64_t first =
      position.first_sample + (micro_index * dp_size + dp_rank) * micro_batch_size;
  const int64_t per_unit = set_->per_unit();
  std::vector<int64_t> numbers;
  // As TRL has them: the first sequences of all units, then the second ones.
  for (int64_t side = 0; side < per_unit; ++side) {
    for (int64_t i = 0; i < micro_batch_size; ++i) {
      numbers.push_back((options_.first_unit + order_.unit(first + i)) * per_unit + side);
    }
  }
  data::Batch batch = pack_sequences(*set_, numbers, options_.room);
  if (options_.group > 0) {
    tell_first_apart(batch, first, micro_batch_size);
  }
  return batch;
}

// Of `samples` samples, of which `first` is the first one.
void UnitSource::tell_first_apart(data::Batch& batch, int64_t first, int64_t samples) {
  const int64_t group = options_.group;
  for (int64_t k = (first + group - 1) / group * group; k < first + samples; k += group) {
    const int64_t unit = options_.first_unit + order_.unit(k);
    const int64_t per_unit = set_->per_unit();
    for (auto& row : batch.sequences) {
      for (data::RowSequence& sequence : row) {
        if (sequence.number < set_->size() && sequence.number / per_unit == unit) {
          sequence.number += set_->size();
        }
      }
    }
  }
}

}  // namespace tapestry::post_training
