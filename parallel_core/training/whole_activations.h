// Recorded activations as one process has them.
#pragma once

#include <map>
#include <string>

#include "autograd/tensor/tensor.h"
#include "parallel_core/config/config.h"

namespace tapestry {

/// What an ActivationRecorder of this rank holds, with the heads, channels and tokens that other
/// tensor- and context-parallel ranks have of the same values: on every rank of these groups, which
/// all make the call. A pipeline's stages keep their own values apart (gather_over_pipeline).
std::map<std::string, Tensor> whole_activations(const std::map<std::string, Tensor>& own,
                                                const AllConfig& config);

}  // namespace tapestry
