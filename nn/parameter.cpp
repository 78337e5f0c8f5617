#include "nn/parameter.h"

#include <memory>
#include <mutex>

#include "autograd/ops/map.h"
#include "autograd/tape/leaf_state.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"
#include "autograd/tensor/storage.h"

namespace tapestry::nn {

namespace {

// The decoded numbers of a quantized parameter, as long as somebody may look at them.
struct DecodedPage {
  QuantizedMatrix matrix;
  Storage* storage = nullptr;  // of the window, which keeps the page
  Tensor memory;

  void close() {
    if (!storage->is_leased()) {
      storage->close();
      memory = Tensor();
    }
  }
};

// The one that this thread has opened last.
thread_local std::weak_ptr<DecodedPage> last_decoded;

Tensor decoded_window(const QuantizedMatrix& matrix, const Shape& shape) {
  const auto page = std::make_shared<DecodedPage>();
  page->matrix = matrix;
  const Ref<Storage> storage =
      make_ref<Storage>(shape.numel() * size_of(kFloat32), [page]() -> std::byte* {
        if (const auto before = last_decoded.lock(); before != nullptr && before != page) {
          before->close();
        }
        const MemoryKindGuard kind(MemoryKind::kWorkspace);
        page->memory = dequantize(page->matrix);
        last_decoded = page;
        return static_cast<std::byte*>(page->memory.raw());
      });
  page->storage = storage.get();
  return Tensor(make_ref<TensorImpl>(storage, 0, shape, contiguous_strides(shape), kFloat32));
}

}  // namespace

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
  const std::lock_guard lock(ensure_leaf_state(*this).mutex);  // other threads may want it, too
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

void Parameter::set_quantized(const QuantizedMatrix& matrix) {
  check<RuntimeError>(!requires_grad(),
                      "Parameter: blocks cannot be trained; call set_requires_grad(false) before");
  check<ValueError>(matrix.defined() && dim() >= 2 && shape().back() == matrix.in() &&
                        numel() == matrix.out() * matrix.in(),
                    "Parameter: a matrix [", matrix.defined() ? matrix.out() : 0, ", ",
                    matrix.defined() ? matrix.in() : 0, "] does not fit into ", shape());
  set_data(*this, decoded_window(matrix, shape()));
  quantized_ = matrix;
}

void Parameter::store_quantized() const {
  check<RuntimeError>(is_quantized(), "Parameter: has no blocks to store into");
  quantize_into(detach().view({-1, quantized_.in()}), quantized_, 0);
}

void Parameter::store_quantized(const Tensor& rows, int64_t first_row) const {
  check<RuntimeError>(is_quantized(), "Parameter: has no blocks to store into");
  quantize_into(rows, quantized_, first_row);
  if (const auto page = last_decoded.lock(); page && page->storage == storage().get()) {
    page->close();  // it shows what was there before
  }
}

}  // namespace tapestry::nn
