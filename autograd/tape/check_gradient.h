// The one check of a gradient that comes in from outside, whatever the door.
#pragma once

#include "autograd/tape/node.h"
#include "autograd/tensor/error.h"

namespace tapestry {

/// ValueError unless the gradient has the shape, TypeError unless it has the dtype, of the tensor
/// that it belongs to: a gradient is never converted or broadcast silently. The parts of `what`
/// name it: "set_grad: the gradient", "mul: a hook's result".
template <class... What>
void check_gradient(const Tensor& gradient, const OutputInfo& tensor, const What&... what) {
  check<ValueError>(gradient.shape() == tensor.shape, what..., " is ", describe(gradient),
                    ", the tensor ", name_of(tensor.dtype), " ", tensor.shape);
  check<TypeError>(gradient.dtype() == tensor.dtype, what..., " is ", describe(gradient),
                   ", the tensor ", name_of(tensor.dtype), " ", tensor.shape);
}
template <class... What>
void check_gradient(const Tensor& gradient, const Tensor& tensor, const What&... what) {
  check<ValueError>(gradient.shape() == tensor.shape(), what..., " is ", describe(gradient),
                    ", the tensor ", describe(tensor));
  check<TypeError>(gradient.dtype() == tensor.dtype(), what..., " is ", describe(gradient),
                   ", the tensor ", describe(tensor));
}

}  // namespace tapestry
