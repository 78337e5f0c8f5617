// What of a run is that of a reference: weights, gradients, values, so that faults are told apart.
#pragma once

#include <string>

#include "parallel_core/config/config.h"
#include "parallel_core/training/pretrain.h"

namespace tapestry {

/// Folders of a reference; empty: the run's own. See docs/injection.md.
struct Injection {
  std::string weights;  ///< a dump (dumped_start_weights), or what load_checkpoint takes
  std::string grads;    ///< ReferenceGradients
  std::string data;     ///< recorded steps (data/step_dataset.h)
  std::string inputs;   ///< a dump: InjectedValues
  std::string map;      ///< file with the reference's names (accuracy::NameMap); empty: the same

  bool any() const { return !(weights + grads + data + inputs).empty(); }
};

/// What the configuration has to be told for it: overrides in front of its own (LoadOptions).
/// IoError for a folder that is none.
std::vector<std::string> injection_overrides(const Injection& injection);

/// Adds to the options of a run what the overrides do not say. Files are opened here, so that what
/// is wrong with them is said before anything is made. ValueError for a map without a folder whose
/// names it could change; IoError and ValueError of the readers.
void add_injection(const Injection& injection, const AllConfig& config, PretrainOptions& options);

}  // namespace tapestry
