// Samples of a program's own, epoch after epoch.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "parallel_core/data/data_source.h"
#include "parallel_core/data/token_dataset.h"

namespace tapestry::data {

struct EpochSourceOptions {
  int64_t size = 0;        ///< samples of an epoch
  int64_t seq_length = 0;  ///< tokens of each
  /// Sample i, from 0 on: as many tokens and labels as seq_length. Without a loss mask all labels
  /// count that are not negative. The same whenever it is asked for, on every rank.
  std::function<Sample(int64_t i)> sample;
  bool shuffle = true;  ///< each epoch in an order of its own, that of the seed
  int64_t seed = 1234;
  int64_t vocab_size = 0;  ///< of the model: ids are checked; 0: they are not
};

/// Gives out the samples without end. The k-th one that a run draws is sample k mod size of epoch
/// k / size, whatever the layout and the batch; a chunk of micro_batch_size * dp_size consecutive
/// ones is a micro-batch of all ranks, as with TokenDataSource. The order of epoch e is that of
/// numpy.random.RandomState((seed + e) mod 2^32).shuffle.
class EpochSource final : public DataSource {
 public:
  /// ValueError without a function, and for a size or length below 1.
  explicit EpochSource(EpochSourceOptions options);

  /// ValueError, naming the sample, for one with another number of tokens, labels or mask values,
  /// and for ids beyond vocab_size.
  Batch micro_batch(BatchPosition position,
                    int64_t micro_index,
                    int64_t micro_batch_num,
                    int64_t micro_batch_size,
                    int64_t dp_rank,
                    int64_t dp_size) override;
  int64_t seq_length() const override { return options_.seq_length; }
  /// Beyond any run. An evaluation reads eval_iters global batches, from the first sample on.
  int64_t size_in_samples() const override { return int64_t{1} << 53; }
  int64_t epoch(int64_t first_sample) const override { return first_sample / options_.size; }

 private:
  int64_t number_of(int64_t drawn);
  void add(Batch& batch, int64_t number) const;

  EpochSourceOptions options_;
  std::mutex mutex_;
  int64_t ordered_epoch_ = -1;
  std::vector<int64_t> order_;  // of that epoch
};

}  // namespace tapestry::data
