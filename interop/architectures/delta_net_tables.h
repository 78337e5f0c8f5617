// Names of tensors of layers with a gated delta net, as Qwen's models have them.
#pragma once

#include <vector>

#include "interop/architectures/architecture.h"

namespace tapestry::architectures {

/// Llama's names with `more` and Qwen3.5's of linear_attn; the matrix of queries has their gates
/// behind those of each head.
TensorNames qwen3_5_names(std::vector<NamePair> more, bool has_experts);

/// Qwen3-Next's, where queries, keys, values and z lie in one matrix, grouped by heads of keys, and
/// so do b and a.
TensorNames qwen3_next_names();

/// Rows of the router and of a shared expert with a gate, as Qwen's mixtures call them.
std::vector<NamePair> qwen_shared_expert_rows();

}  // namespace tapestry::architectures
