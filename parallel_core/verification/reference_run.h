// A training that ours is held against: what another program, or an earlier version, has stored.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "parallel_core/config/config.h"
#include "parallel_core/dist_checkpointing/logical_state.h"

namespace tapestry {

/// What the reference says about a step; absent where it does not.
struct ReferenceStep {
  std::optional<double> loss;
  std::optional<double> grad_norm;
  std::optional<double> loss_tokens;
  std::vector<double> lr;
  std::map<std::string, double> grad_norms;  ///< by logical tensor
};

/// A folder with either
///   config.json, data/, init.safetensors, trace.jsonl     a replay case (docs/replay.md)
///   config.yaml, metrics.jsonl                            the output folder of a run
/// and in both, as far as they were asked for, grads_step_N, acts_step_N and weights_step_N
/// .safetensors; final.safetensors of a replay case are the weights after its last step.
class ReferenceRun {
 public:
  /// IoError for a folder that is neither, or a file that is malformed.
  explicit ReferenceRun(const std::string& folder);

  const std::string& folder() const { return folder_; }
  /// The file that says how it was configured: what a checklist reads.
  const std::string& config_file() const { return config_file_; }
  /// The same, as a run of ours in one process that repeats it.
  const AllConfig& config() const { return config_; }

  int64_t steps() const { return static_cast<int64_t>(steps_.size()); }
  /// From 1.
  const ReferenceStep& step(int64_t number) const {
    return steps_.at(static_cast<size_t>(number - 1));
  }
  /// Of logical tensors; empty where there are none.
  std::optional<LogicalState> gradients(int64_t step) const;
  std::optional<LogicalState> activations(int64_t step) const;
  std::optional<LogicalState> weights(int64_t step) const;

 private:
  std::optional<LogicalState> state(const char* what, int64_t step) const;

  std::string folder_;
  std::string config_file_;
  bool is_case_;
  AllConfig config_;
  std::vector<ReferenceStep> steps_;
};

}  // namespace tapestry
