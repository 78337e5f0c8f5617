// Recorded activations as one process has them.
#pragma once

#include <map>
#include <string>

#include "autograd/tensor/tensor.h"
#include "parallel_core/transformer/activation_recorder.h"

namespace tapestry {

/// What this rank's recorder holds, with what the other tensor- and context-parallel ranks have of
/// the same values, by their placements: on every rank of these groups, which all make the call. A
/// pipeline's stages keep their own values apart (gather_over_pipeline).
std::map<std::string, Tensor> whole_activations(const ActivationRecorder& recorder);

}  // namespace tapestry
