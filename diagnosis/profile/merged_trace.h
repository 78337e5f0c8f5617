// Traces of several ranks on one clock.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "autograd/io/json.h"

namespace tapestry::profile {

/// From a rank's clock to that of rank 0; nanoseconds.
class ClockCorrection {
 public:
  /// What both clocks showed at the same barriers, at the start and at the end.
  ClockCorrection(const std::vector<int64_t>& start,
                  const std::vector<int64_t>& end,
                  const std::vector<int64_t>& start_of_first,
                  const std::vector<int64_t>& end_of_first);

  int64_t operator()(int64_t time) const;
  int64_t shift() const { return shift_; }  ///< at the start
  double scale() const { return 1 + drift_; }

 private:
  int64_t start_;
  int64_t shift_;
  double drift_;  // what the shift changes by in a nanosecond
};

/// The trace of one rank, as write_rank_files wrote it: nlohmann's view of rank_K/trace.json.
struct RankTrace {
  std::string path;
  nlohmann::json json;
};

/// Writes all of them as one, with arrows; see analyse(). IoError for traces that do not fit.
void write_merged_trace(std::vector<RankTrace> traces, const std::string& path);

}  // namespace tapestry::profile
