#include "diagnosis/verify/sample_recorder.h"

#include "parallel_core/random.h"

namespace tapestry {

void SampleRecorder::value_made(const ObservedValue& value) {
  const std::vector<int64_t>& ids = random_context().sample_ids;
  for (size_t row = 0; row < ids.size(); ++row) {
    const ActivationKey key = {std::string(value.name), ids[row]};
    if (samples_.contains(ids[row]) && !rows_.contains(key)) {
      rows_.emplace(key,
                    RecordedRow{row_of(value, static_cast<int64_t>(row)), placement_of_row(value)});
      order_.push_back(key);
    }
  }
}

std::set<int64_t> watched_samples(const std::vector<data::Batch>& batches, size_t parts) {
  std::set<int64_t> samples;
  for (size_t i = 0; i < batches.size(); ++i) {
    if ((i < parts || i + parts >= batches.size()) && !batches[i].sample_ids.empty()) {
      samples.insert(batches[i].sample_ids.front());
    }
  }
  return samples;
}

}  // namespace tapestry
