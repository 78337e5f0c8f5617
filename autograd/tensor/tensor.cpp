#include "autograd/tensor/tensor.h"

#include <ostream>

#include "autograd/kernels/machine/dispatch.h"
#include "autograd/kernels/machine/team_state.h"
#include "autograd/tensor/check_defined.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/system_memory.h"

namespace tapestry {

namespace {

bool has_contiguous_layout(const Shape& shape, const Strides& strides) {
  int64_t expected = 1;
  bool dense = true;
  for (int64_t i = shape.size() - 1; i >= 0; --i) {
    if (shape[i] == 0) {
      return true;  // whatever the strides of the axes behind it
    }
    dense = dense && (shape[i] == 1 || strides[i] == expected);
    expected *= dense ? shape[i] : 1;
  }
  return dense;
}

Item element_at(const Tensor& tensor, int64_t offset) {
  return dispatch_all(tensor.dtype(), [&]<class T>() -> Item {
    const T value = static_cast<const T*>(tensor.raw())[offset];
    if constexpr (std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>) {
      return Item(static_cast<float>(value));
    } else {
      return Item(value);
    }
  });
}

constexpr const char* kUndefined =
    " is undefined: it was made without a value, or is a grad() that no backward pass has reached";

}  // namespace

TensorImpl::TensorImpl(Ref<Storage> storage_,
                       int64_t offset_,
                       const Shape& shape_,
                       const Strides& strides_,
                       DType dtype_)
    : storage(std::move(storage_)),
      offset(offset_),
      shape(shape_),
      strides(strides_),
      dtype(dtype_),
      contiguous(has_contiguous_layout(shape_, strides_)) {}

int64_t Tensor::size(int64_t axis) const {
  check<IndexError>(dim() > 0, "size: a scalar has no axis ", axis);
  return shape()[normalize_axis("size", axis, dim())];
}

void Tensor::throw_undefined(const char* method) {
  const kernels::TeamState& running = kernels::team_state();
  const std::string_view op = running.op.empty() ? running.backward_of : running.op;
  throw RuntimeError(concat(op, op.empty() ? "" : ": ", method, ": the tensor", kUndefined));
}

void detail::throw_undefined_argument(std::string_view function, std::string_view argument) {
  throw RuntimeError(concat(function, ": the argument ", argument, kUndefined));
}
void detail::throw_undefined_argument(std::string_view function,
                                      std::string_view argument,
                                      size_t number) {
  throw RuntimeError(concat(function, ": the argument ", argument, "[", number, "]", kUndefined));
}

std::ostream& operator<<(std::ostream& out, const Item& item) {
  return item.is_integer_ ? out << item.integer_ : out << item.value_;
}

Item Tensor::item() const {
  check<ValueError>(numel() == 1, "item: the tensor must have one element, its shape is ", shape());
  return element_at(*this, 0);
}

Item Tensor::at(std::initializer_list<int64_t> indices) const {
  check<ValueError>(static_cast<int64_t>(indices.size()) == dim(), "at: ", indices.size(),
                    " indices for a tensor of shape ", shape());
  int64_t position = 0;
  int64_t axis = 0;
  for (const int64_t index : indices) {
    const int64_t n = shape()[axis];
    check<IndexError>(index >= -n && index < n, "at: index ", index, " is outside axis ", axis,
                      " of shape ", shape());
    position += (index < 0 ? index + n : index) * strides()[axis];
    ++axis;
  }
  return element_at(*this, position);
}

template <class T>
std::vector<T> Tensor::to_vector() const {
  std::vector<T> out;
  const int64_t count = numel();
  check_available("to_vector", checked_numel("to_vector", shape(), sizeof(T)));
  out.reserve(static_cast<size_t>(count));
  Shape index = Shape::filled(dim(), 0);
  int64_t position = 0;
  dispatch_all(dtype(), [&]<class Element>() {
    const auto* source = static_cast<const Element*>(raw());
    for (int64_t i = 0; i < count; ++i) {
      if constexpr (std::is_same_v<Element, BFloat16> || std::is_same_v<Element, Float16>) {
        out.push_back(static_cast<T>(static_cast<float>(source[position])));
      } else {
        out.push_back(static_cast<T>(source[position]));
      }
      for (int64_t axis = dim() - 1; axis >= 0; --axis) {
        position += strides()[axis];
        if (++index[axis] < shape()[axis]) {
          break;
        }
        position -= strides()[axis] * shape()[axis];
        index[axis] = 0;
      }
    }
  });
  return out;
}

template std::vector<float> Tensor::to_vector<float>() const;
template std::vector<double> Tensor::to_vector<double>() const;
template std::vector<int8_t> Tensor::to_vector<int8_t>() const;
template std::vector<uint8_t> Tensor::to_vector<uint8_t>() const;
template std::vector<int32_t> Tensor::to_vector<int32_t>() const;
template std::vector<int64_t> Tensor::to_vector<int64_t>() const;
template std::vector<bool> Tensor::to_vector<bool>() const;

void Tensor::check_dtype(DType wanted) const {
  check<TypeError>(dtype() == wanted, "data: the tensor is ", describe(*this), ", not ",
                   name_of(wanted));
}

Tensor alias(const Tensor& base, const Shape& shape, const Strides& strides, int64_t offset) {
  return Tensor(make_ref<TensorImpl>(base.storage(), offset, shape, strides, base.dtype()));
}

Tensor alias(const Tensor& base) {
  return alias(base, base.shape(), base.strides(), base.offset());
}

Description::operator std::string() const { return concat(*this); }

std::ostream& operator<<(std::ostream& out, const Description& description) {
  const Tensor& tensor = description.tensor_;
  return tensor.defined() ? out << name_of(tensor.dtype()) << " " << tensor.shape()
                          : out << "undefined";
}

}  // namespace tapestry
