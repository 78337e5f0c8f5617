// Tensor: a value-semantics handle of a strided view on shared storage.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <iosfwd>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "autograd/kernels/machine/dtype.h"
#include "autograd/tensor/hook_handle.h"
#include "autograd/tensor/ref.h"
#include "autograd/tensor/scalar.h"
#include "autograd/tensor/shape.h"
#include "autograd/tensor/storage.h"

namespace tapestry {

class Tensor;
class TensorIndex;  // autograd/ops/index.h
using TensorList = std::vector<Tensor>;

/// What the tape knows about a tensor; defined in autograd/tape/autograd_meta.h.
class AutogradMetaBase : public RefCounted {};

/// The object behind the handle.
class TensorImpl final : public RefCounted {
 public:
  TensorImpl(Ref<Storage> storage,
             int64_t offset,
             const Shape& shape,
             const Strides& strides,
             DType dtype);

  Ref<Storage> storage;
  int64_t offset;  ///< of the first element, in elements
  Shape shape;
  Strides strides;  ///< in elements; 0 on expanded axes
  DType dtype;
  bool contiguous;
  bool requires_grad = false;   ///< a leaf that wants a gradient, or the result of recorded ops
  bool outside_graph = false;   ///< an unrecorded view of a tensor that is part of a graph
  bool one_of_several = false;  ///< of the views that one op made, or a view of such
  Ref<AutogradMetaBase> meta;
};

/// A handle: copying it shares the tensor. Axis arguments count from the end when negative.
///
/// A handle made without a value, and the grad() that no backward pass has reached, is undefined:
/// it has defined(), impl() and is_same(); everything else throws a RuntimeError that names it.
///
/// The methods form a closed list; everything else is a free function in autograd/ops. Those from
/// `view` to `index_put_` are recorded on the tape and defined in autograd/ops/shape_ops.cpp and
/// index.cpp; the autograd methods are defined in autograd/tape.
class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(Ref<TensorImpl> impl) : impl_(std::move(impl)) {}

  bool defined() const { return static_cast<bool>(impl_); }
  TensorImpl* impl() const { return impl_.get(); }
  /// True if both handles name the same tensor object.
  bool is_same(const Tensor& other) const { return impl_ == other.impl_; }

  // -- shape and layout ---------------------------------------------------------------------
  const Shape& shape() const { return object("shape").shape; }
  const Strides& strides() const { return object("strides").strides; }
  DType dtype() const { return object("dtype").dtype; }
  int64_t dim() const { return object("dim").shape.size(); }
  int64_t numel() const { return object("numel").shape.numel(); }
  /// Size of one axis. IndexError if there is no such axis.
  int64_t size(int64_t axis) const;
  /// Row-major without gaps. Axes of size 1 may have any stride; an empty tensor is contiguous.
  bool is_contiguous() const { return object("is_contiguous").contiguous; }
  int64_t offset() const { return object("offset").offset; }
  const Ref<Storage>& storage() const { return object("storage").storage; }

  // -- reading and writing elements ---------------------------------------------------------
  /// Address of the first element; the others follow strides().
  void* raw() const {
    const TensorImpl& own = object("raw");
    return own.storage->data() + own.offset * size_of(own.dtype);
  }
  /// The same, typed. TypeError if T is not the tensor's element type.
  template <class T>
  T* data() const {
    check_dtype(dtype_of<T>());
    return static_cast<T*>(raw());
  }
  /// The value of a tensor with one element. ValueError if it has more or fewer.
  Item item() const;
  /// One element. ValueError if the number of indices differs from dim(), IndexError if one is out
  /// of range.
  Item at(std::initializer_list<int64_t> indices) const;
  /// Logical values in row-major order, converted to T (float, double, int8_t, uint8_t,
  /// int32_t, int64_t or bool).
  template <class T>
  std::vector<T> to_vector() const;

  // -- views and copies, recorded on the tape (autograd/ops/shape_ops.h has the contracts) ----
  Tensor view(const Shape& shape) const;
  Tensor reshape(const Shape& shape) const;
  Tensor permute(const Shape& axes) const;
  Tensor transpose(int64_t axis0, int64_t axis1) const;
  /// Transpose of the last two axes.
  Tensor t() const;
  Tensor expand(const Shape& shape) const;
  Tensor slice(int64_t axis, int64_t start, int64_t stop, int64_t step = 1) const;
  Tensor select(int64_t axis, int64_t index) const;
  Tensor squeeze(std::optional<int64_t> axis = std::nullopt) const;
  Tensor unsqueeze(int64_t axis) const;
  Tensor contiguous() const;
  Tensor clone() const;
  Tensor to(DType dtype) const;
  /// x[...]: integers, ranges, None, Ellipsis, tensors of indices and masks; see
  /// autograd/ops/index.h.
  Tensor index(std::initializer_list<TensorIndex> indices) const;
  /// x[...] = values, or += with accumulate (repeated places add up), in place; values broadcast
  /// and are converted. Recorded under the rules of autograd/ops/inplace.h: x, which must not be a
  /// leaf that requires a gradient, becomes the result. Returns x. ValueError if values do not fit.
  Tensor index_put_(std::initializer_list<TensorIndex> indices,
                    const Tensor& values,
                    bool accumulate = false) const;
  Tensor index_put_(std::initializer_list<TensorIndex> indices, Scalar value) const;

  // -- autograd -------------------------------------------------------------------------------
  bool requires_grad() const { return object("requires_grad").requires_grad; }
  /// Marks a leaf as wanting a gradient. TypeError unless floating; RuntimeError when switched off
  /// on the result of a recorded op (use detach()).
  const Tensor& set_requires_grad(bool value = true) const;
  /// True if no recorded op made this tensor.
  bool is_leaf() const;
  /// Accumulated gradient; undefined before the first backward. A leaf's is in memory of its own,
  /// which later passes add to in place: a handle sees that. With create_graph each pass makes a
  /// new tensor instead. Of a result, what retain_grad() keeps.
  Tensor grad() const;
  /// Keeps this very tensor as the gradient, or a dense copy of one whose elements share memory
  /// (expand()); undefined drops it. ValueError for another shape, TypeError for another dtype than
  /// this tensor's, RuntimeError if there is a main_grad.
  void set_grad(const Tensor& grad) const;
  /// A buffer of the tensor's shape into which gradients are accumulated instead; grad() is then a
  /// view of it. float32; or bfloat16, whose sums are rounded stochastically. Undefined by default.
  /// ValueError if the shape differs or it is not contiguous, TypeError for another dtype.
  Tensor main_grad() const;
  void set_main_grad(const Tensor& buffer) const;
  /// Backpropagates from this tensor and accumulates into the leaves' gradients.
  ///
  /// `gradient` has this tensor's shape and may be left out for a single element. RuntimeError if
  /// there is no graph, if the graph was already released, or if a tensor saved for backward was
  /// changed in place; ValueError if the gradient's shape does not fit.
  void backward(const Tensor& gradient = {},
                bool retain_graph = false,
                bool create_graph = false) const;
  /// The same values without the graph. Shares storage and version.
  Tensor detach() const;
  /// Calls hook(gradient) when this tensor's gradient is complete; a defined result, of the same
  /// shape and dtype, replaces it (else ValueError or TypeError). Hooks run in the order of their
  /// registration and may register and remove hooks; a new one is called from the next gradient on.
  ///
  /// A result's hooks run whenever its gradient is computed, also where grad() is asked for it (as
  /// in PyTorch 2; PyTorch 1 left them out there). A leaf's run where backward() accumulates, not
  /// in grad() (as in PyTorch 1). After a change in place, hooks from before see the gradient of
  /// the value before.
  HookHandle register_hook(std::function<Tensor(const Tensor&)> hook) const;
  /// Calls hook(leaf) once each time a gradient has been accumulated into this leaf, after its
  /// last contribution in that backward pass.
  HookHandle register_post_accumulate_grad_hook(std::function<void(const Tensor&)> hook) const;
  /// Keeps the gradient of a tensor that is not a leaf in grad(). As in PyTorch, every pass through
  /// the tensor adds to it, also one of grad() or of second order, and with create_graph it has a
  /// graph; it is the gradient at this place in the order of hooks, and after a change in place
  /// that of the new value. set_grad({}) starts anew.
  ///
  /// What a pass through gradients adds depends on whether the backward of the op that made the
  /// tensor is written with its output or with its input, which PyTorch chooses otherwise for some
  /// ops; the sums in leaves do not.
  void retain_grad() const;
  /// Number of in-place changes of the storage; views share it.
  uint32_t version() const { return object("version").storage->version(); }
  void bump_version() const { object("bump_version").storage->bump_version(); }

 private:
  void check_dtype(DType wanted) const;
  /// The object, for the method of that name.
  TensorImpl& object(const char* method) const {
    if (!impl_) [[unlikely]] {
      throw_undefined(method);
    }
    return *impl_;
  }
  [[noreturn, gnu::cold, gnu::noinline]] static void throw_undefined(const char* method);

  Ref<TensorImpl> impl_;
};

/// An unrecorded view on the storage of `base`: sizes and strides in elements, offset in elements
/// from the start of the storage. The caller answers for staying inside the storage.
Tensor alias(const Tensor& base, const Shape& shape, const Strides& strides, int64_t offset);
/// An unrecorded handle with the same layout and storage as `base`.
Tensor alias(const Tensor& base);

/// "float32 [4, 3]" or "undefined", for messages. The text is made only when it is printed, so that
/// a check that holds costs nothing; use it within the expression that makes it.
class Description {
 public:
  explicit Description(const Tensor& tensor) : tensor_(tensor) {}
  operator std::string() const;  // NOLINT(google-explicit-constructor): it is a text
  friend std::ostream& operator<<(std::ostream& out, const Description& description);

 private:
  const Tensor& tensor_;
};
inline Description describe(const Tensor& tensor) { return Description(tensor); }

}  // namespace tapestry
