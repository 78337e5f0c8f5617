#include "autograd/ops/index.h"

#include <algorithm>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/indexing.h"
#include "autograd/ops/inplace.h"
#include "autograd/ops/map.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/factory.h"

namespace tapestry {

namespace {

using indexing::EllipsisType;
using indexing::NoneType;
using indexing::Slice;

using IndexList = std::vector<TensorIndex>;

// Scalar integer tensors as numbers; the other entries as they are.
IndexList resolved(std::initializer_list<TensorIndex> indices) {
  IndexList out;
  for (const TensorIndex& entry : indices) {
    const Tensor* const tensor = std::get_if<Tensor>(&entry.value());
    if (tensor == nullptr) {
      out.push_back(entry);
      continue;
    }
    check<TypeError>(
        !tensor->defined() || tensor->dtype() != kUInt8,
        "index: a uint8 tensor is no mask; convert it with to(kBool), or to(kInt64) if "
        "it holds positions");
    check<TypeError>(tensor->defined() && (tensor->dtype() == kBool || is_index(tensor->dtype())),
                     "index: an index is an int32, int64 or bool tensor, got ", describe(*tensor));
    check<TypeError>(tensor->dtype() != kBool || tensor->dim() > 0,
                     "index: a mask needs at least one axis");
    if (tensor->dim() == 0) {
      out.emplace_back(static_cast<int64_t>(tensor->item()));
    } else {
      out.push_back(entry);
    }
  }
  return out;
}

bool has_tensors(const IndexList& indices) {
  return std::any_of(indices.begin(), indices.end(), [](const TensorIndex& entry) {
    return std::holds_alternative<Tensor>(entry.value());
  });
}

// Axes of the tensor that an entry is about.
int64_t axes_of(const TensorIndex& entry) {
  if (const Tensor* const tensor = std::get_if<Tensor>(&entry.value())) {
    return tensor->dtype() == kBool ? tensor->dim() : 1;
  }
  const bool is_slice = std::holds_alternative<Slice>(entry.value());
  return is_slice || std::holds_alternative<int64_t>(entry.value()) ? 1 : 0;
}

// An index tensor and the axis of the view that it picks from.
struct AxisIndex {
  int64_t axis;
  Tensor index;
};

// The view that all entries but the tensors make; the tensors go to `picks`.
Tensor view_of(const Tensor& x, const IndexList& indices, std::vector<AxisIndex>& picks) {
  int64_t named = 0;
  int64_t ellipses = 0;
  for (const TensorIndex& entry : indices) {
    named += axes_of(entry);
    ellipses += std::holds_alternative<EllipsisType>(entry.value()) ? 1 : 0;
  }
  check<IndexError>(named <= x.dim(), "index: ", named, " indices for a tensor of shape ",
                    x.shape());
  check<IndexError>(ellipses <= 1, "index: more than one Ellipsis");

  Tensor y = x;
  int64_t axis = 0;
  for (const TensorIndex& entry : indices) {
    if (std::holds_alternative<NoneType>(entry.value())) {
      y = unsqueeze(y, axis++);
    } else if (std::holds_alternative<EllipsisType>(entry.value())) {
      axis += x.dim() - named;
    } else if (const int64_t* const at = std::get_if<int64_t>(&entry.value())) {
      y = select(y, axis, *at);
    } else if (const Slice* const range = std::get_if<Slice>(&entry.value())) {
      y = slice(y, axis++, range->start, range->stop, range->step);
    } else {
      const auto& tensor = std::get<Tensor>(entry.value());
      if (tensor.dtype() != kBool) {
        picks.push_back({axis++, tensor});
        continue;
      }
      for (int64_t i = 0; i < tensor.dim(); ++i) {
        check<IndexError>(tensor.shape()[i] == y.shape()[axis + i], "index: the mask ",
                          tensor.shape(), " does not fit axes from ", axis, " of ", y.shape());
      }
      const Tensor places = nonzero(tensor);
      for (int64_t i = 0; i < tensor.dim(); ++i) {
        picks.push_back({axis++, select(places, 1, i)});
      }
    }
  }
  return y;
}

Tensor view_of(const Tensor& x, const IndexList& indices) {
  std::vector<AxisIndex> none;
  return view_of(x, indices, none);
}

Tensor pick(const Tensor& x, const IndexList& indices) {
  std::vector<AxisIndex> picks;
  Tensor y = view_of(x, indices, picks);
  if (picks.empty()) {
    return y;
  }
  // index() picks from leading axes.
  Shape order;
  TensorList tensors;
  Shape common;
  bool neighbours = true;
  for (const AxisIndex& p : picks) {
    neighbours = neighbours && (order.empty() || p.axis == order.back() + 1);
    order.push_back(p.axis);
    tensors.push_back(p.index);
    common = broadcast_shapes("index", common, p.index.shape());
  }
  for (int64_t i = 0; i < y.dim(); ++i) {
    if (std::find(order.begin(), order.end(), i) == order.end()) {
      order.push_back(i);
    }
  }
  Tensor picked = index(permute(y, order), tensors);
  if (!neighbours || picks.front().axis == 0) {
    return picked;
  }
  Shape back;
  const int64_t before = picks.front().axis;
  for (int64_t i = 0; i < before; ++i) {
    back.push_back(common.size() + i);
  }
  for (int64_t i = 0; i < common.size(); ++i) {
    back.push_back(i);
  }
  for (int64_t i = common.size() + before; i < picked.dim(); ++i) {
    back.push_back(i);
  }
  return permute(picked, back);
}

// x with values written to a view of it.
struct SliceAssign {
  static constexpr OpName name = "slice_assign";
  IndexList indices;  // without tensors
  Shape values_shape = {};
  Tensor forward(const Tensor& x, const Tensor& values) {
    values_shape = values.shape();
    Tensor y = dense_copy(x);
    const Tensor place = view_of(y, indices);
    copy_values(broadcast_view(values, place.shape()), place);
    return y;
  }
  std::array<Tensor, 2> backward(const Tensor& dy, NeedsGrad needs) const {
    return {needs[0] ? apply_op(SliceAssign{indices}, dy, zeros({}, dy.dtype())) : Tensor(),
            needs[1] ? sum_to(view_of(dy, indices), values_shape) : Tensor()};
  }
};

// values for a place of that shape, less the axes of 1 in front that the place does not have.
Tensor fitted(const Tensor& values, const Shape& place) {
  Tensor fitting = values;
  while (fitting.dim() > place.size() && fitting.shape()[0] == 1) {
    fitting = select(fitting, 0, 0);
  }
  const int64_t further = place.size() - fitting.dim();
  check<ValueError>(further >= 0, "index_put_: values ", values.shape(), " do not broadcast to ",
                    place, ", which has fewer axes");
  for (int64_t i = 0; i < fitting.dim(); ++i) {
    const int64_t have = fitting.shape()[i];
    check<ValueError>(have == 1 || have == place[further + i], "index_put_: values ",
                      values.shape(), " do not broadcast to ", place, ": axis ", i - fitting.dim(),
                      " has ", have, ", not ", place[further + i], " or 1");
  }
  return fitting;
}

}  // namespace

Tensor Tensor::index(std::initializer_list<TensorIndex> indices) const {
  return pick(*this, resolved(indices));
}

Tensor Tensor::index_put_(std::initializer_list<TensorIndex> indices,
                          const Tensor& values,
                          bool accumulate) const {
  const Tensor& x = *this;
  const IndexList list = resolved(indices);
  const bool records = grad_enabled() && (x.requires_grad() || values.requires_grad());
  check<RuntimeError>(!records || !x.requires_grad() || !x.is_leaf(), "index_put_: ", describe(x),
                      " is a leaf that requires a gradient and cannot be changed in place while "
                      "recording; use a NoGradGuard or a clone()");
  if (!has_tensors(list)) {
    if (!records) {
      const Tensor place = view_of(x.detach(), list);
      const Tensor fitting = fitted(values, place.shape());
      accumulate ? add_(place, fitting) : copy_(place, fitting);
      return x;
    }
    // No view may be left when x changes: copy_ refuses to change memory that others see.
    const Tensor fitting = fitted(values, view_of(x.detach(), list).shape());
    const Tensor written =
        accumulate ? tapestry::add(view_of(x, list), fitting).to(x.dtype()) : fitting.to(x.dtype());
    return copy_(x, apply_op(SliceAssign{list}, x, written));
  }
  // By the numbers of the elements: index_put() on the flattened tensor.
  const Tensor places = pick(arange(x.numel()).view(x.shape()), list);
  const Tensor fitting = fitted(values, places.shape());
  const Tensor wide = tapestry::expand(fitting.to(x.dtype()), places.shape());
  const Tensor result = index_put(tapestry::reshape(x, {-1}), {tapestry::reshape(places, {-1})},
                                  tapestry::reshape(wide, {-1}), accumulate);
  return copy_(x, tapestry::view(result, x.shape()));
}

Tensor Tensor::index_put_(std::initializer_list<TensorIndex> indices, Scalar value) const {
  return index_put_(indices, scalar(value, dtype()));
}

}  // namespace tapestry
