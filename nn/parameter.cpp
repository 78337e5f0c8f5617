#include "nn/parameter.h"

#include "autograd/ops/map.h"
#include "autograd/tape/leaf_state.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"

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

Tensor LogicalTensor::slice_of(const Tensor& global) const {
  check<ValueError>(global.shape() == shape, name, ": is ", shape, ", got ", describe(global));
  const Shape& local = local_shape();
  const Shape start = offset.empty() ? Shape::filled(shape.size(), 0) : offset;
  check<ValueError>(local.size() == shape.size() && start.size() == shape.size(), name, ": ", local,
                    " at ", start, " is no slice of ", shape);
  int64_t first = global.offset();
  for (int64_t i = 0; i < shape.size(); ++i) {
    check<ValueError>(start[i] >= 0 && local[i] >= 0 && start[i] + local[i] <= shape[i], name, ": ",
                      local, " at ", start, " is no slice of ", shape);
    first += start[i] * global.strides()[i];
  }
  return alias(global, local, global.strides(), first);
}

Tensor Parameter::compute_copy(DType wanted) const {
  if (dtype() == wanted) {
    return *this;
  }
  Tensor copy = compute_copy_buffer(*this);
  if (!copy.defined() || copy.dtype() != wanted) {
    const MemoryKindGuard kind(MemoryKind::kParameter);
    copy = empty(shape(), wanted);
  } else if (leaf_state(*this)->compute_copy_version == version()) {
    return copy;
  }
  copy_values(detach(), copy);
  set_compute_copy(*this, copy);
  return copy;
}

}  // namespace tapestry::nn
