// What LFM2's models have in common.
#pragma once

#include "interop/architectures/architecture.h"

namespace tapestry::architectures {

TensorNames lfm2_names(bool has_experts);
/// All but the kinds of layers and what their MLPs are.
Rules lfm2_rules(int64_t vocabulary, int64_t hidden, int64_t layers);

}  // namespace tapestry::architectures
