#include "parallel_core/data/epoch_source.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "autograd/tensor/error.h"
#include "parallel_core/data/numpy_random.h"

namespace tapestry::data {

EpochSource::EpochSource(EpochSourceOptions options) : options_(std::move(options)) {
  check<ValueError>(options_.sample != nullptr, "data: no function gives the samples");
  check<ValueError>(options_.size >= 1 && options_.seq_length >= 1, "data: ", options_.size,
                    " samples of ", options_.seq_length, " tokens; expected at least one of each");
}

// Which sample is the one that is drawn as number `drawn`.
int64_t EpochSource::number_of(int64_t drawn) {
  if (!options_.shuffle) {
    return drawn % options_.size;
  }
  const int64_t epoch = drawn / options_.size;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (ordered_epoch_ != epoch) {
    order_.resize(static_cast<size_t>(options_.size));
    std::iota(order_.begin(), order_.end(), int64_t{0});
    constexpr int64_t kSeeds = int64_t{1} << 32;
    NumpyRandomState((options_.seed % kSeeds + epoch) % kSeeds).shuffle(std::span(order_));
    ordered_epoch_ = epoch;
  }
  return order_[static_cast<size_t>(drawn % options_.size)];
}

void EpochSource::add(Batch& batch, int64_t number) const {
  Sample sample = options_.sample(number);
  const auto length = static_cast<size_t>(options_.seq_length);
  if (sample.loss_mask.empty()) {
    for (int64_t& label : sample.labels) {
      sample.loss_mask.push_back(label < 0 ? 0.0F : 1.0F);
      label = std::max<int64_t>(label, 0);
    }
  }
  check<ValueError>(sample.tokens.size() == length && sample.labels.size() == length &&
                        sample.loss_mask.size() == length &&
                        (sample.position_ids.empty() || sample.position_ids.size() == length),
                    "data: sample ", number, " has ", sample.tokens.size(), " tokens, ",
                    sample.labels.size(), " labels, ", sample.loss_mask.size(), " mask values and ",
                    sample.position_ids.size(), " positions, expected ", length,
                    " of each (positions may be left out)");
  for (const std::vector<int64_t>* ids : {&sample.tokens, &sample.labels}) {
    for (const int64_t id : *ids) {
      check<ValueError>(options_.vocab_size == 0 || (id >= 0 && id < options_.vocab_size),
                        "data: sample ", number, ": id ", id, " is outside the vocabulary of ",
                        options_.vocab_size);
    }
  }
  const auto append = [](auto& values, const auto& more) {
    values.insert(values.end(), more.begin(), more.end());
  };
  append(batch.tokens, sample.tokens);
  append(batch.labels, sample.labels);
  append(batch.loss_mask, sample.loss_mask);
  append(batch.position_ids, sample.position_ids);
  if (!sample.document_starts.empty()) {
    batch.document_starts.push_back(std::move(sample.document_starts));
  }
}

Batch EpochSource::micro_batch(BatchPosition position,
                               int64_t micro_index,
                               int64_t micro_batch_num,
                               int64_t micro_batch_size,
                               int64_t dp_rank,
                               int64_t dp_size) {
  internal::check_layout(position, micro_index, micro_batch_num, micro_batch_size, dp_rank,
                         dp_size);
  const int64_t first =
      position.first_sample + micro_index * micro_batch_size * dp_size + dp_rank * micro_batch_size;
  Batch batch;
  batch.batch = micro_batch_size;
  batch.seq = options_.seq_length;
  for (int64_t drawn = first; drawn < first + micro_batch_size; ++drawn) {
    add(batch, number_of(drawn));
    batch.sample_ids.push_back(drawn);
  }
  const auto rows = static_cast<size_t>(micro_batch_size);
  check<ValueError>(
      (batch.position_ids.empty() || batch.position_ids.size() == batch.tokens.size()) &&
          (batch.document_starts.empty() || batch.document_starts.size() == rows),
      "data: of samples ", first, " to ", first + micro_batch_size - 1,
      " some have positions or documents and some have none; give them to all or to none");
  return batch;
}

}  // namespace tapestry::data
