#include "autograd/kernels/index.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <type_traits>

#include "autograd/kernels/machine/dispatch.h"
#include "autograd/kernels/machine/limits.h"
#include "autograd/kernels/machine/parallel_for.h"

namespace tapestry::kernels {

namespace {

// Calls visit(position, offset): the element at `position` of the index (and of the dense array
// beside it) belongs to the one at `offset` of the indexed array. Positions in the outer axes
// [begin, end) and the last axis [first, last), in row-major order.
template <class Visit>
void visit_part(const AxisIndex& at,
                int split,
                int64_t begin,
                int64_t end,
                int64_t first,
                int64_t last,
                const Visit& visit) {
  const int row_axis = at.ndim - 1;
  const int64_t row_length = at.sizes[row_axis];
  const int64_t step = at.axis == row_axis ? 0 : at.strides[row_axis];
  const int64_t axis_stride = at.strides[at.axis];
  int64_t rows_per_outer = 1;
  for (int d = split; d < row_axis; ++d) {
    rows_per_outer *= at.sizes[d];
  }
  int64_t coordinate[kMaxDims] = {};
  int64_t rest = begin * rows_per_outer;
  int64_t base = 0;
  for (int d = row_axis - 1; d >= 0; --d) {
    coordinate[d] = rest % at.sizes[d];
    rest /= at.sizes[d];
    base += d == at.axis ? 0 : coordinate[d] * at.strides[d];
  }
  for (int64_t row = begin * rows_per_outer; row < end * rows_per_outer; ++row) {
    const int64_t start = row * row_length;
    for (int64_t j = first; j < last; ++j) {
      visit(start + j, base + j * step + at.index[start + j] * axis_stride);
    }
    for (int d = row_axis - 1; d >= 0; --d) {
      const int64_t stride = d == at.axis ? 0 : at.strides[d];
      base += stride;
      if (++coordinate[d] < at.sizes[d]) {
        break;
      }
      base -= stride * at.sizes[d];
      coordinate[d] = 0;
    }
  }
}

// Shares the work so that no two threads meet the same element of the indexed array: by the axes
// before the indexed one, or else by columns of the last axis. Readers may be cut anywhere.
template <class Visit>
void visit_all(const AxisIndex& at, bool writes_indexed, const Visit& visit) {
  int64_t numel = 1;
  for (int d = 0; d < at.ndim; ++d) {
    numel *= at.sizes[d];
  }
  if (numel == 0) {
    return;
  }
  const int64_t columns = at.sizes[at.ndim - 1];
  const int split = writes_indexed ? std::min(at.axis, at.ndim - 1) : at.ndim - 1;
  int64_t outer = 1;
  for (int d = 0; d < split; ++d) {
    outer *= at.sizes[d];
  }
  if (outer > 1 || at.axis == at.ndim - 1) {
    parallel_for(
        outer, std::max<int64_t>(1, kGrainSize * outer / numel),
        [&](int64_t begin, int64_t end) { visit_part(at, split, begin, end, 0, columns, visit); });
  } else {
    parallel_for(
        columns, std::max<int64_t>(1, kGrainSize * columns / numel),
        [&](int64_t first, int64_t last) { visit_part(at, split, 0, outer, first, last, visit); });
  }
}

// The unsigned integer of an element's size: values are only moved.
template <class F>
void with_item(int64_t item_size, const F& f) {
  switch (item_size) {
    case 1:
      f(uint8_t{});
      break;
    case 2:
      f(uint16_t{});
      break;
    case 4:
      f(uint32_t{});
      break;
    default:
      assert(item_size == 8);
      f(uint64_t{});
  }
}

// One element of any type of T's size.
template <class T>
void move_item(T* to, const T* from) {
  std::memcpy(to, from, sizeof(T));
}

template <class T>
void add_to(T& sum, T value) {
  if constexpr (std::is_same_v<T, bool>) {
    sum = sum || value;
  } else if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    sum = static_cast<T>(static_cast<U>(sum) + static_cast<U>(value));
  } else if constexpr (sizeof(T) == 2) {
    sum = T(static_cast<float>(sum) + static_cast<float>(value));
  } else {
    sum += value;
  }
}

// Rows of [outer, count, inner] one after the other, split among threads so that rows of one
// destination stay in order: by outer, or else by columns.
template <class Body>
void for_rows(const RowIndex& at, const Body& body) {
  if (at.outer == 0 || at.count == 0 || at.inner == 0) {
    return;
  }
  if (at.outer > 1) {
    parallel_for(at.outer, std::max<int64_t>(1, kGrainSize / (at.count * at.inner)),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t o = begin; o < end; ++o) {
                     for (int64_t j = 0; j < at.count; ++j) {
                       body(o, j, int64_t{0}, at.inner);
                     }
                   }
                 });
  } else {
    parallel_for(at.inner, std::max<int64_t>(16, kGrainSize / at.count),
                 [&](int64_t first, int64_t last) {
                   for (int64_t j = 0; j < at.count; ++j) {
                     body(int64_t{0}, j, first, last);
                   }
                 });
  }
}

}  // namespace

void gather(int64_t item_size, const AxisIndex& at, const void* x, void* y) {
  with_item(item_size, [&](auto item) {
    using T = decltype(item);
    const T* from = static_cast<const T*>(x);
    T* to = static_cast<T*>(y);
    visit_all(at, false,
              [=](int64_t position, int64_t offset) { move_item(to + position, from + offset); });
  });
}

void scatter(int64_t item_size, const AxisIndex& at, const void* src, void* y) {
  with_item(item_size, [&](auto item) {
    using T = decltype(item);
    const T* from = static_cast<const T*>(src);
    T* to = static_cast<T*>(y);
    visit_all(at, true,
              [=](int64_t position, int64_t offset) { move_item(to + offset, from + position); });
  });
}

void scatter_add(DType dtype, const AxisIndex& at, const void* src, void* y) {
  dispatch_all(dtype, [&]<class T>() {
    const T* from = static_cast<const T*>(src);
    T* to = static_cast<T*>(y);
    visit_all(at, true,
              [=](int64_t position, int64_t offset) { add_to(to[offset], from[position]); });
  });
}

void index_rows(int64_t item_size, const RowIndex& at, const void* x, void* y) {
  if (at.inner == 0 || at.count == 0) {
    return;
  }
  const int64_t bytes = at.inner * item_size;
  const char* from = static_cast<const char*>(x);
  char* to = static_cast<char*>(y);
  parallel_for(at.outer * at.count, std::max<int64_t>(1, kGrainSize / at.inner),
               [&](int64_t begin, int64_t end) {
                 for (int64_t row = begin; row < end; ++row) {
                   const int64_t source = row / at.count * at.n + at.index[row % at.count];
                   std::memcpy(to + row * bytes, from + source * bytes, static_cast<size_t>(bytes));
                 }
               });
}

void put_rows(int64_t item_size, const RowIndex& at, const void* src, void* y) {
  const char* from = static_cast<const char*>(src);
  char* to = static_cast<char*>(y);
  for_rows(at, [&](int64_t o, int64_t j, int64_t first, int64_t last) {
    std::memcpy(to + ((o * at.n + at.index[j]) * at.inner + first) * item_size,
                from + ((o * at.count + j) * at.inner + first) * item_size,
                static_cast<size_t>((last - first) * item_size));
  });
}

void add_rows(DType dtype, const RowIndex& at, const void* src, void* y) {
  dispatch_all(dtype, [&]<class T>() {
    for_rows(at, [&](int64_t o, int64_t j, int64_t first, int64_t last) {
      const T* from = static_cast<const T*>(src) + (o * at.count + j) * at.inner;
      T* to = static_cast<T*>(y) + (o * at.n + at.index[j]) * at.inner;
      for (int64_t i = first; i < last; ++i) {
        add_to(to[i], from[i]);
      }
    });
  });
}

}  // namespace tapestry::kernels
