// Weights and gradients of a reference: whole tensors of a step, by logical name.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "diagnosis/accuracy/tensor_names.h"
#include "parallel_core/dist_checkpointing/logical_state.h"

namespace tapestry {

/// Whether the folder is a dump (docs/dump.md): it has folders rank_N.
bool is_dump_folder(const std::string& folder);

/// The weights that the first iteration of a dump began with, from rows of op_type Parameter, names
/// through `map`: those that are not of the pass "optimizer", else the weights after the update
/// less Updates/NAME. IoError for a dump that cannot be read; ValueError, saying what to dump, if
/// it has neither, and for a tensor whose values are not all there.
LogicalState dumped_start_weights(const std::string& folder, const accuracy::NameMap& map);

/// Gradients of steps, before clipping, unscaled. A folder has one of
///   grads_step_N.safetensors           N from 1 on, as training_config.dump_grad_steps writes them
///   step_N/grad_ID.npy                 a file per tensor, N from 1 on; ID, through the map, its
///                                      name
///   grad_ID.npy                        of the first step, as the accuracy guide saves them
///   a dump                             Gradients/NAME of op_type Parameter in iteration N - 1
class ReferenceGradients {
 public:
  /// IoError for a folder that cannot be read; ValueError if it has no gradients of any step.
  ReferenceGradients(std::string folder, accuracy::NameMap map);

  /// Ascending, from 1 on.
  const std::set<int64_t>& steps() const { return steps_; }
  /// Float32 or float64, names through the map; none for a step that is not there. IoError,
  /// ValueError as dumped_start_weights.
  std::optional<LogicalState> of_step(int64_t step) const;

 private:
  LogicalState npy_files(const std::string& folder) const;

  enum class Form : uint8_t { kSafetensors, kNpy, kFlatNpy, kDump };

  std::string folder_;
  accuracy::NameMap map_;
  Form form_ = Form::kSafetensors;
  std::set<int64_t> steps_;
};

}  // namespace tapestry
