#include "autograd/kernels/gated_norm.h"

#include <type_traits>

#include "autograd/kernels/gated_norm_rows.h"
#include "autograd/kernels/isa/lanes.h"
#include "autograd/kernels/isa/row_io.h"

// Rows pass through buffers of the type computed in, unless they are of it, so that there is one
// loop for all combinations of dtypes; groups are parts of these.
namespace tapestry::kernels::TAPESTRY_ISA {

namespace {

template <class C>
constexpr DType kDTypeOf = kSame<C, double> ? kFloat64 : kFloat32;

/// A row: where it lies, or a copy in `buffer`.
template <class C>
const C* row_from(DType dtype, int64_t n, const void* rows, int64_t offset, C* buffer) {
  if (dtype == kDTypeOf<C>) {
    return static_cast<const C*>(rows) + offset;
  }
  for_floating(dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    load_row(n, static_cast<const T*>(rows) + offset, buffer);
  });
  return buffer;
}

/// Where to write a row of n elements: in place, or to `buffer`; then call row_to.
template <class C>
C* row_out(DType dtype, void* rows, int64_t offset, C* buffer) {
  return rows != nullptr && dtype == kDTypeOf<C> ? static_cast<C*>(rows) + offset : buffer;
}
template <class C>
void row_to(DType dtype, int64_t n, const C* out, void* rows, int64_t offset) {
  if (rows == nullptr || dtype == kDTypeOf<C>) {
    return;
  }
  for_floating(dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    store_row(n, out, static_cast<T*>(rows) + offset);
  });
}

template <class C>
double sum_of_squares(int64_t n, const C* u) {
  LaneSum<double> sum;
  sum.add_dot(n, u, u);
  return sum.get();
}

/// The sum of slope (u rstd).
template <class C>
double dot_with_normed(int64_t n, const C* slope, const C* u, C rstd) {
  LaneSum<double> sum;
  C normed[kBlock];
  for (int64_t done = 0; done < n; done += kBlock) {
    const int64_t m = block_size(n - done);
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < m; ++i) {
      normed[i] = u[done + i] * rstd;
    }
    sum.add_dot(m, slope + done, normed);
  }
  return sum.get();
}

/// u of a whole row: x itself, or x silu(z) in `buffer`.
template <class C>
const C* normed_row(const GatedNormShape& s, const C* x, const C* z, C* buffer) {
  if (!s.gate_first) {
    return x;
  }
  TAPESTRY_VECTOR_LOOP
  for (int64_t i = 0; i < s.n; ++i) {
    buffer[i] = x[i] * silu(z[i]);
  }
  return buffer;
}

template <class C>
void forward_row(const GatedNormForward& call, int64_t row, C* buffers) {
  const GatedNormShape& s = call.shape;
  const int64_t groups = s.n / s.group;
  const C* x = row_from(s.x_dtype, s.n, call.x, row * s.x_stride, buffers);
  const C* z = row_from(s.z_dtype, s.n, call.z, row * s.z_stride, buffers + s.n);
  const C* u = normed_row(s, x, z, buffers + 2 * s.n);
  C* y = row_out(s.y_dtype, call.y, row * s.n, buffers + 3 * s.n);
  const C* gains = static_cast<const C*>(call.gain);
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t at = g * s.group;
    const double mean =
        call.mean_squares != nullptr
            ? static_cast<double>(static_cast<const C*>(call.mean_squares)[row * groups + g])
            : sum_of_squares(s.group, u + at) / static_cast<double>(s.group);
    const auto rstd = static_cast<C>(1.0 / __builtin_sqrt(mean + call.eps));
    static_cast<C*>(call.rstd)[row * groups + g] = rstd;
    const C* own = u + at;
    C* out = y + at;
    if (gains != nullptr) {
      const C* gain = s.gain_is_shared ? gains : gains + at;
      TAPESTRY_VECTOR_LOOP
      for (int64_t i = 0; i < s.group; ++i) {
        out[i] = own[i] * rstd * gain[i];
      }
    } else {
      TAPESTRY_VECTOR_LOOP
      for (int64_t i = 0; i < s.group; ++i) {
        out[i] = own[i] * rstd;
      }
    }
  }
  if (!s.gate_first) {
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < s.n; ++i) {
      y[i] *= silu(z[i]);
    }
  }
  row_to(s.y_dtype, s.n, y, call.y, row * s.n);
}

/// silu(z) and its derivative with one exponential, which does not overflow.
template <class C>
struct Gate {
  C value;
  C slope;
};
template <class C>
TAPESTRY_INLINE Gate<C> gate_at(C z) {
  constexpr C kLimit = sizeof(C) == 8 ? C(700) : C(87);
  const C above = z < -kLimit ? -kLimit : z;  // below it silu is 0 to all digits
  const C c = above > kLimit ? kLimit : above;
  const C e = exp(-c);
  const C s = C(1) / (C(1) + e);
  return {above * s, s * (C(1) + c * (e * s))};
}

/// From du to dx and dz, where the gate is first.
template <class C>
void gate_gradients(int64_t n, const C* du, const C* x, const C* z, C* dx, C* dz) {
  TAPESTRY_VECTOR_LOOP
  for (int64_t i = 0; i < n; ++i) {
    const C gradient = du[i];
    const Gate<C> gate = gate_at(z[i]);
    dz[i] = gradient * x[i] * gate.slope;
    dx[i] = gradient * gate.value;
  }
}

template <class C>
void backward_row(const GatedNormBackward& call, int64_t row, C* dgains, C* buffers) {
  const GatedNormShape& s = call.shape;
  const int64_t n = s.n;
  const int64_t groups = n / s.group;
  const C* x = row_from(s.x_dtype, n, call.x, row * s.x_stride, buffers);
  const C* z = row_from(s.z_dtype, n, call.z, row * s.z_stride, buffers + n);
  const C* dy = row_from(s.y_dtype, n, call.dy, row * call.dy_stride, buffers + 2 * n);
  const C* u = normed_row(s, x, z, buffers + 3 * n);
  C* h = buffers + 4 * n;   // dy silu(z), or dy: the gradient of u rstd gain
  C* du = buffers + 5 * n;  // or dy silu'(z), where the gate comes last
  C* dx = row_out(s.x_dtype, call.dx, row * n, buffers + 6 * n);
  C* dz = row_out(s.z_dtype, call.dz, row * n, buffers + 7 * n);
  if (s.gate_first) {
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < n; ++i) {
      h[i] = dy[i];
    }
  } else {
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < n; ++i) {
      const Gate<C> gate = gate_at(z[i]);
      const C slope = dy[i];
      h[i] = slope * gate.value;
      du[i] = slope * gate.slope;
    }
  }
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t at = g * s.group;
    const int64_t gain_at = s.gain_is_shared ? 0 : at;
    const C rstd = static_cast<const C*>(call.rstd)[row * groups + g];
    const C* own = u + at;
    C* slope = h + at;
    if (dgains != nullptr) {
      C* dgain = dgains + gain_at;
      TAPESTRY_VECTOR_LOOP
      for (int64_t i = 0; i < s.group; ++i) {
        dgain[i] += slope[i] * (own[i] * rstd);
      }
    }
    if (!s.gate_first) {  // times what the gate multiplies, u rstd gain
      const C* gain = static_cast<const C*>(call.gain);
      TAPESTRY_VECTOR_LOOP
      for (int64_t i = 0; i < s.group; ++i) {
        const C factor = gain != nullptr ? gain[gain_at + i] : C(1);
        dz[at + i] = du[at + i] * (own[i] * rstd * factor);
      }
    }
    if (call.gain != nullptr) {
      const C* gain = static_cast<const C*>(call.gain) + gain_at;
      TAPESTRY_VECTOR_LOOP
      for (int64_t i = 0; i < s.group; ++i) {
        slope[i] *= gain[i];
      }
    }
    const double sum = dot_with_normed(s.group, slope, own, rstd);
    if (call.dmean_squares != nullptr) {
      static_cast<C*>(call.dmean_squares)[row * groups + g] =
          static_cast<C>(-0.5 * static_cast<double>(rstd) * static_cast<double>(rstd) * sum);
    }
    const auto average =
        static_cast<C>(call.squares_were_given ? 0.0 : sum / static_cast<double>(s.group));
    C* out = (s.gate_first ? du : dx) + at;
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < s.group; ++i) {
      out[i] = rstd * (slope[i] - own[i] * rstd * average);
    }
  }
  if (s.gate_first) {
    gate_gradients(n, du, x, z, dx, dz);
  }
  row_to(s.x_dtype, n, dx, call.dx, row * n);
  row_to(s.z_dtype, n, dz, call.dz, row * n);
}

template <class C>
void squares_row(const GatedSquares& call, int64_t row, C* buffers) {
  const GatedNormShape& s = call.shape;
  const int64_t groups = s.n / s.group;
  const C* x = row_from(s.x_dtype, s.n, call.x, row * s.x_stride, buffers);
  const C* z =
      s.gate_first ? row_from(s.z_dtype, s.n, call.z, row * s.z_stride, buffers + s.n) : nullptr;
  const C* u = normed_row(s, x, z, buffers + 2 * s.n);
  for (int64_t g = 0; g < groups; ++g) {
    static_cast<C*>(call.squares)[row * groups + g] =
        static_cast<C>(sum_of_squares(s.group, u + g * s.group));
  }
}

template <class C>
void squares_backward_row(const GatedSquaresBackward& call, int64_t row, C* buffers) {
  const GatedNormShape& s = call.shape;
  const int64_t groups = s.n / s.group;
  const C* x = row_from(s.x_dtype, s.n, call.x, row * s.x_stride, buffers);
  const C* z =
      s.gate_first ? row_from(s.z_dtype, s.n, call.z, row * s.z_stride, buffers + s.n) : nullptr;
  const C* u = normed_row(s, x, z, buffers + 2 * s.n);
  C* dx = row_out(s.x_dtype, call.dx, row * s.n, buffers + 3 * s.n);
  C* dz = row_out(s.z_dtype, call.dz, row * s.n, buffers + 4 * s.n);
  C* du = s.gate_first ? buffers + 5 * s.n : dx;
  for (int64_t g = 0; g < groups; ++g) {
    const C twice = 2 * static_cast<const C*>(call.dsquares)[row * groups + g];
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = g * s.group; i < (g + 1) * s.group; ++i) {
      du[i] = twice * u[i];
    }
  }
  if (s.gate_first) {
    gate_gradients(s.n, du, x, z, dx, dz);
    row_to(s.z_dtype, s.n, dz, call.dz, row * s.n);
  }
  row_to(s.x_dtype, s.n, dx, call.dx, row * s.n);
}

/// Calls f(buffers of the compute type).
template <class F>
void in_compute_type(const GatedNormShape& s, void* buffers, const F& f) {
  if (s.x_dtype == kFloat64) {
    f(static_cast<double*>(buffers));
  } else {
    f(static_cast<float*>(buffers));
  }
}

}  // namespace

void gated_norm_rows(const GatedNormForward& call, int64_t begin, int64_t end, void* buffers) {
  in_compute_type(call.shape, buffers, [&](auto* memory) {
    for (int64_t row = begin; row < end; ++row) {
      forward_row(call, row, memory);
    }
  });
}

void gated_norm_backward_rows(
    const GatedNormBackward& call, int64_t begin, int64_t end, void* dgain, void* buffers) {
  in_compute_type(call.shape, buffers, [&](auto* memory) {
    for (int64_t row = begin; row < end; ++row) {
      backward_row(call, row, static_cast<decltype(memory)>(dgain), memory);
    }
  });
}

void gated_squares_rows(const GatedSquares& call, int64_t begin, int64_t end, void* buffers) {
  in_compute_type(call.shape, buffers, [&](auto* memory) {
    for (int64_t row = begin; row < end; ++row) {
      squares_row(call, row, memory);
    }
  });
}

void gated_squares_backward_rows(const GatedSquaresBackward& call,
                                 int64_t begin,
                                 int64_t end,
                                 void* buffers) {
  in_compute_type(call.shape, buffers, [&](auto* memory) {
    for (int64_t row = begin; row < end; ++row) {
      squares_backward_row(call, row, memory);
    }
  });
}

}  // namespace tapestry::kernels::TAPESTRY_ISA
