// Training data for tests, made when they are asked for.
#pragma once

#include <cstdint>
#include <utility>

#include "parallel_core/data/data_source.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry::testing {

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
    return make_batch(config_, micro_batch_size,
                      position.first_sample + (micro_index * dp_size + dp_rank) * micro_batch_size);
  }
  int64_t seq_length() const override { return config_.model_config.seq_length; }
  int64_t size_in_samples() const override { return int64_t{1} << 40; }
  int64_t epoch(int64_t /*first_sample*/) const override { return 0; }

 private:
  AllConfig config_;
};

}  // namespace tapestry::testing
