// x.index({...}) and x.index_put_({...}, values): one entry for each axis, as x[...] in Python.
//
//   using namespace tapestry::indexing;
//   x.index({0, Slice(1, None), Ellipsis, -1})        // x[0, 1:, ..., -1]
//   x.index({Slice(None, None, 2), None, rows})       // x[::2, None, rows]
//   x.index_put_({mask}, 0.0)                         // x[mask] = 0
//
// An integer (or a scalar integer tensor) takes one entry and its axis disappears; Slice takes a
// range; None adds an axis of size 1; Ellipsis stands for as many whole axes as are left over, as
// does the end of the list; an int32 or int64 tensor takes one entry for each of its elements; a
// bool tensor takes the entries where it is true, over as many axes as it has. Tensors broadcast
// together; the axes of their common shape stand where the tensors do if these are neighbours, else
// in front. Without tensors of one axis or more the result is a view.
//
// IndexError for more entries than axes, an index outside its axis, a mask that does not fit, or
// two Ellipses; ValueError for a step below 1; TypeError for a tensor of another dtype.
#pragma once

#include <concepts>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "autograd/tensor/tensor.h"

namespace tapestry {

namespace indexing {

struct NoneType {};
struct EllipsisType {};
inline constexpr NoneType None;          // NOLINT(readability-identifier-naming): Python's names
inline constexpr EllipsisType Ellipsis;  // NOLINT(readability-identifier-naming)

/// One end of a range: a position, which counts from the end when negative, or None.
class Bound {
 public:
  Bound() = default;
  Bound(NoneType) {}                          // NOLINT(google-explicit-constructor)
  Bound(int64_t position) : at_(position) {}  // NOLINT(google-explicit-constructor)
  int64_t or_else(int64_t position) const { return at_.value_or(position); }

 private:
  std::optional<int64_t> at_;
};

/// start, start + step, ... below stop; both ends are limited to the axis.
struct Slice {
  Slice(Bound first = {}, Bound last = {}, int64_t by = 1)  // NOLINT(google-explicit-constructor)
      : start(first.or_else(0)),
        stop(last.or_else(std::numeric_limits<int64_t>::max())),
        step(by) {}
  int64_t start;
  int64_t stop;
  int64_t step;
};

}  // namespace indexing

/// One entry of an index.
class TensorIndex {
 public:
  // NOLINTBEGIN(google-explicit-constructor): entries are written as what they are
  TensorIndex(indexing::NoneType none) : value_(none) {}
  TensorIndex(indexing::EllipsisType ellipsis) : value_(ellipsis) {}
  TensorIndex(indexing::Slice slice) : value_(slice) {}
  TensorIndex(Tensor tensor) : value_(std::move(tensor)) {}
  template <std::integral T>
  requires(!std::same_as<T, bool>) TensorIndex(T index) : value_(static_cast<int64_t>(index)) {}
  // NOLINTEND(google-explicit-constructor)

  using Value =
      std::variant<indexing::NoneType, indexing::EllipsisType, int64_t, indexing::Slice, Tensor>;
  const Value& value() const { return value_; }

 private:
  Value value_;
};

}  // namespace tapestry
