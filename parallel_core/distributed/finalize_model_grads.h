// What has to happen to gradients after the last backward pass of a step.
#pragma once

#include "nn/module.h"

namespace tapestry {

/// Completes the gradients of a step on the current rank. A collective call: every rank makes it
/// once a step, after the last micro-batch, before anything reads the gradients.
void finalize_model_grads(nn::Module& model);

/// The tensor-parallel part of it: sums the gradients of parameters of which each rank of the
/// tensor-parallel group has only its share (TensorParallel::kPartial), and of the slices that
/// several ranks hold (LogicalTensor::copies), in one all-reduce in float32. Nothing where the
/// group has one rank.
void all_reduce_partial_gradients(const nn::Module& model);

/// By how much sum(gradient^2) over the tensor-parallel ranks exceeds that of the global tensor for
/// this rank's share of a sharded parameter: slices that n ranks hold count n times, so (n - 1) / n
/// of their squares on each.
double repeated_squares(const nn::Parameter& parameter, const Tensor& gradient);

/// The pipeline's part: sums the gradients of tied embeddings over the stages that have a copy
/// (flags has_copy and shared), so that all copies get the same update. A parameter without a
/// gradient counts as zeros.
void sum_tied_embedding_gradients(const nn::Module& model);

}  // namespace tapestry
