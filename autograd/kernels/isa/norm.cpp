#include "autograd/kernels/norm.h"

#include <type_traits>

#include "autograd/kernels/isa/lanes.h"
#include "autograd/kernels/isa/row_io.h"
#include "autograd/kernels/norm_rows.h"

// Weight and biases come in the type computed in, C below, and sums are returned in it; norm.cpp
// converts. A row that is not of type C passes through a buffer, so that there is one loop for all
// combinations of dtypes.
namespace tapestry::kernels::TAPESTRY_ISA {

namespace {

template <class C>
constexpr DType kDTypeOf = kSame<C, double> ? kFloat64 : kFloat32;

/// Row number `row` of a [rows, n] array: where it lies, or a copy in `buffer`.
template <class C>
const C* read_row(DType dtype, int64_t n, const void* rows, int64_t row, C* buffer) {
  if (dtype == kDTypeOf<C>) {
    return static_cast<const C*>(rows) + row * n;
  }
  for_floating(dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    load_row(n, static_cast<const T*>(rows) + row * n, buffer);
  });
  return buffer;
}

/// Where to write that row: in place, or to `buffer`; then call write_row.
template <class C>
C* output_row(DType dtype, int64_t n, void* rows, int64_t row, C* buffer) {
  return dtype == kDTypeOf<C> ? static_cast<C*>(rows) + row * n : buffer;
}

template <class C>
void write_row(DType dtype, int64_t n, const C* out, void* rows, int64_t row) {
  if (dtype == kDTypeOf<C> && out == static_cast<C*>(rows) + row * n) {
    return;
  }
  for_floating(dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    store_row(n, out, static_cast<T*>(rows) + row * n);
  });
}

/// Sum of x (power 1), or of (x - center)^2 (power 2), in float64 and in lanes.
template <int kPower, class C>
double sum_row(int64_t n, const C* x, double center) {
  LaneSum<double> sum;
  if constexpr (kPower == 1) {
    sum.add(n, x);
  } else {
    sum.add_squares(n, x, center);
  }
  return sum.get();
}

/// The mean is given in two parts: rounding it would shift all results where it is large.
template <class C>
void normalize_row(
    int64_t n, const C* x, const C* weight, const C* bias, C mean, C rest, C rstd, C* y) {
  if (weight != nullptr && bias != nullptr) {
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < n; ++i) {
      y[i] = (x[i] - mean - rest) * rstd * weight[i] + bias[i];
    }
  } else if (weight != nullptr) {
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < n; ++i) {
      y[i] = (x[i] - mean - rest) * rstd * weight[i];
    }
  } else {
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < n; ++i) {
      y[i] = (x[i] - mean - rest) * rstd;
    }
    if (bias != nullptr) {
      TAPESTRY_VECTOR_LOOP
      for (int64_t i = 0; i < n; ++i) {
        y[i] += bias[i];
      }
    }
  }
}

template <class C>
void add_rows(int64_t n, const C* residual, const C* x, const C* bias, C* out) {
  if (bias != nullptr) {
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < n; ++i) {
      out[i] = residual[i] + (x[i] + bias[i]);
    }
  } else {
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < n; ++i) {
      out[i] = residual[i] + x[i];
    }
  }
}

template <class C>
void forward_row(const NormForward& call, int64_t row, C* row_buffer, C* other_buffer) {
  const NormShape& s = call.shape;
  const C* sum = read_row(s.sum_dtype, s.n, call.residual, row, row_buffer);
  if (call.x != nullptr) {
    const C* x = read_row(s.x_dtype, s.n, call.x, row, other_buffer);
    C* out = output_row(s.sum_dtype, s.n, call.sum, row, row_buffer);
    add_rows(s.n, sum, x, static_cast<const C*>(call.x_bias), out);
    write_row(s.sum_dtype, s.n, out, call.sum, row);
    sum = read_row(s.sum_dtype, s.n, call.sum, row, row_buffer);
  }
  double mean = 0;
  if (s.centered) {
    mean = sum_row<1>(s.n, sum, 0.0) / static_cast<double>(s.n);
    static_cast<C*>(call.mean)[row] = static_cast<C>(mean);
  }
  const double variance = sum_row<2>(s.n, sum, mean) / static_cast<double>(s.n);
  const auto rstd = static_cast<C>(1.0 / __builtin_sqrt(variance + call.eps));
  static_cast<C*>(call.rstd)[row] = rstd;
  C* y = output_row(s.normed_dtype, s.n, call.normed, row, other_buffer);
  normalize_row(s.n, sum, static_cast<const C*>(call.weight), static_cast<const C*>(call.bias),
                static_cast<C>(mean), static_cast<C>(mean - static_cast<C>(mean)), rstd, y);
  write_row(s.normed_dtype, s.n, y, call.normed, row);
}

/// The averages that the gradient of one row needs; with them g = dy weight, rounded once, so that
/// it is the same in the average and in the difference: in a row of one element that has to be
/// exactly 0.
struct RowAverages {
  double g = 0;
  double g_xhat = 0;
};

/// First half of the backward pass: averages, and what the row adds to the sums.
template <bool kWeight, int kSums, class C>
RowAverages reduce_row(int64_t n,
                       const C* dy,
                       const C* x,
                       const C* weight,
                       C mean,
                       C rstd,
                       C* g,
                       C* dweight,
                       C* dbias) {
  LaneSum<double> sum_g;
  LaneSum<double> sum_gx;
  C products[kBlock];
  for (int64_t done = 0; done < n; done += kBlock) {
    const int64_t end = done + block_size(n - done);
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = done; i < end; ++i) {
      const C xhat = (x[i] - mean) * rstd;
      const C slope = dy[i];
      const C gw = kWeight ? slope * weight[i] : slope;
      if (kSums >= 1) {
        dweight[i] += slope * xhat;
      }
      if (kSums >= 2) {
        dbias[i] += slope;
      }
      g[i] = gw;
      products[i - done] = gw * xhat;
    }
    sum_g.add(end - done, g + done);
    sum_gx.add(end - done, products);
  }
  return {sum_g.get() / static_cast<double>(n), sum_gx.get() / static_cast<double>(n)};
}

template <bool kWeight, class C>
RowAverages reduce_row(int64_t n,
                       const C* dy,
                       const C* x,
                       const C* weight,
                       C mean,
                       C rstd,
                       C* g,
                       C* dweight,
                       C* dbias) {
  if (dweight == nullptr) {
    return reduce_row<kWeight, 0>(n, dy, x, weight, mean, rstd, g, dweight, dbias);
  }
  if (dbias == nullptr) {
    return reduce_row<kWeight, 1>(n, dy, x, weight, mean, rstd, g, dweight, dbias);
  }
  return reduce_row<kWeight, 2>(n, dy, x, weight, mean, rstd, g, dweight, dbias);
}

/// Second half: out = dsum + rstd (g - average(g) - xhat average(g xhat)).
template <class C>
void gradient_row(
    int64_t n, const C* dsum, const C* g, const C* x, C mean, C rstd, C avg_g, C avg_gx, C* out) {
  if (dsum != nullptr) {
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < n; ++i) {
      const C xhat = (x[i] - mean) * rstd;
      out[i] = dsum[i] + rstd * (g[i] - avg_g - xhat * avg_gx);
    }
  } else {
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < n; ++i) {
      const C xhat = (x[i] - mean) * rstd;
      out[i] = rstd * (g[i] - avg_g - xhat * avg_gx);
    }
  }
}

template <class C>
void backward_row(const NormBackward& call, int64_t row, const NormSums& sums, C* buffers) {
  const NormShape& s = call.shape;
  const int64_t n = s.n;
  C* g_row = buffers;
  C* x_buffer = buffers + n;
  C* dy_buffer = buffers + 2 * n;
  C* out_buffer = buffers + 3 * n;
  const C* dy = read_row(s.normed_dtype, n, call.dnormed, row, dy_buffer);
  const C* x = read_row(s.sum_dtype, n, call.sum, row, x_buffer);
  const auto* weight = static_cast<const C*>(call.weight);
  const C mean = s.centered ? static_cast<const C*>(call.mean)[row] : C(0);
  const C rstd = static_cast<const C*>(call.rstd)[row];
  auto* dweight = static_cast<C*>(sums.dweight);
  auto* dbias = static_cast<C*>(sums.dbias);
  const RowAverages averages =
      weight != nullptr ? reduce_row<true>(n, dy, x, weight, mean, rstd, g_row, dweight, dbias)
                        : reduce_row<false>(n, dy, x, weight, mean, rstd, g_row, dweight, dbias);
  if (call.d == nullptr && call.dx == nullptr && sums.dx_bias == nullptr) {
    return;
  }
  const C* dsum =
      call.dsum != nullptr ? read_row(s.sum_dtype, n, call.dsum, row, dy_buffer) : nullptr;
  C* out = call.d != nullptr ? output_row(s.sum_dtype, n, call.d, row, out_buffer) : out_buffer;
  gradient_row(n, dsum, g_row, x, mean, rstd, static_cast<C>(s.centered ? averages.g : 0.0),
               static_cast<C>(averages.g_xhat), out);
  if (sums.dx_bias != nullptr) {
    C* dx_bias = static_cast<C*>(sums.dx_bias);
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < n; ++i) {
      dx_bias[i] += out[i];
    }
  }
  if (call.d != nullptr) {
    write_row(s.sum_dtype, n, out, call.d, row);
  }
  if (call.dx != nullptr) {
    write_row(s.x_dtype, n, out, call.dx, row);
  }
}

}  // namespace

void norm_forward_rows(const NormForward& call, int64_t begin, int64_t end, void* buffers) {
  const int64_t n = call.shape.n;
  if (call.shape.sum_dtype == kFloat64) {
    auto* rows = static_cast<double*>(buffers);
    for (int64_t row = begin; row < end; ++row) {
      forward_row(call, row, rows, rows + n);
    }
  } else {
    auto* rows = static_cast<float*>(buffers);
    for (int64_t row = begin; row < end; ++row) {
      forward_row(call, row, rows, rows + n);
    }
  }
}

void norm_backward_rows(
    const NormBackward& call, int64_t begin, int64_t end, const NormSums& sums, void* buffers) {
  if (call.shape.sum_dtype == kFloat64) {
    for (int64_t row = begin; row < end; ++row) {
      backward_row(call, row, sums, static_cast<double*>(buffers));
    }
  } else {
    for (int64_t row = begin; row < end; ++row) {
      backward_row(call, row, sums, static_cast<float*>(buffers));
    }
  }
}

}  // namespace tapestry::kernels::TAPESTRY_ISA
