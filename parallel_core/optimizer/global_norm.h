// The norm of all gradients of a model whose parameters and gradients are spread over ranks.
#pragma once

#include "nn/module.h"
#include "parallel_core/distributed/model_gradients.h"

namespace tapestry {

/// Euclidean norm of all gradients of the whole model, each element counted once, squares summed in
/// double precision; the same bits on every rank, and in exact mode in every layout. NaN or
/// infinity exactly if some gradient element on some rank is not finite. Collective, once the
/// gradients are reduced.
double global_grad_norm(const nn::Module& model, const ModelGradients& gradients);

}  // namespace tapestry
