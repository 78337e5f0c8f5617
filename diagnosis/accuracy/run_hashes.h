// The hashes that a run in exact mode (training_config.exact) has recorded of its steps.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
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

/// Hashes by logical name.
using NamedHashes = std::vector<std::pair<std::string, std::string>>;

/// What the hash of a step is made of. Empty where a run has not recorded it.
struct StepHashes {
  std::string loss;  ///< bits of the number, as grad_norm
  std::string grad_norm;
  NamedHashes gradients;   ///< before clipping, in the order of the model
  NamedHashes parameters;  ///< after the update, likewise

  bool known() const { return !parameters.empty(); }
};

/// Those of a step, from hashes.jsonl beside metrics.jsonl. IoError for a file that is none.
StepHashes read_step_hashes(const std::string& folder, int64_t step);

/// In what two steps differ.
struct HashDifference {
  bool loss = false;
  bool grad_norm = false;
  std::vector<std::string> gradients;   ///< from the head back, as they are computed
  std::vector<std::string> parameters;  ///< in the order of the model
  size_t of = 0;                        ///< parameters there are

  /// What is computed first of all that differs: "loss", "gradients", "parameters"; empty: none.
  std::string earliest() const;
  /// The tensor to name; empty: none.
  std::string tensor() const;
  /// "the loss, 3 of 20 gradients, from the head back first lm_head.weight, and ..."
  std::string text() const;
};
HashDifference difference_of(const StepHashes& a, const StepHashes& b);

}  // namespace tapestry::accuracy
