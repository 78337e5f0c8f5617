// What the fault drill holds trainings against: stored PyTorch trainings, and runs of ours from
// their weights and data where PyTorch's programs lack what is to be drilled.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "diagnosis/verify/verify_layout.h"
#include "tests/parallel_core/small_model.h"
#include "tests/temp_dir.h"

namespace tapestry::testing {

/// A stored training, and what is changed of it on both sides. With changes the reference is a run
/// of ours.
struct DrillModel {
  std::string stored = "llama_tiny";
  Overrides changes = {};
  /// False: what the changes make has tensors of its own, so it starts from initial weights.
  bool starts_from_stored = true;

  bool operator<(const DrillModel& other) const {
    return std::pair(stored, changes) < std::pair(other.stored, other.changes);
  }
};

/// The folder of a stored training: a path, or the name of one of the project's own.
std::string stored_folder(const std::string& name);

/// Our configuration of the model. In float32 the head is not fused with the loss, so that there
/// are logits to be compared.
ConfigLoader loader_of(const DrillModel& model);

/// Makes the references that are asked for, each once.
class DrillReferences {
 public:
  /// The folder that find_fault takes.
  std::string folder_of(const DrillModel& model);

 private:
  data::TempDir folder_;
  std::map<DrillModel, std::string> made_;
};

}  // namespace tapestry::testing
