// Why stored weights do not fit a model, where the names of their tensors tell.
#pragma once

#include <set>
#include <string>

#include "interop/architectures/file_place.h"
#include "nn/module.h"

namespace tapestry {

/// What weights are held against.
struct MisfitModel {
  std::string head;   ///< the file's name of the output matrix
  std::string table;  ///< and of the table of embeddings
  bool tied = false;  ///< the model has one matrix for both
  bool adapter = false;
};

/// A sentence for each cause that is known, on lines of their own; empty for none: wrappers in
/// front of the names (torch.compile, DistributedDataParallel, FSDP, models of several parts), an
/// output matrix that config.json ties and the file does not, or the other way round.
std::string explain_misfit(const nn::LoadReport& report,
                           const std::set<std::string>& names,
                           const MisfitModel& model);

}  // namespace tapestry
