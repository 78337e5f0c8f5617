// Rows (inner == 1) in three passes: maximum, sum of exponentials, result. Otherwise columns,
// kBlock of them side by side, in the same three passes down the axis.
#include "autograd/kernels/softmax.h"

#include <type_traits>

#include "autograd/kernels/isa/lanes.h"
#include "autograd/kernels/isa/row_io.h"

namespace tapestry::kernels::TAPESTRY_ISA {

namespace {

/// The maximum (-inf if empty) and the sum of e^(x - shift), shift being the maximum, or 0 where
/// `finite_shift` and the maximum is infinite.
template <class C>
struct RowStatistics {
  C max;
  C shift;
  double sum;
};

template <class C>
[[gnu::always_inline]] inline C shift_of(C max, bool finite_shift) {
  return finite_shift && max - max != 0 ? C(0) : max;
}

/// If `exponentials` is not null (compute type only), they are left there.
template <class T, class C = compute_t<T>>
RowStatistics<C> row_statistics(int64_t n, const T* x, bool finite_shift, C* exponentials) {
  C block[kBlock];
  C max = -static_cast<C>(__builtin_inf());
  for (int64_t done = 0; done < n; done += kBlock) {
    const int64_t m = block_size(n - done);
    const C* in = read_block(m, x + done, block);
#pragma omp simd reduction(max : max)
    for (int64_t i = 0; i < m; ++i) {
      max = in[i] > max ? in[i] : max;
    }
  }
  const C shift = shift_of(max, finite_shift);
  double sum = 0;
  for (int64_t done = 0; done < n; done += kBlock) {
    const int64_t m = block_size(n - done);
    const C* in = read_block(m, x + done, block);
    C* out = exponentials != nullptr ? exponentials + done : block;
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < m; ++i) {
      out[i] = exp(in[i] - shift);
    }
    sum += sum_in_lanes<C>(m, out);
  }
  return {max, shift, sum};
}

template <class T>
void softmax_row(int64_t n, const T* x, T* y) {
  using C = compute_t<T>;
  if constexpr (kSame<T, C>) {
    const auto inverse = static_cast<C>(1.0 / row_statistics(n, x, false, y).sum);
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < n; ++i) {
      y[i] *= inverse;
    }
  } else {
    const auto row = row_statistics<T, C>(n, x, false, nullptr);
    const auto inverse = static_cast<C>(1.0 / row.sum);
    C block[kBlock];
    for (int64_t done = 0; done < n; done += kBlock) {
      const int64_t m = block_size(n - done);
      load_row(m, x + done, block);
      TAPESTRY_VECTOR_LOOP
      for (int64_t i = 0; i < m; ++i) {
        block[i] = exp(block[i] - row.shift) * inverse;
      }
      store_row(m, block, y + done);
    }
  }
}

template <class T>
void log_softmax_row(int64_t n, const T* x, T* y) {
  using C = compute_t<T>;
  const auto row = row_statistics<T, C>(n, x, false, nullptr);
  const auto log_sum = static_cast<C>(__builtin_log(row.sum));
  C in_block[kBlock];
  C out_block[kBlock];
  for (int64_t done = 0; done < n; done += kBlock) {
    const int64_t m = block_size(n - done);
    const C* in = read_block(m, x + done, in_block);
    C* out = output_block(y + done, out_block);
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < m; ++i) {
      out[i] = (in[i] - row.shift) - log_sum;
    }
    write_block(m, out, y + done);
  }
}

template <class T>
void backward_row(bool logarithm, int64_t n, const T* y, const T* dy, T* dx) {
  using C = compute_t<T>;
  C y_block[kBlock];
  C dy_block[kBlock];
  C dx_block[kBlock];
  double sum = 0;
  for (int64_t done = 0; done < n; done += kBlock) {
    const int64_t m = block_size(n - done);
    const C* g = read_block(m, dy + done, dy_block);
    LaneSum<C> partial;
    if (logarithm) {
      partial.add(m, g);
    } else {
      partial.add_dot(m, read_block(m, y + done, y_block), g);
    }
    sum += partial.get();
  }
  const auto total = static_cast<C>(sum);
  for (int64_t done = 0; done < n; done += kBlock) {
    const int64_t m = block_size(n - done);
    const C* p = read_block(m, y + done, y_block);
    const C* g = read_block(m, dy + done, dy_block);
    C* out = output_block(dx + done, dx_block);
    if (logarithm) {
      TAPESTRY_VECTOR_LOOP
      for (int64_t i = 0; i < m; ++i) {
        out[i] = g[i] - exp(p[i]) * total;
      }
    } else {
      TAPESTRY_VECTOR_LOOP
      for (int64_t i = 0; i < m; ++i) {
        out[i] = p[i] * (g[i] - total);
      }
    }
    write_block(m, out, dx + done);
  }
}

/// The first column, and how many, of a unit: units count blocks of kBlock columns, outer by outer.
struct Columns {
  int64_t offset;
  int64_t count;
};
[[gnu::always_inline]] inline Columns columns_of(int64_t unit, int64_t n, int64_t inner) {
  const int64_t blocks = (inner + kBlock - 1) / kBlock;
  const int64_t first = unit % blocks * kBlock;
  return {unit / blocks * n * inner + first, block_size(inner - first)};
}

/// RowStatistics of m columns side by side; the sum is in float64.
template <class T, class C = compute_t<T>>
void column_statistics(
    int64_t n, int64_t inner, int64_t m, const T* x, bool finite_shift, C* shift, double* sum) {
  C block[kBlock];
  for (int64_t i = 0; i < m; ++i) {
    shift[i] = -static_cast<C>(__builtin_inf());
    sum[i] = 0;
  }
  for (int64_t k = 0; k < n; ++k) {
    const C* in = read_block(m, x + k * inner, block);
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < m; ++i) {
      shift[i] = in[i] > shift[i] ? in[i] : shift[i];
    }
  }
  for (int64_t i = 0; i < m; ++i) {
    shift[i] = shift_of(shift[i], finite_shift);
  }
  for (int64_t k = 0; k < n; ++k) {
    const C* in = read_block(m, x + k * inner, block);
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < m; ++i) {
      sum[i] += exp(in[i] - shift[i]);
    }
  }
}

template <class T>
void softmax_columns(bool logarithm, int64_t n, int64_t inner, int64_t m, const T* x, T* y) {
  using C = compute_t<T>;
  C shift[kBlock];
  double sum[kBlock];
  C factor[kBlock];  // 1 / sum, or log sum
  C in_block[kBlock];
  C out_block[kBlock];
  column_statistics(n, inner, m, x, false, shift, sum);
  for (int64_t i = 0; i < m; ++i) {
    factor[i] = static_cast<C>(logarithm ? __builtin_log(sum[i]) : 1.0 / sum[i]);
  }
  for (int64_t k = 0; k < n; ++k) {
    const C* in = read_block(m, x + k * inner, in_block);
    C* out = output_block(y + k * inner, out_block);
    if (logarithm) {
      TAPESTRY_VECTOR_LOOP
      for (int64_t i = 0; i < m; ++i) {
        out[i] = (in[i] - shift[i]) - factor[i];
      }
    } else {
      TAPESTRY_VECTOR_LOOP
      for (int64_t i = 0; i < m; ++i) {
        out[i] = exp(in[i] - shift[i]) * factor[i];
      }
    }
    write_block(m, out, y + k * inner);
  }
}

template <class T>
void backward_columns(
    bool logarithm, int64_t n, int64_t inner, int64_t m, const T* y, const T* dy, T* dx) {
  using C = compute_t<T>;
  double sum[kBlock] = {};
  C y_block[kBlock];
  C dy_block[kBlock];
  C dx_block[kBlock];
  for (int64_t k = 0; k < n; ++k) {
    const C* p = read_block(m, y + k * inner, y_block);
    const C* g = read_block(m, dy + k * inner, dy_block);
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < m; ++i) {
      sum[i] += logarithm ? g[i] : p[i] * g[i];
    }
  }
  for (int64_t k = 0; k < n; ++k) {
    const C* p = read_block(m, y + k * inner, y_block);
    const C* g = read_block(m, dy + k * inner, dy_block);
    C* out = output_block(dx + k * inner, dx_block);
    if (logarithm) {
      TAPESTRY_VECTOR_LOOP
      for (int64_t i = 0; i < m; ++i) {
        out[i] = g[i] - exp(p[i]) * static_cast<C>(sum[i]);
      }
    } else {
      TAPESTRY_VECTOR_LOOP
      for (int64_t i = 0; i < m; ++i) {
        out[i] = p[i] * (g[i] - static_cast<C>(sum[i]));
      }
    }
    write_block(m, out, dx + k * inner);
  }
}

}  // namespace

void softmax_units(DType dtype,
                   bool logarithm,
                   int64_t begin,
                   int64_t end,
                   int64_t n,
                   int64_t inner,
                   const void* x_,
                   void* y_) {
  for_floating(dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const auto* x = static_cast<const T*>(x_);
    auto* y = static_cast<T*>(y_);
    for (int64_t unit = begin; unit < end; ++unit) {
      if (inner != 1) {
        const Columns at = columns_of(unit, n, inner);
        softmax_columns(logarithm, n, inner, at.count, x + at.offset, y + at.offset);
      } else if (logarithm) {
        log_softmax_row(n, x + unit * n, y + unit * n);
      } else {
        softmax_row(n, x + unit * n, y + unit * n);
      }
    }
  });
}

void softmax_backward_units(DType dtype,
                            bool logarithm,
                            int64_t begin,
                            int64_t end,
                            int64_t n,
                            int64_t inner,
                            const void* y_,
                            const void* dy_,
                            void* dx_) {
  for_floating(dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const auto* y = static_cast<const T*>(y_);
    const auto* dy = static_cast<const T*>(dy_);
    auto* dx = static_cast<T*>(dx_);
    for (int64_t unit = begin; unit < end; ++unit) {
      if (inner != 1) {
        const Columns at = columns_of(unit, n, inner);
        backward_columns(logarithm, n, inner, at.count, y + at.offset, dy + at.offset,
                         dx + at.offset);
      } else {
        backward_row(logarithm, n, y + unit * n, dy + unit * n, dx + unit * n);
      }
    }
  });
}

void logsumexp_units(
    DType dtype, int64_t begin, int64_t end, int64_t n, int64_t inner, const void* x_, void* y_) {
  for_floating(dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    using C = compute_t<T>;
    const auto* x = static_cast<const T*>(x_);
    auto* y = static_cast<T*>(y_);
    for (int64_t unit = begin; unit < end; ++unit) {
      C out[kBlock];
      if (inner == 1) {
        const auto row = row_statistics<T, C>(n, x + unit * n, true, nullptr);
        out[0] = static_cast<C>(__builtin_log(row.sum) + row.shift);
        store_row(1, out, y + unit);
      } else {
        const Columns at = columns_of(unit, n, inner);
        C shift[kBlock];
        double sum[kBlock];
        column_statistics(n, inner, at.count, x + at.offset, true, shift, sum);
        for (int64_t i = 0; i < at.count; ++i) {
          out[i] = static_cast<C>(__builtin_log(sum[i]) + shift[i]);
        }
        // Column c of outer row o of x starts at o n inner + c, that of y at o inner + c.
        const int64_t blocks = (inner + kBlock - 1) / kBlock;
        store_row(at.count, out, y + unit / blocks * inner + unit % blocks * kBlock);
      }
    }
  });
}

}  // namespace tapestry::kernels::TAPESTRY_ISA
