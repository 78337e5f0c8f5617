// A loss whose value and gradients are computed beside the tape.
#pragma once

#include "autograd/tensor/tensor.h"

namespace tapestry::post_training {

/// A float64 scalar of this value: parts of a step may be large and cancel out. Run backwards it
/// gives `inputs[i]` the gradient `gradients[i]`, which has the input's shape and dtype, times its
/// own; an undefined one is zero. For losses of few numbers, which are exact in double precision
/// and cost nothing beside the model's passes.
Tensor loss_with_gradients(double value, const TensorList& inputs, TensorList gradients);

}  // namespace tapestry::post_training
