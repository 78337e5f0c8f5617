// Ops of indexing.h that order and repeat elements: triangles, rolls, sorting.
#include <algorithm>
#include <cstring>

#include "autograd/kernels/machine/dispatch.h"
#include "autograd/kernels/sort.h"
#include "autograd/ops/indexing.h"
#include "autograd/ops/map.h"
#include "autograd/ops/reduce_impl.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/check_defined.h"
#include "autograd/tensor/dtype.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/system_memory.h"

namespace tapestry {

namespace {

template <bool kLower>
struct Triangle {
  static constexpr OpName name = kLower ? "tril" : "triu";
  int64_t diagonal;
  Tensor forward(const Tensor& x) {
    Tensor y = dense_copy(x);
    const int64_t rows = x.size(-2);
    const int64_t columns = x.size(-1);
    const int64_t item = size_of(x.dtype());
    auto* bytes = static_cast<char*>(y.raw());
    for (int64_t row = 0; y.numel() > 0 && row < y.numel() / columns; ++row) {
      // Columns [0, edge) belong to the lower triangle and its complement's diagonal.
      const int64_t reach = row % rows + diagonal + (kLower ? 1 : 0);
      const int64_t edge = std::clamp<int64_t>(reach, 0, columns);
      const int64_t first = kLower ? edge : 0;
      const int64_t last = kLower ? columns : edge;
      std::memset(bytes + (row * columns + first) * item, 0,
                  static_cast<size_t>((last - first) * item));
    }
    return y;
  }
  Tensor backward(const Tensor& dy) const { return apply_op(Triangle{diagonal}, dy); }
};

template <bool kLower>
Tensor triangle(const Tensor& x, int64_t diagonal) {
  check<ValueError>(x.dim() >= 2, Triangle<kLower>::name, ": needs at least two axes, x is ",
                    x.shape());
  // Beyond the corners nothing changes.
  const int64_t limit = std::max(x.size(-2), x.size(-1));
  return apply_op(Triangle<kLower>{std::clamp(diagonal, -limit, limit)}, x);
}

struct Flip {
  static constexpr OpName name = "flip";
  Shape axes;  // normalized
  Tensor forward(const Tensor& x) {
    Strides strides = x.strides();
    int64_t offset = x.offset();
    if (x.numel() > 0) {
      for (const int64_t axis : axes) {
        offset += (x.shape()[axis] - 1) * strides[axis];
        strides[axis] = -strides[axis];
      }
    }
    return dense_copy(alias(x, x.shape(), strides, offset));
  }
  Tensor backward(const Tensor& dy) const { return apply_op(Flip{axes}, dy); }
};

// A tensor in memory of its own, whatever the counts and sizes: rearranged elements are a copy.
Tensor copied(const Tensor& y, const Tensor& x) {
  return y.storage() == x.storage() ? clone(y) : y;
}

// The axis moved to the end, dense.
Tensor axis_last(const Tensor& x, int64_t axis) {
  return dense(x.dim() > 0 ? x.detach().transpose(axis, -1) : x.detach());
}

// Back to its place.
Tensor axis_back(const Tensor& y, int64_t axis) {
  return dense(y.dim() > 0 ? y.transpose(axis, -1) : y);
}

template <bool kPart>
struct Order {
  static constexpr OpName name = kPart ? "topk" : "sort";
  int64_t axis;
  bool descending;
  int64_t k;  // entries that stay
  SavedTensor indices;
  Shape x_shape;
  std::array<Tensor, 2> forward(const Tensor& x) {
    x_shape = x.shape();
    const Tensor rows = axis_last(x, axis);
    const int64_t n = x.dim() > 0 ? rows.size(-1) : 1;
    Shape shape = rows.shape();
    if (!shape.empty()) {
      shape.back() = k;
    }
    const Tensor values = empty(shape, x.dtype());
    const Tensor places = empty(shape, kInt64);
    const int64_t count = n > 0 ? rows.numel() / n : 0;
    if (kPart) {
      kernels::topk_rows(x.dtype(), count, n, k, descending, rows.raw(), values.raw(),
                         places.data<int64_t>());
    } else {
      kernels::sort_rows(x.dtype(), count, n, rows.raw(), descending, values.raw(),
                         places.data<int64_t>());
    }
    const Tensor result = axis_back(places, axis);
    indices.save(result);
    return {axis_back(values, axis), result};
  }
  Tensor backward(const TensorList& dys, NeedsGrad /*needs*/) const {
    return gather_backward(dys[0], indices, x_shape, axis);
  }
};

struct ArgSort {
  static constexpr OpName name = "argsort";
  static constexpr bool differentiable = false;
  int64_t axis;
  bool descending;
  Tensor forward(const Tensor& x) {
    const Tensor rows = axis_last(x, axis);
    const int64_t n = x.dim() > 0 ? rows.size(-1) : 1;
    const Tensor places = empty(rows.shape(), kInt64);
    kernels::sort_rows(x.dtype(), n > 0 ? rows.numel() / n : 0, n, rows.raw(), descending, nullptr,
                       places.data<int64_t>());
    return axis_back(places, axis);
  }
};

struct Unique {
  static constexpr OpName name = "unique";
  static constexpr bool differentiable = false;
  std::array<Tensor, 3> forward(const Tensor& x) {
    const Tensor flat = dense(x);
    const int64_t n = flat.numel();
    const Tensor sorted = empty({n}, x.dtype());
    const Tensor order = empty({n}, kInt64);
    kernels::sort_rows(x.dtype(), n > 0 ? 1 : 0, n, flat.raw(), false, sorted.raw(),
                       order.data<int64_t>());
    Tensor inverse = empty(x.shape(), kInt64);
    std::vector<int64_t> starts;
    dispatch_all(x.dtype(), [&]<class T>() {
      const T* values = static_cast<const T*>(sorted.raw());
      const auto differ = [](T a, T b) {
        if constexpr (sizeof(T) == 2) {
          return static_cast<float>(a) != static_cast<float>(b);
        } else {
          return a != b;
        }
      };
      for (int64_t i = 0; i < n; ++i) {
        if (i == 0 || differ(values[i - 1], values[i])) {
          starts.push_back(i);
        }
        inverse.data<int64_t>()[order.data<int64_t>()[i]] = static_cast<int64_t>(starts.size()) - 1;
      }
    });
    const auto count = static_cast<int64_t>(starts.size());
    const Tensor first = tensor(starts, {count});
    Tensor counts = empty({count}, kInt64);
    starts.push_back(n);
    for (int64_t i = 0; i < count; ++i) {
      const auto at = static_cast<size_t>(i);
      counts.data<int64_t>()[i] = starts[at + 1] - starts[at];
    }
    return {index_select(sorted, 0, first), inverse, counts};
  }
};

}  // namespace

Tensor tril(const Tensor& x, int64_t diagonal) {
  check_defined("tril", x, "x");
  return triangle<true>(x, diagonal);
}
Tensor triu(const Tensor& x, int64_t diagonal) {
  check_defined("triu", x, "x");
  return triangle<false>(x, diagonal);
}

Tensor roll(const Tensor& x, const Shape& shifts, const Shape& axes) {
  check_defined("roll", x, "x");
  if (axes.empty()) {
    check<ValueError>(shifts.size() == 1, "roll: without axes one shift is needed, got ", shifts);
    return roll(x.reshape({x.numel()}), shifts, {0}).reshape(x.shape());
  }
  check<ValueError>(shifts.size() == axes.size(), "roll: shifts ", shifts, " for axes ", axes);
  Tensor y = x;
  for (int64_t i = 0; i < axes.size(); ++i) {
    check<IndexError>(x.dim() > 0, "roll: a scalar has no axis ", axes[i]);
    const int64_t axis = normalize_axis("roll", axes[i], x.dim());
    const int64_t n = x.shape()[axis];
    const int64_t shift = n == 0 ? 0 : (shifts[i] % n + n) % n;
    if (shift != 0) {
      y = cat({slice(y, axis, n - shift, n), slice(y, axis, 0, n - shift)}, axis);
    }
  }
  return copied(y, x);
}

Tensor flip(const Tensor& x, const Shape& axes) {
  check_defined("flip", x, "x");
  return apply_op(Flip{normalize_axes("flip", axes, x.dim())}, x);
}

Tensor repeat(const Tensor& x, const Shape& counts) {
  check_defined("repeat", x, "x");
  check<ValueError>(counts.size() >= x.dim(), "repeat: counts ", counts,
                    " are fewer than the axes of ", x.shape());
  Tensor y = x;
  for (int64_t i = x.dim(); i < counts.size(); ++i) {
    y = unsqueeze(y, 0);
  }
  for (int64_t i = 0; i < counts.size(); ++i) {
    check<ValueError>(counts[i] >= 0, "repeat: negative count in ", counts);
    if (counts[i] == 1) {
      continue;
    }
    Shape shape = y.shape();
    Shape wide = shape;
    wide.insert(i, counts[i]);
    checked_numel("repeat", wide);
    shape[i] *= counts[i];
    y = unsqueeze(y, i).expand(wide).reshape(shape);
  }
  return copied(y, x);
}

Tensor repeat_interleave(const Tensor& x, int64_t count, std::optional<int64_t> axis) {
  check_defined("repeat_interleave", x, "x");
  check<ValueError>(count >= 0, "repeat_interleave: negative count ", count);
  if (!axis || x.dim() == 0) {
    return repeat_interleave(x.reshape({x.numel()}), count, 0);
  }
  const int64_t a = normalize_axis("repeat_interleave", *axis, x.dim());
  Shape shape = x.shape();
  Shape wide = shape;
  wide.insert(a + 1, count);
  checked_numel("repeat_interleave", wide);
  shape[a] *= count;
  return copied(unsqueeze(x, a + 1).expand(wide).reshape(shape), x);
}

Tensor repeat_interleave(const Tensor& x, const Tensor& counts, std::optional<int64_t> axis) {
  check_defined("repeat_interleave", x, "x", counts, "counts");
  if (!axis || x.dim() == 0) {
    return repeat_interleave(x.reshape({x.numel()}), counts, 0);
  }
  const int64_t a = normalize_axis("repeat_interleave", *axis, x.dim());
  check<TypeError>(is_index(counts.dtype()),
                   "repeat_interleave: counts must be int64 or int32, got ",
                   name_of(counts.dtype()));
  check<ValueError>(counts.dim() == 1 && counts.numel() == x.shape()[a],
                    "repeat_interleave: counts ", counts.shape(), " for axis ", a, " of shape ",
                    x.shape());
  std::vector<int64_t> source;
  int64_t entry = 0;
  int64_t total = 0;
  const std::vector<int64_t> all_counts = counts.to_vector<int64_t>();
  for (const int64_t count : all_counts) {
    check<ValueError>(count >= 0, "repeat_interleave: negative count ", count);
    check<ValueError>(!__builtin_add_overflow(total, count, &total),
                      "repeat_interleave: the counts add up to more than 63 bits hold, for shape ",
                      x.shape());
  }
  Shape repeated = x.shape();
  repeated[a] = total;
  checked_numel("repeat_interleave", repeated);
  check_available("repeat_interleave",
                  checked_numel("repeat_interleave", {total}, size_of(kInt64)));
  for (const int64_t count : all_counts) {
    source.insert(source.end(), static_cast<size_t>(count), entry++);
  }
  return index_select(x, a, tensor(source, {static_cast<int64_t>(source.size())}));
}

ValuesAndIndices sort(const Tensor& x, int64_t axis, bool descending) {
  check_defined("sort", x, "x");
  const int64_t a = normalize_axis("sort", axis, x.dim());
  const int64_t n = x.dim() > 0 ? x.shape()[a] : 1;
  auto [values, indices] = apply_op(Order<false>{a, descending, n, {}, {}}, x);
  return {values, indices};
}

Tensor argsort(const Tensor& x, int64_t axis, bool descending) {
  check_defined("argsort", x, "x");
  return apply_op(ArgSort{normalize_axis("argsort", axis, x.dim()), descending}, x);
}

ValuesAndIndices topk(const Tensor& x, int64_t k, int64_t axis, bool largest) {
  check_defined("topk", x, "x");
  const int64_t a = normalize_axis("topk", axis, x.dim());
  const int64_t n = x.dim() > 0 ? x.shape()[a] : 1;
  check<ValueError>(k >= (x.dim() > 0 ? 0 : 1) && k <= n, "topk: k = ", k, " of the ", n,
                    " entries of axis ", a, " of shape ", x.shape());
  auto [values, indices] = apply_op(Order<true>{a, largest, k, {}, {}}, x);
  return {values, indices};
}

UniqueResult unique(const Tensor& x) {
  check_defined("unique", x, "x");
  auto [values, inverse, counts] = apply_op(Unique{}, x.detach());
  return {values, inverse, counts};
}

}  // namespace tapestry
