// The hashes that a run in exact mode (training_config.exact) has recorded of its steps.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tapestry::accuracy {

struct RunHashes {
  std::string folder;
  std::map<int64_t, std::string> steps;  ///< the hash of each step that has one
  std::vector<int64_t> without;          ///< steps that have none: not exact mode
  std::map<int64_t, int64_t> tokens;     ///< of each step, on all ranks
};

/// Of the output folder of a run. A step that was trained again counts as it was the last time.
/// IoError for a folder without metrics.jsonl or one that is none.
RunHashes read_run_hashes(const std::string& folder);

/// What computes the same bits, as a hash names it: "f32" of "f32:0123". Empty for a hash that
/// names none.
std::string class_of_hash(const std::string& hash);

/// The hash of each logical tensor after a step, in the order of the model; empty where the run has
/// none of that step.
std::vector<std::pair<std::string, std::string>> read_parameter_hashes(const std::string& folder,
                                                                       int64_t step);

}  // namespace tapestry::accuracy
