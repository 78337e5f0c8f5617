#include "nn/parameter.h"

#include "autograd/tensor/error.h"

namespace tapestry::nn {

Tensor LogicalTensor::view_of(const Tensor& whole) const {
  check<ValueError>(whole.is_contiguous() && whole.numel() == view_shape.numel(), name,
                    ": cannot be cut from ", describe(whole), " seen as ", view_shape);
  check<ValueError>(axis >= 0 && axis < view_shape.size() && begin >= 0 && begin <= end &&
                        end <= view_shape[axis],
                    name, ": no piece [", begin, ", ", end, ") along axis ", axis, " of ",
                    view_shape);
  const Strides strides = contiguous_strides(view_shape);
  Shape piece = view_shape;
  piece[axis] = end - begin;
  return alias(whole, piece, strides, whole.offset() + begin * strides[axis]);
}

}  // namespace tapestry::nn
