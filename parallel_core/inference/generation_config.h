// What generation_config.json beside weights says of how texts are made.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "parallel_core/inference/sampling.h"

namespace tapestry {

/// The file's suggestions; empty where it says nothing.
struct SuggestedSampling {
  std::string file;  ///< empty: there is none
  std::optional<bool> do_sample;
  std::optional<double> temperature;
  std::optional<int64_t> top_k;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
  std::optional<int64_t> max_new_tokens;
  std::vector<int32_t> eos_token_ids;  ///< all of them

  /// "temperature 0.6, top_p 0.9": what differs from the defaults of GenerationOptions; empty if
  /// nothing does.
  std::string describe() const;
  /// Where the file says something, that; do_sample: false is a temperature of 0.
  void apply_to(GenerationOptions& options) const;
};

/// Reads FOLDER/generation_config.json, if it is there. IoError for a file that is no JSON object,
/// ValueError, naming the key, for a value of another type or outside its range.
SuggestedSampling read_generation_config(const std::string& folder);

}  // namespace tapestry
