// The norm of all gradients of a model whose parameters and gradients are spread over ranks.
#pragma once

#include "nn/module.h"
#include "parallel_core/distributed/distributed_data_parallel.h"

namespace tapestry {

/// True if this rank's part of the parameter is to be counted in a sum over the ranks of the tensor
/// and pipeline groups: a slice always, what all tensor-parallel ranks hold equally only on the
/// first of them, a further copy of a tied weight never.
bool counts_in_norm(const nn::Parameter& parameter);

/// The sum over the ranks of the tensor- and pipeline-parallel groups; the same bits on all.
/// Collective.
double sum_over_model_parallel(double value);

/// Euclidean norm of all gradients of the whole model, each element counted once, squares summed in
/// double precision; the same bits on every rank. NaN or infinity exactly if some gradient element
/// on some rank is not finite. `data_parallel`: who has reduced the gradients, null for one
/// data-parallel rank. Collective.
double global_grad_norm(const nn::Module& model, const DistributedDataParallel* data_parallel);

}  // namespace tapestry
