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

UnitOrder::UnitOrder(int64_t units, bool shuffle, int64_t seed, EpochOrder epochs, int64_t step)
    : rows_({ones(units)}, {}, {.capacity = 1, .packing = false, .shuffle = shuffle, .seed = seed}),
      epochs_(epochs),
      epoch_((units + step - 1) / step * step) {}

int64_t UnitOrder::unit(int64_t sample) {
  const int64_t place = sample % epoch_;
  if (place >= units()) {
    return kNone;
  }
  const int64_t row = (epochs_ == EpochOrder::kOfFirst ? 0 : epoch(sample) * units()) + place;
  while (rows_.num_rows() <= row) {
    rows_.add_epoch();
  }
  return rows_.row(row).front();
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
      if (const int64_t unit = order_.unit(first + i); unit != UnitOrder::kNone) {
        numbers.push_back((options_.first_unit + unit) * per_unit + side);
      }
    }
  }
  // Padding that counts goes on to the longest sequence of the step, in any layout.
  const int64_t units =
      counts_padding(options_.room) ? micro_batch_num * micro_batch_size * dp_size : 0;
  const int64_t longest = longest_of(position.first_sample, units);
  return pack_sequences(*set_, numbers, options_.room, longest);
}

// Tokens of the longest sequence of so many samples; 0 of none.
int64_t UnitSource::longest_of(int64_t first, int64_t samples) {
  const int64_t per_unit = set_->per_unit();
  int64_t longest = 0;
  for (int64_t i = 0; i < samples; ++i) {
    const int64_t unit = order_.unit(first + i);
    for (int64_t side = 0; side < per_unit && unit != UnitOrder::kNone; ++side) {
      const int64_t number = (options_.first_unit + unit) * per_unit + side;
      longest = std::max<int64_t>(longest, std::ssize(set_->ids(number)));
    }
  }
  return longest;
}

}  // namespace tapestry::post_training
