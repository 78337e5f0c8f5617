// Training data for tests, made when they are asked for.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "parallel_core/data/data_source.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry::testing {

/// Makes documents of each row, no two rows alike, as dataset_config.reset_attention_mask and
/// reset_position_ids say.
inline void add_documents(const DatasetConfig& config, data::Batch& batch) {
  for (int64_t row = 0; row < batch.batch; ++row) {
    const auto id = static_cast<uint64_t>(batch.sample_ids[static_cast<size_t>(row)]);
    std::vector<int64_t> starts;
    for (int64_t i = 0; i < batch.seq; ++i) {
      if (i == 0 || combine(id, 1000 + static_cast<uint64_t>(i)) % 5 == 0) {
        starts.push_back(i);
      }
      if (config.reset_position_ids) {
        batch.position_ids.push_back(i - starts.back());
      }
    }
    if (config.reset_attention_mask) {
      batch.document_starts.push_back(std::move(starts));
    }
  }
}

/// Endless numbered samples in which no two are alike, as make_batch makes them. The data-parallel
/// ranks of a step have together the samples that one rank has in its step.
class MadeUpSamples final : public data::DataSource {
 public:
  explicit MadeUpSamples(AllConfig config) : config_(std::move(config)) {}

  data::Batch micro_batch(data::BatchPosition position,
                          int64_t micro_index,
                          int64_t /*micro_batch_num*/,
                          int64_t micro_batch_size,
                          int64_t dp_rank,
                          int64_t dp_size) override {
    data::Batch batch =
        make_batch(config_, micro_batch_size,
                   position.first_sample + (micro_index * dp_size + dp_rank) * micro_batch_size);
    add_documents(config_.dataset_config, batch);
    return batch;
  }
  int64_t seq_length() const override { return config_.model_config.seq_length; }
  int64_t size_in_samples() const override { return int64_t{1} << 40; }
  int64_t epoch(int64_t /*first_sample*/) const override { return 0; }

 private:
  AllConfig config_;
};

}  // namespace tapestry::testing
