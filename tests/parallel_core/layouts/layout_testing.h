// Layouts of small models against one process.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "parallel_core/training/verify_layout.h"
#include "tests/parallel_core/parallel_testing.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry::testing {

/// Endless numbered samples in which no two are alike, as make_batch makes them.
class MadeUpSamples final : public data::DataSource {
 public:
  explicit MadeUpSamples(AllConfig config) : config_(std::move(config)) {}

  data::Batch micro_batch(int64_t step,
                          int64_t micro_index,
                          int64_t micro_batch_num,
                          int64_t micro_batch_size,
                          int64_t dp_rank,
                          int64_t dp_size) override {
    const int64_t chunk = step * micro_batch_num + micro_index;
    return make_batch(config_, micro_batch_size, (chunk * dp_size + dp_rank) * micro_batch_size);
  }
  int64_t seq_length() const override { return config_.model_config.seq_length; }
  int64_t size_in_samples() const override { return int64_t{1} << 40; }
  int64_t epoch(int64_t /*step*/, int64_t /*global_batch_size*/) const override { return 0; }

 private:
  AllConfig config_;
};

inline LayoutParts made_up_data() {
  LayoutParts parts;
  parts.data = [](const AllConfig& config) { return std::make_unique<MadeUpSamples>(config); };
  return parts;
}

/// A small_config in a layout and in one process.
inline LayoutPair small_pair(const std::string& layout, const Overrides& overrides = {}) {
  return load_layout_pair(layout, [&](const Overrides& more) {
    Overrides all = overrides;
    all.insert(all.end(), more.begin(), more.end());
    return small_config(all);
  });
}

}  // namespace tapestry::testing
