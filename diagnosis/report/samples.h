// Completions that a run has sampled and rewarded, as its samples.jsonl has them.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tapestry::report {

struct SampledCompletion {
  std::string prompt;
  std::string completion;
  /// By the names of the reward functions, NaN where one has given none.
  std::vector<std::pair<std::string, double>> rewards;
  double advantage = 0;
};

struct LastSamples {
  int64_t step = 0;                      ///< of the completions; 0: there are none
  int64_t count = 0;                     ///< that the step has sampled
  std::vector<SampledCompletion> shown;  ///< the first of them
};

/// Those of the file's last step. Lines that are no completions of a step are passed over, as an
/// unfinished last one is. Nothing for a file that is not there. IoError for one that cannot be
/// read.
LastSamples read_last_samples(const std::string& path);

/// A table of them, grouped by prompt; all texts are escaped. Empty without completions.
std::string samples_html(const LastSamples& samples);

}  // namespace tapestry::report
