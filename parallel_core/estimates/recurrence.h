// What the states of layers without attention cost.
#pragma once

#include "parallel_core/config/config.h"

namespace tapestry {

/// FLOPs of a token in the products of the recurrence, forward, of all heads; 0 for attention and
/// short convolutions. They are products of chunks of 64 tokens (autograd/ops/transformer).
double recurrence_flops(const TransformerConfig& model, MixerKind kind);

/// Bytes of the states at the borders of chunks, for each token; they are kept for the backward
/// pass, also where a layer is recomputed.
double kept_states(const TransformerConfig& model, MixerKind kind);

}  // namespace tapestry
