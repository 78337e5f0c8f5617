#include "autograd/kernels/sort.h"

#include <algorithm>
#include <cassert>

#include "autograd/kernels/machine/dispatch.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/kernels/machine/scratch.h"

namespace tapestry::kernels {

namespace {

template <class C>
struct Entry {
  C key;
  int64_t index;
};

/// a before b in ascending order, NaN last.
template <class C>
bool less(C a, C b) {
  return a < b || (b != b && a == a);
}

/// Sorts each row's first k entries into place: the whole row stably, or the best k.
template <class T, class C>
void sort_typed(
    int64_t rows, int64_t n, int64_t k, bool descending, const T* x, T* values, int64_t* indices) {
  // n log n comparisons of a few ns each.
  const int64_t grain = std::max<int64_t>(1, 1024 / std::max<int64_t>(1, n));
  parallel_for(rows, grain, [&](int64_t begin, int64_t end) {
    const Scratch entry_memory(n * static_cast<int64_t>(sizeof(Entry<C>)));
    const Scratch original_memory(values == x ? n * static_cast<int64_t>(sizeof(T)) : 0);
    auto* entries = static_cast<Entry<C>*>(entry_memory.get());
    auto* original = static_cast<T*>(original_memory.get());
    // Equal keys are ordered by index, which makes any sort a stable one.
    const auto before = [descending](const Entry<C>& a, const Entry<C>& b) {
      const bool first = descending ? less(b.key, a.key) : less(a.key, b.key);
      const bool second = descending ? less(a.key, b.key) : less(b.key, a.key);
      return first || (!second && a.index < b.index);
    };
    for (int64_t r = begin; r < end; ++r) {
      const T* row = x + r * n;
      for (int64_t i = 0; i < n; ++i) {
        entries[i] = {static_cast<C>(row[i]), i};
      }
      if (k < n) {
        // A small part of a long row: select it first, in linear time.
        if (k > 0) {
          std::nth_element(entries, entries + (k - 1), entries + n, before);
        }
        std::sort(entries, entries + k, before);
      } else {
        std::sort(entries, entries + n, before);
      }
      if (values == x && values != nullptr) {
        std::copy(row, row + n, original);
        row = original;
      }
      for (int64_t i = 0; i < k; ++i) {
        if (values != nullptr) {
          values[r * k + i] = row[entries[i].index];  // the same bits, NaN's too
        }
        if (indices != nullptr) {
          indices[r * k + i] = entries[i].index;
        }
      }
    }
  });
}

void sort_any(DType dtype,
              int64_t rows,
              int64_t n,
              int64_t k,
              bool descending,
              const void* x,
              void* values,
              int64_t* indices) {
  dispatch_compared(dtype, [&]<class T, class C>() {
    sort_typed<T, C>(rows, n, k, descending, static_cast<const T*>(x), static_cast<T*>(values),
                     indices);
  });
}

}  // namespace

void sort_rows(DType dtype,
               int64_t rows,
               int64_t n,
               const void* x,
               bool descending,
               void* values,
               int64_t* indices) {
  sort_any(dtype, rows, n, n, descending, x, values, indices);
}

void topk_rows(DType dtype,
               int64_t rows,
               int64_t n,
               int64_t k,
               bool largest,
               const void* x,
               void* values,
               int64_t* indices) {
  assert(k >= 0 && k <= n && (values != x || k == n));
  sort_any(dtype, rows, n, k, largest, x, values, indices);
}

}  // namespace tapestry::kernels
