#include "parallel_core/config/batch_rampup.h"

#include <algorithm>

#include "autograd/tensor/error.h"

namespace tapestry {

void check_rampup(const AllConfig& config, int64_t data_parallel_size) {
  const auto& rampup = config.training_config.rampup_batch_size;
  if (!rampup) {
    return;
  }
  constexpr const char* kKey = "training_config.rampup_batch_size";
  const int64_t start = rampup->at(0);
  const int64_t increment = rampup->at(1);
  const int64_t full = global_batch_size(config, data_parallel_size);
  const int64_t unit = config.dataset_config.batch_size * data_parallel_size;
  const std::string batch =
      concat("the global batch of ", full, " = batch_size ", config.dataset_config.batch_size,
             " x micro_batch_num ", config.dataset_config.micro_batch_num, " x ",
             data_parallel_size, " data-parallel ranks");
  check<ValueError>(start <= full, kKey, ": begins with ", start, " sequences, above ", batch,
                    "; begin lower or raise micro_batch_num");
  check<ValueError>((full - start) % increment == 0, kKey, ": from ", start, " sequences steps of ",
                    increment, " do not lead to ", batch, "; choose an increment that divides ",
                    full - start);
  // Levels differ by the increment: the first two decide.
  for (const int64_t level : {start, std::min(start + increment, full)}) {
    check<ValueError>(level % unit == 0, kKey, ": ", level,
                      " sequences are no multiple of one micro-batch of all ranks, batch_size ",
                      config.dataset_config.batch_size, " x ", data_parallel_size,
                      " data-parallel ranks; make start and increment multiples of ", unit);
  }
}

BatchSchedule::BatchSchedule(const AllConfig& config, int64_t data_parallel_size)
    : full_(global_batch_size(config, data_parallel_size)),
      unit_(config.dataset_config.batch_size * data_parallel_size) {
  if (const auto& rampup = config.training_config.rampup_batch_size) {
    start_ = rampup->at(0);
    increment_ = rampup->at(1);
    samples_ = rampup->at(2);
    levels_ = samples_ > 0 ? std::max<int64_t>(0, (full_ - start_) / increment_) : 0;
  }
}

int64_t BatchSchedule::batch_at(int64_t consumed) const {
  if (!ramps() || consumed > samples_) {
    return full_;
  }
  const double of_level = static_cast<double>(samples_) / static_cast<double>(levels_);
  const auto level = static_cast<int64_t>(static_cast<double>(consumed) / of_level);
  return std::min(start_ + level * increment_, full_);
}

BatchSchedule::Reach BatchSchedule::reach(int64_t consumed, int64_t steps, int64_t samples) const {
  Reach reached{.steps = 0, .consumed = consumed};
  while (reached.steps < steps) {
    const int64_t batch = batch_at(reached.consumed);
    int64_t count = std::min(steps - reached.steps, (samples - reached.consumed) / batch);
    if (count <= 0) {
      break;
    }
    if (batch < full_) {
      // The first number of sequences that makes another batch.
      int64_t low = reached.consumed + 1;
      int64_t high = samples_ + 1;
      while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        const bool is_other = batch_at(middle) != batch;
        (is_other ? high : low) = is_other ? middle : middle + 1;
      }
      count = std::min(count, (low - reached.consumed + batch - 1) / batch);
    }
    reached.steps += count;
    reached.consumed += count * batch;
  }
  return reached;
}

}  // namespace tapestry
