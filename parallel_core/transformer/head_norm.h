// Norms of queries and keys.
#pragma once

#include <memory>
#include <string>

#include "nn/module.h"
#include "parallel_core/config/config.h"
#include "parallel_core/tensor_parallel/tensor_parallel_layout.h"

namespace tapestry {

/// Heads of one kind, queries or keys, and which of them this rank has.
struct HeadRange {
  int64_t first = 0;
  int64_t count = 0;
  int64_t total = 0;
  int64_t copies = 1;    ///< ranks of the tensor-parallel group that hold these same heads
  int64_t channels = 0;  ///< of a head; 0: kv_channels
};

/// By config.qk_layernorm_scope, for x [B, n, S, D] with this rank's heads, whose result has the
/// activations' dtype and the same shape:
/// - head: config.normalization over D, one gain [D] (and bias) for all heads;
/// - each_head: the same without bias, and a gain [D] for each head, `logical_name`.H.weight; every
///   rank has those of all heads;
/// - projection: x / sqrt(mean(x^2) + eps) over all heads of the model, a gain [total * D], of
/// which
///   the rank has that of its heads. Where tensor-parallel ranks divide the heads, the sums of
///   squares are added over the group, in forward and in backward. Source: Groeneveld et al. 2024
///   (OLMo 2), arXiv:2501.00656.
std::unique_ptr<nn::UnaryModule> get_head_norm(const TransformerConfig& config,
                                               const HeadRange& heads,
                                               const std::string& logical_name,
                                               const TensorParallelLayout& layout);

}  // namespace tapestry
