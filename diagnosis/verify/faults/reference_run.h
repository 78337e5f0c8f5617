// A training that ours is held against: what another program, or an earlier version, has stored.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "diagnosis/accuracy/tensor_names.h"
#include "parallel_core/config/config.h"
#include "parallel_core/dist_checkpointing/logical_state.h"
#include "parallel_core/dist_checkpointing/named_state.h"

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
///   data/, init.safetensors, trace.jsonl, config.json     a replay case (docs/replay.md)
///   config.yaml, metrics.jsonl                            the output folder of a run
/// and in both, as far as they were asked for, grads_step_N, acts_step_N and weights_step_N
/// .safetensors; final.safetensors of a replay case are the weights after its last step. The
/// config.json of a case that another program has written (tools/torch_dump.py) may be Hugging
/// Face's, of the program's own, or missing.
class ReferenceRun {
 public:
  /// IoError for a folder that is neither, or a file that is malformed. `map`: what its tensors are
  /// called here.
  explicit ReferenceRun(const std::string& folder, accuracy::NameMap map = {});

  const std::string& folder() const { return folder_; }
  /// The file that says how it was configured: what a checklist reads. Empty where there is none.
  const std::string& config_file() const { return config_file_; }
  /// The same, as a run of ours in one process that repeats it; nothing where the file does not say
  /// enough for that.
  const std::optional<AllConfig>& config() const { return config_; }
  /// Of a case without such a configuration: what one of ours has to be told to have the case's
  /// data.
  std::string data_override() const;
  /// Sequences of a step of a case, all ranks together; 0 where that is not known.
  int64_t rows_of_step() const;
  /// Start weights of a case.
  LogicalState start_weights() const;
  /// Whose logical tensors its own stand for: from then on those that have names of another program
  /// (in_logical_names) have these.
  void set_tensors(LogicalShapes tensors, const TransformerConfig& config);

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
  LogicalState named(LogicalState found) const;

  std::string folder_;
  std::string config_file_;
  bool is_case_;
  accuracy::NameMap map_;
  std::optional<AllConfig> config_;
  LogicalShapes tensors_;
  TransformerConfig model_;
  std::vector<ReferenceStep> steps_;
};

}  // namespace tapestry
