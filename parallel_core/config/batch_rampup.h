// How many sequences the steps of a run have: training_config.rampup_batch_size.
#pragma once

#include <cstdint>
#include <limits>

#include "parallel_core/config/config.h"

namespace tapestry {

/// ValueError, naming the key, for a ramp-up that this number of data-parallel ranks cannot have:
/// it begins above the global batch, the increments do not lead there, or a level is no multiple of
/// batch_size * data_parallel_size, the sequences of one micro-batch of all ranks.
void check_rampup(const AllConfig& config, int64_t data_parallel_size);

/// The global batch G = batch_size * micro_batch_num * data_parallel_size grows over a run's first
/// sequences. With rampup_batch_size [start, increment, samples] and k = (G - start) / increment, a
/// step that begins after `consumed` sequences of the run has
///
///   min(start + int(consumed / (samples / k)) * increment, G), and G if consumed > samples,
///
/// in double precision, as Megatron-LM and MindFormers 2.0 compute it. Without the key, and with k
/// or samples 0, it is always G. All numbers are sequences of all ranks.
class BatchSchedule {
 public:
  BatchSchedule(const AllConfig& config, int64_t data_parallel_size);

  bool ramps() const { return levels_ > 0; }
  /// G.
  int64_t full() const { return full_; }
  /// Of the step that begins after so many sequences.
  int64_t batch_at(int64_t consumed) const;
  /// The same in micro-batches of each data-parallel rank.
  int64_t micro_batches_at(int64_t consumed) const { return batch_at(consumed) / unit_; }

  static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
  struct Reach {
    int64_t steps = 0;
    int64_t consumed = 0;
  };
  /// Goes on from `consumed` by whole steps, as long as they are at most `steps` and end at or
  /// before `samples`, one of which is a limit. Time in proportion to the levels passed.
  Reach reach(int64_t consumed, int64_t steps, int64_t samples = kNoLimit) const;

  /// Sequences that the run has drawn after so many steps, the first of which begins at `from`.
  int64_t consumed_after(int64_t steps, int64_t from = 0) const {
    return reach(from, steps).consumed;
  }
  /// Whole steps from `from` on until `samples` sequences are drawn, which the last one does not
  /// exceed.
  int64_t steps_within(int64_t samples, int64_t from = 0) const {
    return reach(from, kNoLimit, samples).steps;
  }
  /// Steps from `from` on until at least `samples` sequences are drawn.
  int64_t steps_until(int64_t samples, int64_t from = 0) const {
    const Reach whole = reach(from, kNoLimit, samples);
    return whole.steps + (whole.consumed < samples ? 1 : 0);
  }

 private:
  int64_t full_;
  int64_t unit_;  // sequences of one micro-batch of all ranks
  int64_t start_ = 0;
  int64_t increment_ = 0;
  int64_t samples_ = 0;
  int64_t levels_ = 0;  // 0: none but the full batch
};

}  // namespace tapestry
