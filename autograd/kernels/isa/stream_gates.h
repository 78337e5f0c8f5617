// The gates of hyper-connections, of kStreamLanes tokens at once: a token in each lane, so that the
// rounds of dividing rows and columns are vector code.
//
// Only for sources in kernels/isa/: everything here has internal linkage, per level.
#pragma once

#include <cstdint>

#include "autograd/kernels/isa/vector_math.h"
#include "autograd/kernels/streams/hyper_connection_rows.h"

namespace tapestry::kernels::TAPESTRY_ISA {
namespace {

inline constexpr int64_t kLanesOfTokens = kStreamLanes;
inline constexpr double kSinkhornEps = 1e-6;

/// rows [count, m] as lanes [m][kStreamLanes], missing tokens as 0.
template <class C>
void to_lanes(int64_t count, int64_t m, const C* rows, C* lanes) {
  for (int64_t j = 0; j < m; ++j) {
    C* out = lanes + j * kLanesOfTokens;
    for (int64_t r = 0; r < kLanesOfTokens; ++r) {
      out[r] = r < count ? rows[r * m + j] : C(0);
    }
  }
}
template <class C>
void from_lanes(int64_t count, int64_t m, const C* lanes, C* rows) {
  for (int64_t r = 0; r < count; ++r) {
    for (int64_t j = 0; j < m; ++j) {
      rows[r * m + j] = lanes[j * kLanesOfTokens + r];
    }
  }
}

/// z = p alpha + bias of gates [first, first + count).
template <class C>
void logits_of(
    const HyperConnectionGates& maker, int64_t first, int64_t count, C alpha, const C* p, C* z) {
  const C* biases = static_cast<const C*>(maker.bias);
  for (int64_t j = first; j < first + count; ++j) {
    const C bias = biases[j];
    const C* in = p + j * kLanesOfTokens;
    C* out = z + j * kLanesOfTokens;
    TAPESTRY_VECTOR_LOOP
    for (int64_t lane = 0; lane < kLanesOfTokens; ++lane) {
      out[lane] = in[lane] * alpha + bias;
    }
  }
}

/// largest [n] of each row of z [n, n], and e = exp(z - largest). e may be z.
template <class C>
void exponentials(int64_t n, const C* z, C* largest, C* e) {
  for (int64_t i = 0; i < n; ++i) {
    const C* row = z + i * n * kLanesOfTokens;
    C* top = largest + i * kLanesOfTokens;
    TAPESTRY_VECTOR_LOOP
    for (int64_t lane = 0; lane < kLanesOfTokens; ++lane) {
      top[lane] = row[lane];
    }
    for (int64_t j = 1; j < n; ++j) {
      const C* in = row + j * kLanesOfTokens;
      TAPESTRY_VECTOR_LOOP
      for (int64_t lane = 0; lane < kLanesOfTokens; ++lane) {
        top[lane] = top[lane] > in[lane] ? top[lane] : in[lane];
      }
    }
    for (int64_t j = 0; j < n; ++j) {
      const C* in = row + j * kLanesOfTokens;
      C* out = e + (i * n + j) * kLanesOfTokens;
      TAPESTRY_VECTOR_LOOP
      for (int64_t lane = 0; lane < kLanesOfTokens; ++lane) {
        out[lane] = exp(in[lane] - top[lane]);
      }
    }
  }
}

/// Divides each line, whose elements lie `step` apart, by its sum + 1e-6; `inverse` [n] is 1 over
/// that. `to` may be `from`.
template <class C>
void divide_lines(int64_t n, int64_t line_step, int64_t step, const C* from, C* to, C* inverse) {
  for (int64_t line = 0; line < n; ++line) {
    const int64_t first = line * line_step * kLanesOfTokens;
    C sum[kLanesOfTokens];
    for (C& value : sum) {
      value = C(kSinkhornEps);
    }
    for (int64_t e = 0; e < n; ++e) {
      const C* in = from + first + e * step * kLanesOfTokens;
      TAPESTRY_VECTOR_LOOP
      for (int64_t lane = 0; lane < kLanesOfTokens; ++lane) {
        sum[lane] += in[lane];
      }
    }
    C* factor = inverse + line * kLanesOfTokens;
    TAPESTRY_VECTOR_LOOP
    for (int64_t lane = 0; lane < kLanesOfTokens; ++lane) {
      factor[lane] = C(1) / sum[lane];
    }
    for (int64_t e = 0; e < n; ++e) {
      const int64_t at = first + e * step * kLanesOfTokens;
      TAPESTRY_VECTOR_LOOP
      for (int64_t lane = 0; lane < kLanesOfTokens; ++lane) {
        to[at + lane] = from[at + lane] * factor[lane];
      }
    }
  }
}

/// From the gradient d of what divide_lines has made, y, to that of what it was given, in place.
template <class C>
void divided_gradients(
    int64_t n, int64_t line_step, int64_t step, const C* y, const C* inverse, C* d) {
  for (int64_t line = 0; line < n; ++line) {
    const int64_t first = line * line_step * kLanesOfTokens;
    C sum[kLanesOfTokens] = {};
    for (int64_t e = 0; e < n; ++e) {
      const int64_t at = first + e * step * kLanesOfTokens;
      TAPESTRY_VECTOR_LOOP
      for (int64_t lane = 0; lane < kLanesOfTokens; ++lane) {
        sum[lane] += d[at + lane] * y[at + lane];
      }
    }
    const C* factor = inverse + line * kLanesOfTokens;
    for (int64_t e = 0; e < n; ++e) {
      const int64_t at = first + e * step * kLanesOfTokens;
      TAPESTRY_VECTOR_LOOP
      for (int64_t lane = 0; lane < kLanesOfTokens; ++lane) {
        d[at + lane] = (d[at + lane] - sum[lane]) * factor[lane];
      }
    }
  }
}

/// p [m] to gates [m], which are res in place; z [m] is scratch.
template <class C>
void gates_from(
    const HyperConnectionGates& maker, int64_t n, const C* p, C* z, C* largest, C* gates) {
  const C* alpha = static_cast<const C*>(maker.alpha);
  logits_of(maker, 0, n, alpha[0], p, z);
  logits_of(maker, n, n, alpha[1], p, z);
  logits_of(maker, 2 * n, n * n, alpha[2], p, z);
  for (int64_t j = 0; j < 2 * n; ++j) {
    const C most = j < n ? C(1) : C(2);
    TAPESTRY_VECTOR_LOOP
    for (int64_t lane = j * kLanesOfTokens; lane < (j + 1) * kLanesOfTokens; ++lane) {
      gates[lane] = most * sigmoid(z[lane]);
    }
  }
  C* res = gates + 2 * n * kLanesOfTokens;
  exponentials(n, z + 2 * n * kLanesOfTokens, largest, res);
  C inverse[kMostStreams * kLanesOfTokens];
  for (int64_t round = 0; round < maker.iterations; ++round) {
    divide_lines(n, n, 1, res, res, inverse);
    divide_lines(n, 1, n, res, res, inverse);
  }
}

/// dres, the gradient of res, becomes that of its z. `rounds`: see hyper_connection_buffer().
template <class C>
void res_gradients(
    const HyperConnectionGates& maker, int64_t n, const C* z, C* largest, C* rounds, C* dres) {
  const int64_t size = n * n * kLanesOfTokens;
  const int64_t lines = n * kLanesOfTokens;
  const int64_t halves = 2 * maker.iterations;
  C* inverse = rounds + (halves + 1) * size;
  exponentials(n, z, largest, rounds);
  for (int64_t half = 0; half < halves; ++half) {
    const bool by_rows = half % 2 == 0;
    divide_lines(n, by_rows ? n : 1, by_rows ? 1 : n, rounds + half * size,
                 rounds + (half + 1) * size, inverse + half * lines);
  }
  for (int64_t half = halves; half-- > 0;) {
    const bool by_rows = half % 2 == 0;
    divided_gradients(n, by_rows ? n : 1, by_rows ? 1 : n, rounds + (half + 1) * size,
                      inverse + half * lines, dres);
  }
  // Through the exponential, and what is subtracted in it: the first of a row's largest.
  for (int64_t i = 0; i < n; ++i) {
    const C* top = largest + i * kLanesOfTokens;
    C left[kLanesOfTokens] = {};
    for (int64_t at = i * lines; at < (i + 1) * lines; at += kLanesOfTokens) {
      TAPESTRY_VECTOR_LOOP
      for (int64_t lane = 0; lane < kLanesOfTokens; ++lane) {
        dres[at + lane] *= rounds[at + lane];
        left[lane] += dres[at + lane];
      }
    }
    for (int64_t at = i * lines; at < (i + 1) * lines; at += kLanesOfTokens) {
      TAPESTRY_VECTOR_LOOP
      for (int64_t lane = 0; lane < kLanesOfTokens; ++lane) {
        const C taken = z[at + lane] == top[lane] ? left[lane] : C(0);
        dres[at + lane] -= taken;
        left[lane] -= taken;
      }
    }
  }
}

}  // namespace
}  // namespace tapestry::kernels::TAPESTRY_ISA
