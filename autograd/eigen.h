// Tensors as Eigen's matrices and Eigen's matrices as tensors, without copying.
//
// What Eigen writes is not recorded. A view that can be written is refused where a change in place
// would be (a tensor that requires a gradient while recording, an expanded one), and making it adds
// one to the version of the storage, as a change in place does. A view does not keep the tensor's
// memory: the tensor must outlive it.
//
// For float, double, int8_t, uint8_t, int32_t and int64_t. TypeError if T is not the tensor's
// element type.
#pragma once

#include <Eigen/Core>
#include <memory>
#include <type_traits>
#include <utility>

#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/tensor.h"

namespace tapestry {

template <class T>
using EigenMatrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class T>
using EigenVector = Eigen::Matrix<T, Eigen::Dynamic, 1>;

/// Views with any strides.
template <class T>
using EigenMatrixView =
    Eigen::Map<EigenMatrix<T>, Eigen::Unaligned, Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>>;
template <class T>
using EigenVectorView =
    Eigen::Map<EigenVector<T>, Eigen::Unaligned, Eigen::InnerStride<Eigen::Dynamic>>;
template <class T>
using ConstEigenMatrixView = Eigen::
    Map<const EigenMatrix<T>, Eigen::Unaligned, Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>>;
template <class T>
using ConstEigenVectorView =
    Eigen::Map<const EigenVector<T>, Eigen::Unaligned, Eigen::InnerStride<Eigen::Dynamic>>;

namespace detail {

template <class T>
inline constexpr bool kEigenElement =
    std::is_same_v<T, float> || std::is_same_v<T, double> || std::is_same_v<T, int8_t> ||
    std::is_same_v<T, uint8_t> || std::is_same_v<T, int32_t> || std::is_same_v<T, int64_t>;

inline void check_eigen_axes(const char* op, const Tensor& x, int64_t axes) {
  check<ValueError>(x.defined() && x.dim() == axes, op, ": needs a tensor of ", axes,
                    axes == 1 ? " axis, got " : " axes, got ", describe(x));
}

inline void check_eigen_write(const char* op, const Tensor& x) {
  check<RuntimeError>(!grad_enabled() || !x.requires_grad(), op, ": ", describe(x),
                      " requires a gradient and what Eigen writes is not recorded; use detach() or "
                      "a NoGradGuard, or a view that is const");
  for (int64_t i = 0; i < x.dim(); ++i) {
    check<RuntimeError>(x.shape()[i] <= 1 || x.strides()[i] != 0, op,
                        ": elements of the expanded tensor ", x.shape(), " with strides ",
                        x.strides(), " share memory; use a clone(), or a view that is const");
  }
  x.bump_version();
}

// The tensor on `elements` elements of memory from `data`, seen with the given layout.
inline Tensor tensor_on(void* data,
                        int64_t elements,
                        DType dtype,
                        const Shape& shape,
                        const Strides& strides,
                        std::function<void()> release) {
  return alias(from_blob(data, {elements}, dtype, std::move(release)), shape, strides, 0);
}

}  // namespace detail

// -- tensors as matrices ------------------------------------------------------------------------
/// The matrix of a tensor with two axes. ValueError for another number of axes; RuntimeError as
/// above.
template <class T>
EigenMatrixView<T> eigen_matrix(const Tensor& x) {
  static_assert(detail::kEigenElement<T>);
  detail::check_eigen_axes("eigen_matrix", x, 2);
  T* const data = x.data<T>();
  detail::check_eigen_write("eigen_matrix", x);
  return {data, x.shape()[0], x.shape()[1], {x.strides()[0], x.strides()[1]}};
}
/// The same for reading, from any tensor with two axes.
template <class T>
ConstEigenMatrixView<T> const_eigen_matrix(const Tensor& x) {
  static_assert(detail::kEigenElement<T>);
  detail::check_eigen_axes("const_eigen_matrix", x, 2);
  return {x.data<T>(), x.shape()[0], x.shape()[1], {x.strides()[0], x.strides()[1]}};
}

/// The column vector of a tensor with one axis. ValueError for another number of axes;
/// RuntimeError as above.
template <class T>
EigenVectorView<T> eigen_vector(const Tensor& x) {
  static_assert(detail::kEigenElement<T>);
  detail::check_eigen_axes("eigen_vector", x, 1);
  T* const data = x.data<T>();
  detail::check_eigen_write("eigen_vector", x);
  return {data, x.shape()[0], Eigen::InnerStride<Eigen::Dynamic>(x.strides()[0])};
}
/// The same for reading.
template <class T>
ConstEigenVectorView<T> const_eigen_vector(const Tensor& x) {
  static_assert(detail::kEigenElement<T>);
  detail::check_eigen_axes("const_eigen_vector", x, 1);
  return {x.data<T>(), x.shape()[0], Eigen::InnerStride<Eigen::Dynamic>(x.strides()[0])};
}

// -- matrices as tensors ------------------------------------------------------------------------
/// A tensor [rows, cols] on the memory of anything of Eigen's that lies in memory (Matrix, Array,
/// Map, Ref, Block; row- or column-major, which shows in the strides); [n] for what is a vector at
/// compile time. The memory must outlive every tensor that shares it.
template <class Derived>
Tensor tensor_view(Eigen::DenseBase<Derived>& matrix) {
  using T = typename Derived::Scalar;
  static_assert(detail::kEigenElement<T>);
  static_assert((Derived::Flags & Eigen::DirectAccessBit) != 0, "an expression has no memory");
  static_assert((Derived::Flags & Eigen::LvalueBit) != 0, "a tensor can be written, this cannot");
  Derived& m = matrix.derived();
  const bool row_major = Derived::IsRowMajor;
  const int64_t row_stride = row_major ? m.outerStride() : m.innerStride();
  const int64_t col_stride = row_major ? m.innerStride() : m.outerStride();
  const int64_t extent =
      m.size() == 0 ? 0 : (m.rows() - 1) * row_stride + (m.cols() - 1) * col_stride + 1;
  Shape shape = {m.rows(), m.cols()};
  Strides strides = {row_stride, col_stride};
  if (Derived::IsVectorAtCompileTime) {
    shape = {m.size()};
    strides = {static_cast<int64_t>(m.innerStride())};
  }
  return detail::tensor_on(m.data(), extent, dtype_of<T>(), shape, strides, nullptr);
}
/// The same for a temporary view of Eigen's, such as m.block(...) or m.row(i).
template <class Derived>
Tensor tensor_view(Eigen::DenseBase<Derived>&& matrix) {
  static_assert(!std::is_base_of_v<Eigen::PlainObjectBase<Derived>, Derived>,
                "the memory of a temporary matrix is gone at once; use to_tensor(std::move(m))");
  return tensor_view(static_cast<Eigen::DenseBase<Derived>&>(matrix));
}

/// A tensor that takes a matrix or vector over, by move and with its memory; to_tensor(Matrix(m))
/// copies first.
template <class Derived>
Tensor to_tensor(Eigen::PlainObjectBase<Derived>&& matrix) {
  auto owner = std::make_shared<Derived>(std::move(matrix.derived()));
  const Tensor view = tensor_view(*owner);
  return detail::tensor_on(owner->data(), owner->size(), view.dtype(), view.shape(), view.strides(),
                           [owner] {});
}

}  // namespace tapestry
