#include "autograd/kernels/streams/hyper_connection.h"

#include <type_traits>

#include "autograd/kernels/isa/lanes.h"
#include "autograd/kernels/isa/row_io.h"
#include "autograd/kernels/isa/stream_gates.h"
#include "autograd/kernels/isa/stream_products.h"
#include "autograd/kernels/streams/hyper_connection_rows.h"

// Streams are read in panels of columns, which pass through buffers of the type computed in, unless
// they are of it. What a token has few numbers of, its gates, is computed for kStreamLanes tokens
// at once, a token to a lane, so that the rounds are vector code. Each number is made by the same
// operations wherever its token stands.
namespace tapestry::kernels::TAPESTRY_ISA {

namespace {

template <class C>
constexpr DType kDTypeOf = kSame<C, double> ? kFloat64 : kFloat32;

int64_t gates_of(const HyperConnectionShape& s) { return s.streams * (s.streams + 2); }
int64_t width_of(const HyperConnectionShape& s) { return s.streams * s.hidden; }

/// n elements from `offset` on: where they lie, or a copy in `buffer`.
template <class C>
const C* read_columns(DType dtype, const void* x, int64_t offset, int64_t n, C* buffer) {
  if (dtype == kDTypeOf<C>) {
    return static_cast<const C*>(x) + offset;
  }
  for_floating(dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    load_row(n, static_cast<const T*>(x) + offset, buffer);
  });
  return buffer;
}

template <class C>
void write_columns(DType dtype, void* y, int64_t offset, int64_t n, const C* values) {
  for_floating(dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    store_row(n, values, static_cast<T*>(y) + offset);
  });
}

template <class C>
void sum_squares(int64_t n, const C* x, double& sum) {
  LaneSum<double> own;
  own.add_dot(n, x, x);
  sum += own.get();
}

template <class C>
void read_group(const HyperConnectionRead& call, int64_t first, int64_t count, C* buffer) {
  const HyperConnectionShape& s = call.shape;
  const int64_t n = s.streams;
  const int64_t m = gates_of(s);
  const int64_t width = width_of(s);
  C* const panel = buffer;
  C* const p = panel + kLanesOfTokens * kStreamPanel;
  C* const lanes = p + kLanesOfTokens * m;
  C* const z = lanes + kLanesOfTokens * m;
  C* const gates = z + kLanesOfTokens * m;
  C* const largest = gates + kLanesOfTokens * m;
  for (int64_t i = 0; i < count * m; ++i) {
    p[i] = 0;
  }
  double squares[kLanesOfTokens] = {};
  const C* rows[kLanesOfTokens];
  const C* weights[kMostStreams * (kMostStreams + 2)];
  for (int64_t k = 0; k < width; k += kStreamPanel) {
    const int64_t columns = smaller(kStreamPanel, width - k);
    for (int64_t r = 0; r < count; ++r) {
      rows[r] =
          read_columns(s.dtype, call.x, (first + r) * width + k, columns, panel + r * kStreamPanel);
      sum_squares(columns, rows[r], squares[r]);
    }
    for (int64_t j = 0; j < m; ++j) {
      weights[j] = static_cast<const C*>(call.maker.weight) + j * width + k;
    }
    dots(columns, count, rows, m, weights, p, m);
  }
  for (int64_t r = 0; r < count; ++r) {
    const double mean = squares[r] / static_cast<double>(width);
    const C rstd = static_cast<C>(1.0 / __builtin_sqrt(mean + call.maker.eps));
    static_cast<C*>(call.rstd)[first + r] = rstd;
    for (int64_t j = 0; j < m; ++j) {
      p[r * m + j] *= rstd;
      static_cast<C*>(call.logits)[(first + r) * m + j] = p[r * m + j];
    }
  }
  to_lanes(count, m, p, lanes);
  gates_from(call.maker, n, lanes, z, largest, gates);
  from_lanes(count, m, gates, static_cast<C*>(call.gates) + first * m);
  C* const own = p;  // of which nothing is read any more
  from_lanes(count, m, gates, own);
  for (int64_t r = 0; r < count; ++r) {
    for (int64_t k = 0; k < s.hidden; k += kStreamPanel / 2) {
      const int64_t columns = smaller(kStreamPanel / 2, s.hidden - k);
      const C* sources[kMostStreams];
      for (int64_t i = 0; i < n; ++i) {
        sources[i] = read_columns(s.dtype, call.x, (first + r) * width + i * s.hidden + k, columns,
                                  panel + i * kStreamPanel / 2);
      }
      C* const sum = panel + n * kStreamPanel / 2;
      weighted_sum(columns, n, own + r * m, sources, sum);
      write_columns(s.dtype, call.input, (first + r) * s.hidden + k, columns, sum);
    }
  }
}

/// dpre [n] of a token += dinput . x.
template <class C>
void add_input_products(const HyperConnectionReadBackward& call, int64_t row, C* panel, C* dpre) {
  const HyperConnectionShape& s = call.shape;
  for (int64_t k = 0; k < s.hidden; k += kStreamPanel / 2) {
    const int64_t columns = smaller(kStreamPanel / 2, s.hidden - k);
    const C* slope = read_columns(s.dtype, call.dinput, row * s.hidden + k, columns, panel);
    const C* sources[kMostStreams];
    for (int64_t i = 0; i < s.streams; ++i) {
      sources[i] = read_columns(s.dtype, call.x, row * width_of(s) + i * s.hidden + k, columns,
                                panel + (i + 1) * kStreamPanel / 2);
    }
    dots(columns, 1, &slope, s.streams, sources, dpre, s.streams);
  }
}

template <class C>
void logit_group(const HyperConnectionReadBackward& call,
                 int64_t first,
                 int64_t count,
                 C* dz,
                 C* dq,
                 C* buffer) {
  const HyperConnectionShape& s = call.shape;
  const int64_t n = s.streams;
  const int64_t m = gates_of(s);
  C* const panel = buffer;
  C* const rows = panel + 2 * kLanesOfTokens * kStreamPanel;
  C* const p = rows + kLanesOfTokens * m;
  C* const z = p + kLanesOfTokens * m;
  C* const d = z + kLanesOfTokens * m;
  C* const largest = d + kLanesOfTokens * m;
  C* const rounds = largest + kLanesOfTokens * n;
  for (int64_t i = 0; i < count * m; ++i) {
    rows[i] = call.dgates != nullptr ? static_cast<const C*>(call.dgates)[first * m + i] : C(0);
  }
  for (int64_t r = 0; r < count && call.dinput != nullptr; ++r) {
    add_input_products(call, first + r, panel, rows + r * m);
  }
  to_lanes(count, m, rows, d);
  to_lanes(count, m, static_cast<const C*>(call.logits) + first * m, p);
  // pre and post, from which their slopes follow; of res what they are made of.
  to_lanes(count, m, static_cast<const C*>(call.gates) + first * m, z);
  const C* alpha = static_cast<const C*>(call.maker.alpha);
  logits_of(call.maker, 2 * n, n * n, alpha[2], p, z);
  for (int64_t j = 0; j < 2 * n; ++j) {
    const C most = j < n ? C(1) : C(2);
    TAPESTRY_VECTOR_LOOP
    for (int64_t lane = j * kLanesOfTokens; lane < (j + 1) * kLanesOfTokens; ++lane) {
      d[lane] *= z[lane] * (C(1) - z[lane] / most);
    }
  }
  const int64_t res = 2 * n * kLanesOfTokens;
  res_gradients(call.maker, n, z + res, largest, rounds, d + res);
  from_lanes(count, m, d, dz + first * m);
  for (int64_t r = 0; r < count; ++r) {
    const C rstd = static_cast<const C*>(call.rstd)[first + r];
    for (int64_t j = 0; j < m; ++j) {
      const int64_t at = (first + r) * m + j;
      dq[at] = dz[at] * alpha[smaller(j / n, 2)] * rstd;
    }
  }
}

template <class C>
void stream_group(
    const HyperConnectionReadBackward& call, int64_t first, int64_t count, const C* dq, C* buffer) {
  const HyperConnectionShape& s = call.shape;
  const int64_t m = gates_of(s);
  const int64_t width = width_of(s);
  const C* gates = static_cast<const C*>(call.gates) + first * m;
  const C* p = static_cast<const C*>(call.logits) + first * m;
  const C* slopes = dq + first * m;
  C* const sums = buffer;
  C* const own = sums + kLanesOfTokens * kStreamPanel;
  C* const read = own + kStreamPanel;
  C shrink[kLanesOfTokens];  // what the mean of squares takes away of x
  for (int64_t r = 0; r < count; ++r) {
    C sum = 0;
    for (int64_t j = 0; j < m; ++j) {
      sum += slopes[r * m + j] * p[r * m + j];
    }
    shrink[r] = -sum * static_cast<const C*>(call.rstd)[first + r] / static_cast<C>(width);
  }
  for (int64_t i = 0; i < s.streams; ++i) {
    for (int64_t k = 0; k < s.hidden; k += kStreamPanel) {
      const int64_t columns = smaller(kStreamPanel, s.hidden - k);
      const int64_t column = i * s.hidden + k;
      for (int64_t r = 0; r < count; ++r) {
        const int64_t at = (first + r) * width + column;
        const C* sources[3] = {read_columns(s.dtype, call.x, at, columns, own)};
        C factors[3] = {shrink[r]};
        int64_t terms = 1;
        if (call.dinput != nullptr) {
          sources[terms] =
              read_columns(s.dtype, call.dinput, (first + r) * s.hidden + k, columns, read);
          factors[terms++] = gates[r * m + i];
        }
        if (call.dpassed != nullptr) {
          sources[terms] = read_columns(s.dtype, call.dpassed, at, columns, read + kStreamPanel);
          factors[terms++] = 1;
        }
        weighted_sum(columns, terms, factors, sources, sums + r * kStreamPanel);
      }
      add_products(count, columns, m, slopes, static_cast<const C*>(call.maker.weight) + column,
                   width, sums, kStreamPanel);
      for (int64_t r = 0; r < count; ++r) {
        write_columns(s.dtype, call.dx, (first + r) * width + column, columns,
                      sums + r * kStreamPanel);
      }
    }
  }
}

/// sums[j, k] += sum over `rows` tokens of dq[row, j] x[row, k], two vectors of columns.
template <int kGates, class C>
[[gnu::noinline]] void weight_tile(int64_t rows, const C* dq, int64_t m, const C* x, C* sums) {
  vector_t<C> own[kGates][2];
#pragma GCC unroll 6
  for (int j = 0; j < kGates; ++j) {
    own[j][0] = load(sums + j * kWeightColumns);
    own[j][1] = load(sums + j * kWeightColumns + kLanes<C>);
  }
  for (int64_t r = 0; r < rows; ++r) {
    const vector_t<C> x0 = load(x + r * kWeightColumns);
    const vector_t<C> x1 = load(x + r * kWeightColumns + kLanes<C>);
#pragma GCC unroll 6
    for (int j = 0; j < kGates; ++j) {
      const vector_t<C> factor = broadcast(dq[r * m + j]);
      own[j][0] = multiply_add(factor, x0, own[j][0]);
      own[j][1] = multiply_add(factor, x1, own[j][1]);
    }
  }
#pragma GCC unroll 6
  for (int j = 0; j < kGates; ++j) {
    store(sums + j * kWeightColumns, own[j][0]);
    store(sums + j * kWeightColumns + kLanes<C>, own[j][1]);
  }
}

template <class C>
void weight_columns(const HyperConnectionReadBackward& call,
                    int64_t first,
                    int64_t columns,
                    const C* dq,
                    C* buffer) {
  constexpr int kGates = kVectorBytes == 64 ? 6 : 3;
  const HyperConnectionShape& s = call.shape;
  const int64_t m = gates_of(s);
  const int64_t width = width_of(s);
  C* const x = buffer;
  C* const sums = x + kWeightRows * kWeightColumns;
  for (int64_t i = 0; i < (kWeightRows + m) * kWeightColumns; ++i) {
    buffer[i] = 0;
  }
  for (int64_t row = 0; row < s.rows; row += kWeightRows) {
    const int64_t rows = smaller(kWeightRows, s.rows - row);
    for (int64_t r = 0; r < rows; ++r) {
      C* own = x + r * kWeightColumns;
      const C* in = read_columns(s.dtype, call.x, (row + r) * width + first, columns, own);
      for (int64_t k = 0; k < columns && in != own; ++k) {
        own[k] = in[k];
      }
    }
    for (int64_t k = 0; k < kWeightColumns; k += 2 * kLanes<C>) {
      int64_t j = 0;
      for (; j + kGates <= m; j += kGates) {
        weight_tile<kGates>(rows, dq + row * m + j, m, x + k, sums + j * kWeightColumns + k);
      }
      for (; j < m; ++j) {
        weight_tile<1>(rows, dq + row * m + j, m, x + k, sums + j * kWeightColumns + k);
      }
    }
  }
  for (int64_t j = 0; j < m; ++j) {
    for (int64_t k = 0; k < columns; ++k) {
      static_cast<C*>(call.dweight)[j * width + first + k] = sums[j * kWeightColumns + k];
    }
  }
}

template <class C>
void write_row(const HyperConnectionWrite& call, int64_t row, C* buffer) {
  const HyperConnectionShape& s = call.shape;
  const int64_t n = s.streams;
  const int64_t width = width_of(s);
  const C* gates = static_cast<const C*>(call.gates) + row * gates_of(s);
  C* const out = buffer + (n + 1) * kStreamPanel;
  for (int64_t k = 0; k < s.hidden; k += kStreamPanel) {
    const int64_t columns = smaller(kStreamPanel, s.hidden - k);
    const C* sources[kMostStreams + 1];
    for (int64_t j = 0; j < n; ++j) {
      sources[j] = read_columns(s.dtype, call.x, row * width + j * s.hidden + k, columns,
                                buffer + j * kStreamPanel);
    }
    sources[n] = read_columns(call.output_dtype, call.output, row * s.hidden + k, columns,
                              buffer + n * kStreamPanel);
    for (int64_t i = 0; i < n; ++i) {
      C factors[kMostStreams + 1];
      for (int64_t j = 0; j < n; ++j) {
        factors[j] = gates[2 * n + i * n + j];
      }
      factors[n] = gates[n + i];
      weighted_sum(columns, n + 1, factors, sources, out);
      write_columns(s.dtype, call.y, row * width + i * s.hidden + k, columns, out);
    }
  }
}

template <class C>
void write_gradient_row(const HyperConnectionWriteBackward& call, int64_t row, C* buffer) {
  const HyperConnectionShape& s = call.shape;
  const int64_t n = s.streams;
  const int64_t m = gates_of(s);
  const int64_t width = width_of(s);
  const C* gates = static_cast<const C*>(call.gates) + row * m;
  C* const out = buffer + (2 * n + 1) * kStreamPanel;
  C products[kMostStreams * (kMostStreams + 1)] = {};  // dy_i . x_j, and dy_i . o
  for (int64_t k = 0; k < s.hidden; k += kStreamPanel) {
    const int64_t columns = smaller(kStreamPanel, s.hidden - k);
    const C* slopes[kMostStreams];
    for (int64_t i = 0; i < n; ++i) {
      slopes[i] = read_columns(s.dtype, call.dy, row * width + i * s.hidden + k, columns,
                               buffer + i * kStreamPanel);
    }
    if (call.dgates != nullptr) {
      const C* sources[kMostStreams + 1];
      for (int64_t j = 0; j < n; ++j) {
        sources[j] = read_columns(s.dtype, call.x, row * width + j * s.hidden + k, columns,
                                  buffer + (n + j) * kStreamPanel);
      }
      sources[n] = read_columns(call.output_dtype, call.output, row * s.hidden + k, columns,
                                buffer + 2 * n * kStreamPanel);
      dots(columns, n, slopes, n + 1, sources, products, n + 1);
    }
    if (call.doutput != nullptr) {
      weighted_sum(columns, n, gates + n, slopes, out);
      write_columns(call.output_dtype, call.doutput, row * s.hidden + k, columns, out);
    }
    for (int64_t j = 0; j < n && call.dx != nullptr; ++j) {
      C factors[kMostStreams];
      for (int64_t i = 0; i < n; ++i) {
        factors[i] = gates[2 * n + i * n + j];
      }
      weighted_sum(columns, n, factors, slopes, out);
      write_columns(s.dtype, call.dx, row * width + j * s.hidden + k, columns, out);
    }
  }
  if (call.dgates == nullptr) {
    return;
  }
  C* dgates = static_cast<C*>(call.dgates) + row * m;
  for (int64_t i = 0; i < n; ++i) {
    dgates[i] = 0;
    dgates[n + i] = products[i * (n + 1) + n];
    for (int64_t j = 0; j < n; ++j) {
      dgates[2 * n + i * n + j] = products[i * (n + 1) + j];
    }
  }
}

/// Calls f(buffer of the compute type).
template <class F>
void in_type_of(const HyperConnectionShape& s, void* buffer, const F& f) {
  if (s.dtype == kFloat64) {
    f(static_cast<double*>(buffer));
  } else {
    f(static_cast<float*>(buffer));
  }
}

/// Calls f(first, count) for groups of up to kStreamLanes tokens.
template <class F>
void for_groups(int64_t begin, int64_t end, const F& f) {
  for (int64_t first = begin; first < end; first += kLanesOfTokens) {
    f(first, smaller(kLanesOfTokens, end - first));
  }
}

}  // namespace

void hyper_connection_read_rows(const HyperConnectionRead& call,
                                int64_t begin,
                                int64_t end,
                                void* buffer) {
  in_type_of(call.shape, buffer, [&](auto* memory) {
    for_groups(begin, end,
               [&](int64_t first, int64_t count) { read_group(call, first, count, memory); });
  });
}

void hyper_connection_logit_gradients(const HyperConnectionReadBackward& call,
                                      int64_t begin,
                                      int64_t end,
                                      void* dz,
                                      void* dq,
                                      void* buffer) {
  in_type_of(call.shape, buffer, [&](auto* memory) {
    using C = std::remove_pointer_t<decltype(memory)>;
    for_groups(begin, end, [&](int64_t first, int64_t count) {
      logit_group(call, first, count, static_cast<C*>(dz), static_cast<C*>(dq), memory);
    });
  });
}

void hyper_connection_stream_gradients(const HyperConnectionReadBackward& call,
                                       int64_t begin,
                                       int64_t end,
                                       const void* dq,
                                       void* buffer) {
  in_type_of(call.shape, buffer, [&](auto* memory) {
    using C = std::remove_pointer_t<decltype(memory)>;
    for_groups(begin, end, [&](int64_t first, int64_t count) {
      stream_group(call, first, count, static_cast<const C*>(dq), memory);
    });
  });
}

void hyper_connection_weight_gradients(const HyperConnectionReadBackward& call,
                                       int64_t first,
                                       int64_t columns,
                                       const void* dq,
                                       void* buffer) {
  in_type_of(call.shape, buffer, [&](auto* memory) {
    using C = std::remove_pointer_t<decltype(memory)>;
    weight_columns(call, first, columns, static_cast<const C*>(dq), memory);
  });
}

void hyper_connection_write_rows(const HyperConnectionWrite& call,
                                 int64_t begin,
                                 int64_t end,
                                 void* buffer) {
  in_type_of(call.shape, buffer, [&](auto* memory) {
    for (int64_t row = begin; row < end; ++row) {
      write_row(call, row, memory);
    }
  });
}

void hyper_connection_write_gradients(const HyperConnectionWriteBackward& call,
                                      int64_t begin,
                                      int64_t end,
                                      void* buffer) {
  in_type_of(call.shape, buffer, [&](auto* memory) {
    for (int64_t row = begin; row < end; ++row) {
      write_gradient_row(call, row, memory);
    }
  });
}

}  // namespace tapestry::kernels::TAPESTRY_ISA
