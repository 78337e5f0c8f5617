#include "autograd/kernels/factored_update.h"

#include "autograd/kernels/isa/optimizer_rows.h"

namespace tapestry::kernels::TAPESTRY_ISA {

void factored_squares_tile(const FactoredTile& tile);
void factored_norms_tile(const FactoredTile& tile);
void adafactor_apply_tile(const FactoredTile& tile);
void came_average_tile(const FactoredTile& tile);
void came_apply_tile(const FactoredTile& tile);

namespace {

// The constants in the type of computation.
template <class C>
struct Constants {
  explicit Constants(const FactoredConstants& k)
      : grad_scale(static_cast<C>(k.grad_scale)),
        grad_limit(static_cast<C>(k.grad_limit)),
        eps1(static_cast<C>(k.eps1)),
        eps3(static_cast<C>(k.eps3)),
        beta1(static_cast<C>(k.beta1)),
        rest1(static_cast<C>(1.0 - k.beta1)),
        beta2(static_cast<C>(k.beta2)),
        rest2(static_cast<C>(1.0 - k.beta2)),
        clip(static_cast<C>(k.clip)),
        step(static_cast<C>(k.step)),
        decay(static_cast<C>(k.decay)) {}

  C grad_scale, grad_limit, eps1, eps3, beta1, rest1, beta2, rest2, clip, step, decay;
};

// n elements of a row from number `at` of the tile on, with the columns from `column` on.
template <class C>
struct Row {
  int64_t n;
  int64_t at;
  int64_t column;
  const C* g;
  C root;               // of the row
  const C* roots;       // of the columns
  const C* exp_avg_sq;  // of a vector
};

// A pass that only reads waits for memory: what the processor fetches ahead of one stream by itself
// is half of what the memory could give. So each block asks for the one that many bytes behind it.
constexpr int64_t kAhead = 4096;
constexpr int64_t kCacheLine = 64;

template <class C>
[[gnu::always_inline]] inline void fetch_ahead(const void* array, int64_t at, int64_t n, C) {
  const auto* first = static_cast<const std::byte*>(array) + at * static_cast<int64_t>(sizeof(C));
  for (int64_t byte = 0; byte < n * static_cast<int64_t>(sizeof(C)); byte += kCacheLine) {
    __builtin_prefetch(first + kAhead + byte);
  }
}

// Calls body(row) for all elements of the tile, in blocks of parts of one row.
template <class C, class Body>
[[gnu::always_inline]] inline void for_rows(const FactoredTile& t, bool reads_grad, Body&& body) {
  C g_block[kBlock];
  const auto* row_root = static_cast<const C*>(t.row_root);
  const auto* column_root = static_cast<const C*>(t.column_root);
  const auto* exp_avg_sq = static_cast<const C*>(t.exp_avg_sq);
  for (int64_t row = 0; row < t.rows; ++row) {
    for (int64_t column = 0; column < t.columns; column += kBlock) {
      const int64_t n = block_size(t.columns - column);
      const int64_t at = row * t.columns + column;
      if (reads_grad && t.grad_dtype == t.dtype) {
        fetch_ahead<C>(t.g, at, n, C{});
      }
      body(row, Row<C>{.n = n,
                       .at = at,
                       .column = column,
                       .g = reads_grad ? read_any(t.grad_dtype, n, t.g, at, g_block) : nullptr,
                       .root = row_root != nullptr ? row_root[row] : C{1},
                       .roots = column_root != nullptr ? column_root + column : nullptr,
                       .exp_avg_sq = exp_avg_sq != nullptr ? exp_avg_sq + at : nullptr});
    }
  }
}

// u before clipping.
template <bool kVector, class C>
[[gnu::always_inline]] inline C direction(const Row<C>& row, int64_t i, const Constants<C>& k) {
  const C g = limited(row.g[i] * k.grad_scale, k.grad_limit);
  if constexpr (kVector) {
    return g / root_of(row.exp_avg_sq[i]);
  } else {
    return g * row.roots[i] * row.root;
  }
}

template <class C>
void squares_typed(const FactoredTile& t) {
  const Constants<C> k(*t.constants);
  auto* columns = static_cast<C*>(t.column_sums);
  for (int64_t row = 0; row < t.rows; ++row) {
    t.row_sums[row] = 0;
  }
  for_rows<C>(t, true, [&](int64_t number, const Row<C>& row) {
    C* sums = columns + row.column;
    C sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < row.n; ++i) {
      const C g = limited(row.g[i] * k.grad_scale, k.grad_limit);
      const C square = g * g + k.eps1;
      sums[i] += square;
      sum += square;
    }
    t.row_sums[number] += static_cast<double>(sum);
  });
}

template <class C, bool kVector>
void norms_typed(const FactoredTile& t) {
  const Constants<C> k(*t.constants);
  const auto* p = static_cast<const C*>(t.p);
  double squares = 0;
  double param_squares = 0;
  for_rows<C>(t, true, [&](int64_t /*number*/, const Row<C>& row) {
    if constexpr (kVector) {
      C* v = static_cast<C*>(t.exp_avg_sq) + row.at;
      TAPESTRY_VECTOR_LOOP
      for (int64_t i = 0; i < row.n; ++i) {
        const C g = limited(row.g[i] * k.grad_scale, k.grad_limit);
        v[i] = k.beta2 * v[i] + k.rest2 * (g * g + k.eps1);
      }
    }
    C sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < row.n; ++i) {
      const C u = direction<kVector>(row, i, k);
      sum += u * u;
    }
    squares += static_cast<double>(sum);
    if (t.param_squares != nullptr) {
      const C* values = p + row.at;
      C param_sum = 0;
#pragma omp simd reduction(+ : param_sum)
      for (int64_t i = 0; i < row.n; ++i) {
        param_sum += values[i] * values[i];
      }
      param_squares += static_cast<double>(param_sum);
    }
  });
  *t.squares = squares;
  if (t.param_squares != nullptr) {
    *t.param_squares = param_squares;
  }
}

template <class C>
[[gnu::always_inline]] inline void store_new_values(const FactoredTile& t,
                                                    const Row<C>& row,
                                                    const C* p) {
  if constexpr (kSame<C, float>) {
    store_copy(t.copy_dtype, row.n, p, t.copy, row.at);
  }
}

template <class C, bool kVector>
void adafactor_typed(const FactoredTile& t) {
  const Constants<C> k(*t.constants);
  const C scale = k.step * k.clip;
  for_rows<C>(t, true, [&](int64_t /*number*/, const Row<C>& row) {
    C* p = static_cast<C*>(t.p) + row.at;
    if (t.exp_avg == nullptr) {
      TAPESTRY_VECTOR_LOOP
      for (int64_t i = 0; i < row.n; ++i) {
        p[i] -= k.decay * p[i] + scale * direction<kVector>(row, i, k);
      }
    } else {
      C* m = static_cast<C*>(t.exp_avg) + row.at;
      TAPESTRY_VECTOR_LOOP
      for (int64_t i = 0; i < row.n; ++i) {
        m[i] = k.beta1 * m[i] + k.rest1 * (scale * direction<kVector>(row, i, k));
        p[i] -= k.decay * p[i] + m[i];
      }
    }
    store_new_values(t, row, p);
  });
}

template <class C>
void average_matrix(const FactoredTile& t) {
  const Constants<C> k(*t.constants);
  auto* columns = static_cast<C*>(t.column_sums);
  for (int64_t row = 0; row < t.rows; ++row) {
    t.row_sums[row] = 0;
  }
  for_rows<C>(t, true, [&](int64_t number, const Row<C>& row) {
    C* m = static_cast<C*>(t.exp_avg) + row.at;
    C* sums = columns + row.column;
    C sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < row.n; ++i) {
      const C u = k.clip * direction<false>(row, i, k);
      const C residual = k.beta1 * (u - m[i]);  // u - m', without the rounding of m'
      m[i] = k.beta1 * m[i] + k.rest1 * u;
      const C square = residual * residual + k.eps3;
      sums[i] += square;
      sum += square;
    }
    t.row_sums[number] += static_cast<double>(sum);
  });
}

template <class C>
void average_vector(const FactoredTile& t) {
  const Constants<C> k(*t.constants);
  for_rows<C>(t, true, [&](int64_t /*number*/, const Row<C>& row) {
    C* m = static_cast<C*>(t.exp_avg) + row.at;
    C* p = static_cast<C*>(t.p) + row.at;
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < row.n; ++i) {
      m[i] = k.beta1 * m[i] + k.rest1 * (k.clip * direction<true>(row, i, k));
      p[i] -= k.decay * p[i] + k.step * m[i];
    }
    store_new_values(t, row, p);
  });
}

template <class C>
void came_typed(const FactoredTile& t) {
  const Constants<C> k(*t.constants);
  for_rows<C>(t, false, [&](int64_t /*number*/, const Row<C>& row) {
    const C* m = static_cast<const C*>(t.exp_avg) + row.at;
    C* p = static_cast<C*>(t.p) + row.at;
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < row.n; ++i) {
      p[i] -= k.decay * p[i] + k.step * (m[i] * row.roots[i] * row.root);
    }
    store_new_values(t, row, p);
  });
}

bool is_float64(const FactoredTile& tile) { return tile.dtype == kFloat64; }
bool is_vector(const FactoredTile& tile) { return tile.exp_avg_sq != nullptr; }

}  // namespace

void factored_squares_tile(const FactoredTile& tile) {
  (is_float64(tile) ? &squares_typed<double> : &squares_typed<float>)(tile);
}

void factored_norms_tile(const FactoredTile& tile) {
  if (is_vector(tile)) {
    (is_float64(tile) ? &norms_typed<double, true> : &norms_typed<float, true>)(tile);
  } else {
    (is_float64(tile) ? &norms_typed<double, false> : &norms_typed<float, false>)(tile);
  }
}

void adafactor_apply_tile(const FactoredTile& tile) {
  if (is_vector(tile)) {
    (is_float64(tile) ? &adafactor_typed<double, true> : &adafactor_typed<float, true>)(tile);
  } else {
    (is_float64(tile) ? &adafactor_typed<double, false> : &adafactor_typed<float, false>)(tile);
  }
}

void came_average_tile(const FactoredTile& tile) {
  if (is_vector(tile)) {
    (is_float64(tile) ? &average_vector<double> : &average_vector<float>)(tile);
  } else {
    (is_float64(tile) ? &average_matrix<double> : &average_matrix<float>)(tile);
  }
}

void came_apply_tile(const FactoredTile& tile) {
  (is_float64(tile) ? &came_typed<double> : &came_typed<float>)(tile);
}

}  // namespace tapestry::kernels::TAPESTRY_ISA
