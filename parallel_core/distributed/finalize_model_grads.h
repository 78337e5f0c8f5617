// What has to happen to gradients after the last backward pass of a step.
#pragma once

#include <vector>

#include "nn/module.h"

namespace tapestry {

using ParameterList = std::vector<const nn::Parameter*>;

/// Completes the gradients of a step on the current rank: what the ranks of the tensor-parallel
/// group have to add, then what the stages of a pipeline have to. A collective call: every rank
/// makes it once a step, after the last micro-batch, before anything reads the gradients; where
/// data-parallel ranks reduce them bucket by bucket, before that, for each bucket's parameters.
void finalize_model_grads(const ParameterList& parameters);

/// The tensor-parallel part of it: sums the gradients of parameters of which each rank of the
/// tensor-parallel group has only its share (TensorParallel::kPartial), and of the slices that
/// several ranks hold (LogicalTensor::copies), in one all-reduce in float32, of exact sums in
/// float64; for parameters of experts in one over the expert-tensor-parallel group. Nothing where
/// the group has one rank.
void all_reduce_partial_gradients(const ParameterList& parameters);

/// The pipeline's part: sums the gradients of tied embeddings over the stages that have a copy
/// (flags has_copy and shared), so that all copies get the same update. A parameter without a
/// gradient counts as zeros.
void sum_tied_embedding_gradients(const ParameterList& parameters);

/// What belongs to a logical tensor whose slices several ranks hold, of a gradient whose elements
/// are the parameter's from number `first` on: [n], which may be 0. RuntimeError unless the slice
/// lies together in its parameter.
Tensor part_with_copies(const nn::LogicalTensor& logical, const Tensor& gradient, int64_t first);

/// By how much sum(gradient^2) over the tensor-parallel ranks exceeds that of the global tensor for
/// this rank's share of a sharded parameter: slices that n ranks hold count n times, so (n - 1) / n
/// of their squares on each. `gradient` holds the parameter's elements from number `first` on.
double repeated_squares(const nn::Parameter& parameter, const Tensor& gradient, int64_t first = 0);

}  // namespace tapestry
