// hashes.jsonl: what each tensor of a run in exact mode hashed to after each step, beside
// metrics.jsonl, so that two runs can be compared tensor by tensor.
#pragma once

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "parallel_core/dist_checkpointing/state_hash.h"

namespace tapestry {

/// What a step is known by; see step_hash.
struct HashesOfStep {
  TensorHashes parameters;  ///< after the step
  TensorHashes gradients;   ///< empty where they were not finite
  double loss = 0;
  double grad_norm = 0;
};

/// A line that names the tensors, again where they or the class change:
///
///   {"class":"float32-fma","names":["layers.0.attention.wq.weight",..]}
///
/// and one for each step, with 8 digits (short_hash) for each tensor, in that order, and the bits
/// of loss and norm as 16:
///
///   {"step":3,"loss":"400f..","grad_norm":"3ff0..","parameters":"81c0..","gradients":"07e1.."}
///
/// Without gradients where they were not finite; what is not trained has 00000000 among them.
class HashesFile {
 public:
  /// Starts the file anew, or with `resume_step` goes on with it behind the lines of that step.
  /// IoError if it cannot be written.
  HashesFile(std::string path, std::optional<int64_t> resume_step);

  /// IoError.
  void write(int64_t step, const std::string& bit_class, const HashesOfStep& hashes);

 private:
  void write_names(const std::string& bit_class, const TensorHashes& hashes);

  std::string path_;
  std::ofstream file_;
  std::string names_line_;  // in force; what it says, once a step has been written:
  std::string written_class_;
  std::vector<std::string> written_names_;
};

}  // namespace tapestry
