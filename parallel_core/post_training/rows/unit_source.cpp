#include "parallel_core/post_training/rows/unit_source.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

namespace tapestry::post_training {

namespace {

std::vector<int64_t> ones(int64_t count) {
  return std::vector<int64_t>(static_cast<size_t>(count), 1);
}

}  // namespace

UnitOrder::UnitOrder(int64_t units, bool shuffle, int64_t seed)
    : rows_(
          {ones(units)}, {}, {.capacity = 1, .packing = false, .shuffle = shuffle, .seed = seed}) {}

int64_t UnitOrder::unit(int64_t sample) {
  while (rows_.num_rows() <= sample) {
    rows_.add_epoch();
  }
  return rows_.row(sample).front();
}

UnitSource::UnitSource(std::shared_ptr<const SequenceSet> set, UnitOrder order, const RowRoom& room)
    : set_(std::move(set)), order_(std::move(order)), room_(room) {}

int64_t UnitSource::size_in_samples() const { return std::numeric_limits<int64_t>::max() / 2; }

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
      numbers.push_back(order_.unit(first + i) * per_unit + side);
    }
  }
  // Padding that counts goes on to the longest sequence of the step, in any layout.
  int64_t longest = 0;
  const int64_t units = counts_padding(room_) ? micro_batch_num * micro_batch_size * dp_size : 0;
  for (int64_t i = 0; i < units * per_unit; ++i) {
    const int64_t unit = order_.unit(position.first_sample + i / per_unit);
    longest = std::max<int64_t>(longest, std::ssize(set_->ids(unit * per_unit + i % per_unit)));
  }
  return pack_sequences(*set_, numbers, room_, longest);
}

}  // namespace tapestry::post_training
