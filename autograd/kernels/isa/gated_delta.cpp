#include <type_traits>

#include "autograd/kernels/isa/matrix_tile.h"
#include "autograd/kernels/isa/row_io.h"
#include "autograd/kernels/recurrence/gated_delta_units.h"

namespace tapestry::kernels::TAPESTRY_ISA {

void delta_forward_unit(const DeltaProblem& problem,
                        const DeltaForward& to,
                        const DeltaBorders& borders,
                        const DeltaUnit& unit,
                        void* scratch);
void delta_backward_unit(const DeltaProblem& problem,
                         const DeltaBackward& to,
                         const DeltaBorders& borders,
                         const DeltaBorders& gradients,
                         const DeltaUnit& unit,
                         void* scratch);
void delta_step_unit(
    const DeltaProblem& problem, const DeltaStep& to, int64_t begin, int64_t end, void* scratch);

namespace {

constexpr int64_t kC = kDeltaChunk;
constexpr int64_t kDiagonal = 16;  // rows of the blocks on the diagonal that are inverted first

[[gnu::always_inline]] inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
[[gnu::always_inline]] inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/// A matrix in working memory; sizes of products are whole vectors and tiles of it.
template <class C>
struct Matrix {
  C* data;
  int64_t ld;
  [[gnu::always_inline]] C* row(int64_t i) const { return data + i * ld; }
};

/// c = or += A B, A [m,k] or stored as [k,m] if kTransA, tile rows from i on over span_of(i) only.
template <bool kTransA, class C, class SpanOf>
[[gnu::always_inline]] inline void product_over(int64_t m,
                                                int64_t n,
                                                Matrix<C> a,
                                                Matrix<C> b,
                                                bool accumulate,
                                                Matrix<C> c,
                                                const SpanOf& span_of) {
  constexpr int64_t kL = kLanes<C>;
  const auto panel = [&]<int kVectors>(int64_t j) __attribute__((always_inline)) {
    for (int64_t i = 0; i < m; i += kTileRows) {
      const Span span = span_of(i);
      const C* left = kTransA ? a.row(span.begin) + i : a.row(i) + span.begin;
      multiply_tile<C, kVectors, kTransA>(span.end - span.begin, left, a.ld, b.row(span.begin) + j,
                                          b.ld, accumulate, c.row(i) + j, c.ld);
    }
  };
  for (int64_t j = 0; j < n;) {
    const int64_t vectors = (n - j) / kL;
    if (vectors >= 3 && vectors != 4) {
      panel.template operator()<3>(j);
      j += 3 * kL;
    } else if (vectors >= 2) {
      panel.template operator()<2>(j);
      j += 2 * kL;
    } else {
      panel.template operator()<1>(j);
      j += kL;
    }
  }
}

/// c = or += A B, or A^T B.
template <bool kTransA, class C>
[[gnu::noinline]] void product(
    int64_t m, int64_t n, int64_t k, Matrix<C> a, Matrix<C> b, bool accumulate, Matrix<C> c) {
  product_over<kTransA>(m, n, a, b, accumulate, c, [k](int64_t) { return Span{0, k}; });
}

/// The same with A [m,m], which is 0 above its diagonal.
template <bool kTransA, class C>
[[gnu::noinline]] void product_lower(
    int64_t m, int64_t n, Matrix<C> a, Matrix<C> b, bool accumulate, Matrix<C> c) {
  product_over<kTransA>(m, n, a, b, accumulate, c, [m](int64_t i) {
    return kTransA ? Span{i, m} : Span{0, smaller(i + kTileRows, m)};
  });
}

/// c = A B up to its diagonal, and to the end of the block of 16 columns that it is in.
template <class C>
[[gnu::noinline]] void lower_of_product(
    int64_t m, int64_t k, Matrix<C> a, Matrix<C> b, Matrix<C> c) {
  multiply_where(m, m, k, Operand<C>{a.data, a.ld}, Operand<C>{b.data, b.ld}, c.data, c.ld,
                 [](int64_t tile, int64_t column) {
                   return column / kDeltaColumns * kDeltaColumns < tile + kTileRows;
                 });
}

/// n is a multiple of 16.
template <class C>
[[gnu::always_inline]] inline C dot(int64_t n, const C* a, const C* b) {
  vector_t<C> sum = {};
  for (int64_t i = 0; i < n; i += kLanes<C>) {
    sum = multiply_add(load(a + i), load(b + i), sum);
  }
  C total = 0;
  for (int64_t i = 0; i < kLanes<C>; ++i) {
    total += sum[i];
  }
  return total;
}

template <class C>
[[gnu::always_inline]] inline void fill_zero(int64_t n, C* x) {
  for (int64_t i = 0; i < n; ++i) {
    x[i] = 0;
  }
}

/// out = factor[t] x, row by row.
template <class C>
[[gnu::noinline]] void scale_rows(
    int64_t rows, int64_t n, const C* factor, Matrix<C> x, Matrix<C> out) {
  for (int64_t t = 0; t < rows; ++t) {
    const C f = factor[t];
    const C* from = x.row(t);
    C* to = out.row(t);
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < n; ++i) {
      to[i] = f * from[i];
    }
  }
}

template <class C>
[[gnu::noinline]] void scale(int64_t rows, int64_t n, C factor, Matrix<C> x) {
  for (int64_t t = 0; t < rows; ++t) {
    C* row = x.row(t);
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < n; ++i) {
      row[i] *= factor;
    }
  }
}

/// T = (I + A)^-1 for A below the diagonal; `spare` is overwritten. First the blocks on the
/// diagonal, row by row, then T_I,<I = - T_II (A_I,<I T_<I,<I).
template <class C>
[[gnu::noinline]] void invert(int64_t rows, Matrix<C> a, Matrix<C> t, Matrix<C> spare) {
  for (int64_t block = 0; block < rows; block += kDiagonal) {
    for (int64_t i = 0; i < kDiagonal; ++i) {
      C* row = t.row(block + i);
      fill_zero(rows, row);
      const C* factors = a.row(block + i) + block;
      C sum[kDiagonal] = {};
      sum[i] = 1;
      for (int64_t j = 0; j < i; ++j) {
        const C factor = factors[j];
        const C* above = t.row(block + j) + block;
        TAPESTRY_VECTOR_LOOP
        for (int64_t s = 0; s < kDiagonal; ++s) {
          sum[s] -= factor * above[s];
        }
      }
      for (int64_t s = 0; s < kDiagonal; ++s) {
        row[block + s] = sum[s];
      }
    }
  }
  for (int64_t block = kDiagonal; block < rows; block += kDiagonal) {
    product<false>(kDiagonal, block, block, {a.row(block), a.ld}, t, false, spare);
    const Matrix<C> diagonal = {spare.row(kDiagonal), spare.ld};
    for (int64_t i = 0; i < kDiagonal; ++i) {
      for (int64_t s = 0; s < kDiagonal; ++s) {
        diagonal.row(i)[s] = -t.row(block + i)[block + s];
      }
    }
    product<false>(kDiagonal, block, kDiagonal, diagonal, spare, false, {t.row(block), t.ld});
  }
}

/// What the two passes share: a chunk of a key head, and one of its value heads.
template <class T>
class Chunk {
 public:
  using C = compute_t<T>;

  Chunk(const DeltaProblem& problem, const DeltaUnit& unit, void* scratch)
      : p_(problem), unit_(unit), next_(static_cast<C*>(scratch)) {
    k_ = take(kC, p_.key_dim);
    q_ = take(kC, p_.key_dim);
    kt_ = take(delta_padded(p_.key_dim), kC);
    kk_ = take(kC, kC);
    qk_ = take(kC, kC);
    d_ = take(kC, kC);
    p_of_ = take(kC, kC);
    t_ = take(kC, kC);
    a_ = take(kC, kC);
    spare_ = take(kC, kC);
    y_ = take(kC, p_.value_dim);
    z_ = take(kC, p_.value_dim);
    u_ = take(kC, p_.value_dim);
    q_factor_ = take_numbers(kC);
    k_factor_ = take_numbers(kC);
    e_ = take_numbers(kC);
    e_bar_ = take_numbers(kC);
    beta_ = take_numbers(kC);
  }

 protected:
  Matrix<C> take(int64_t rows, int64_t columns) {
    const int64_t ld = delta_row(columns);
    return {take_numbers(rows * ld), ld};
  }
  C* take_numbers(int64_t n) {
    C* out = next_;
    next_ += n;
    return out;
  }

  int64_t group() const { return p_.value_heads / p_.key_heads; }
  int64_t width() const { return 2 * p_.key_heads * p_.key_dim + p_.value_heads * p_.value_dim; }
  int64_t keys() const { return delta_padded(p_.key_dim); }
  int64_t columns() const { return unit_.column_end - unit_.column_begin; }
  int64_t padded_columns() const { return delta_padded(columns()); }
  int64_t state_size() const { return p_.key_dim * p_.value_dim; }
  int64_t q_column() const { return unit_.key_head * p_.key_dim; }
  int64_t k_column() const { return (p_.key_heads + unit_.key_head) * p_.key_dim; }
  int64_t v_column(int64_t head) const {
    return 2 * p_.key_heads * p_.key_dim + head * p_.value_dim;
  }
  int64_t plane(int64_t head) const { return unit_.sample * p_.value_heads + head; }
  /// Of token t of the chunk in g, beta and their gradients.
  int64_t gate_at(int64_t t, int64_t head) const {
    return (unit_.sample * p_.seq + token_ + t) * p_.value_heads + head;
  }
  template <class Rows>
  const T* token(const Rows& rows, int64_t t) const {
    return static_cast<const T*>(rows.data) + unit_.sample * rows.batch + (token_ + t) * rows.row;
  }

  /// The columns of border `c`; null: zeros.
  C* border(const DeltaBorders& borders, int64_t head, int64_t c) const {
    const int64_t place = (c - borders.first) % borders.per_head;
    return static_cast<C*>(borders.data) + (plane(head) * borders.per_head + place) * state_size() +
           unit_.column_begin;
  }
  const C* whole_state(const void* states, int64_t head) const {
    return states == nullptr
               ? nullptr
               : static_cast<const C*>(states) + plane(head) * state_size() + unit_.column_begin;
  }
  C* whole_state(void* states, int64_t head) const {
    return const_cast<C*>(whole_state(static_cast<const void*>(states), head));
  }

  [[gnu::noinline]] void load_state(const C* from, Matrix<C> to) const {
    for (int64_t i = 0; i < keys(); ++i) {
      C* row = to.row(i);
      const int64_t used = i < p_.key_dim && from != nullptr ? columns() : 0;
      for (int64_t j = 0; j < used; ++j) {
        row[j] = from[i * p_.value_dim + j];
      }
      fill_zero(padded_columns() - used, row + used);
    }
  }
  [[gnu::noinline]] void store_state(Matrix<C> from, C* to) const {
    for (int64_t i = 0; i < p_.key_dim; ++i) {
      const C* row = from.row(i);
      for (int64_t j = 0; j < columns(); ++j) {
        to[i * p_.value_dim + j] = row[j];
      }
    }
  }

  static constexpr int64_t kAhead = 8;  // rows that are fetched before they are needed

  /// Rows of the chunk as the compute type, with zeros up to whole vectors and tiles.
  [[gnu::noinline]] void load_rows(const DeltaRows& rows,
                                   int64_t column,
                                   int64_t n,
                                   Matrix<C> to) const {
    for (int64_t t = 0; t < rows_; ++t) {
      C* row = to.row(t);
      const int64_t used = t < count_ && rows.data != nullptr ? n : 0;
      if (used > 0) {
        if (t + kAhead < count_) {  // rows of one head are far apart
          const auto* ahead = reinterpret_cast<const char*>(token(rows, t + kAhead) + column);
          for (int64_t byte = 0; byte < n * static_cast<int64_t>(sizeof(T)); byte += 64) {
            __builtin_prefetch(ahead + byte);
          }
        }
        load_row(n, token(rows, t) + column, row);
      }
      fill_zero(delta_padded(n) - used, row + used);
    }
  }

  /// x <- x factor / sqrt(x . x + eps); what it was multiplied by goes to `factors`.
  void normalize(Matrix<C> x, C factor, C* factors) const {
    for (int64_t t = 0; t < rows_; ++t) {
      C* row = x.row(t);
      const C length = sqrt(dot(keys(), row, row) + static_cast<C>(p_.eps));
      factors[t] = t < count_ ? C(1) / length : C(0);
      const C by = factors[t] * factor;
      const int64_t n = keys();
      TAPESTRY_VECTOR_LOOP
      for (int64_t i = 0; i < n; ++i) {
        row[i] *= by;
      }
    }
  }

  C query_scale() const { return C(1) / sqrt(static_cast<C>(p_.key_dim)); }

  /// q, k and their products in chunk c; k alone where q is not needed.
  void load_chunk(int64_t c) {
    token_ = c * kC;
    count_ = smaller(kC, p_.seq - token_);
    rows_ = delta_padded(count_);
    const int64_t position = p_.first_position + token_;
    const int32_t* starts =
        p_.starts == nullptr ? nullptr : p_.starts + unit_.sample * p_.starts_batch + position;
    continued_ = starts == nullptr ? count_ : 0;
    for (int64_t t = 0; t < rows_; ++t) {
      const int64_t start = starts == nullptr || t >= count_ ? 0 : starts[t];
      first_[t] = larger(start - position, 0);
      continued_ += starts != nullptr && t < count_ && start < larger(position, 1) ? 1 : 0;
    }
    load_rows(p_.qkv, k_column(), p_.key_dim, k_);
    normalize(k_, C(1), k_factor_);
    transpose(rows_, keys(), k_.data, k_.ld, kt_.data, kt_.ld);
    lower_of_product(rows_, keys(), k_, kt_, kk_);
    if (needs_q_) {
      load_rows(p_.qkv, q_column(), p_.key_dim, q_);
      normalize(q_, query_scale(), q_factor_);
      lower_of_product(rows_, keys(), q_, kt_, qk_);
    }
  }

  /// Gates, D, P and T of a value head in the chunk.
  [[gnu::noinline]] void load_head(int64_t head) {
    // In double: what is left of the difference of two long sums counts. Below the limit e^g is 0
    // in any type.
    constexpr double kLeast = -1e4;
    const C* g = static_cast<const C*>(p_.g);
    const C* beta = static_cast<const C*>(p_.beta);
    double sum = 0;
    for (int64_t t = 0; t < rows_; ++t) {
      const double log_decay = t < count_ ? static_cast<double>(g[gate_at(t, head)]) : 0.0;
      sum += log_decay < kLeast ? kLeast : log_decay;
      sums_[t] = sum;
      beta_[t] = t < count_ ? beta[gate_at(t, head)] : C(0);
    }
    const int64_t last = count_ - 1;
    const int64_t last_document = first_[last];
    for (int64_t t = 0; t < rows_; ++t) {
      e_[t] = t < continued_ ? exp(static_cast<C>(sums_[t])) : C(0);
      e_bar_[t] =
          t >= last_document && t < count_ ? exp(static_cast<C>(sums_[last] - sums_[t])) : C(0);
    }
    decay_ = e_[last];
    for (int64_t t = 0; t < rows_; ++t) {
      const int64_t end = delta_padded(t + 1);
      const int64_t first = first_[t];
      const double own = sums_[t];
      C* d = d_.row(t);
      for (int64_t s = 0; s < end; ++s) {
        d[s] = static_cast<C>(own - sums_[s]);
      }
      C* a = a_.row(t);
      const C* kk = kk_.row(t);
      const C factor = beta_[t];
      TAPESTRY_VECTOR_LOOP
      for (int64_t s = 0; s < end; ++s) {
        const C e = s >= first && s <= t ? exp(d[s]) : C(0);
        d[s] = e;
        a[s] = s < t ? factor * (kk[s] * e) : C(0);
      }
      fill_zero(rows_ - end, d + end);
      fill_zero(rows_ - end, a + end);
    }
    if (needs_q_) {
      for (int64_t t = 0; t < rows_; ++t) {
        const int64_t end = delta_padded(t + 1);
        const C* d = d_.row(t);
        const C* qk = qk_.row(t);
        C* p = p_of_.row(t);
        TAPESTRY_VECTOR_LOOP
        for (int64_t s = 0; s < end; ++s) {
          p[s] = s <= t ? qk[s] * d[s] : C(0);
        }
        fill_zero(rows_ - end, p + end);
      }
    }
    invert(rows_, a_, t_, spare_);
  }

  /// y = V - diag(E) K S, with K S left in z, and U = T diag(beta) y in u, by way of a.
  void load_delta(int64_t head, Matrix<C> state) {
    load_rows_of_values(head);
    product<false>(rows_, padded_columns(), keys(), k_, state, false, z_);
    for (int64_t t = 0; t < rows_; ++t) {
      const C e = e_[t];
      C* y = y_.row(t);
      const C* z = z_.row(t);
      const int64_t n = padded_columns();
      TAPESTRY_VECTOR_LOOP
      for (int64_t j = 0; j < n; ++j) {
        y[j] -= e * z[j];
      }
    }
    for (int64_t t = 0; t < rows_; ++t) {  // a is done with
      C* row = a_.row(t);
      const C* from = t_.row(t);
      TAPESTRY_VECTOR_LOOP
      for (int64_t s = 0; s < rows_; ++s) {
        row[s] = from[s] * beta_[s];
      }
    }
    product_lower<false>(rows_, padded_columns(), a_, y_, false, u_);
  }

  void load_rows_of_values(int64_t head) {
    load_rows(p_.qkv, v_column(head) + unit_.column_begin, columns(), y_);
  }

  const DeltaProblem& p_;
  const DeltaUnit& unit_;
  C* next_;
  bool needs_q_ = true;
  int64_t token_ = 0;      // the first of the chunk
  int64_t count_ = 0;      // of tokens
  int64_t rows_ = 0;       // the same in whole blocks
  int64_t continued_ = 0;  // tokens of the document that the state before the chunk is of
  C decay_ = 0;            // of the state over the chunk
  int64_t first_[kC];      // of the tokens before each, the first of its document
  double sums_[kC];        // G
  Matrix<C> q_, k_, kt_, kk_, qk_, d_, p_of_, t_, a_, spare_, y_, z_, u_;
  C* q_factor_;
  C* k_factor_;
  C* e_;
  C* e_bar_;
  C* beta_;
};

template <class T>
class ForwardUnit : Chunk<T> {
  using Base = Chunk<T>;
  using Base::count_, Base::e_, Base::k_, Base::p_, Base::q_, Base::rows_, Base::u_, Base::unit_,
      Base::z_;
  using typename Base::C;

 public:
  ForwardUnit(const DeltaProblem& problem,
              const DeltaForward& to,
              const DeltaBorders& borders,
              const DeltaUnit& unit,
              void* scratch)
      : Base(problem, unit, scratch), to_(to), borders_(borders) {
    this->needs_q_ = unit.wants_tokens;
    state_ = this->take(this->keys() * (unit.head_end - unit.head_begin), problem.value_dim);
  }

  void run() {
    for (int64_t c = unit_.chunk_begin; c < unit_.chunk_end; ++c) {
      this->load_chunk(c);
      for (int64_t head = unit_.head_begin; head < unit_.head_end; ++head) {
        run_head(c, head);
      }
    }
  }

 private:
  void run_head(int64_t c, int64_t head) {
    const Matrix<C> state = {state_.row((head - unit_.head_begin) * this->keys()), state_.ld};
    if (c == unit_.chunk_begin) {
      this->load_state(
          c == 0 ? this->whole_state(p_.initial, head) : this->border(borders_, head, c), state);
    }
    this->load_head(head);
    this->load_delta(head, state);
    const int64_t n = this->padded_columns();
    if (unit_.wants_tokens) {
      product<false>(rows_, n, this->keys(), q_, state, false, z_);
      scale_rows(rows_, n, e_, z_, z_);
      product_lower<false>(rows_, n, this->p_of_, u_, true, z_);
      store_tokens(head);
    }
    if (unit_.wants_states) {
      scale_rows(rows_, n, this->e_bar_, u_, u_);
      scale(this->keys(), n, this->decay_, state);
      product<true>(this->keys(), n, rows_, k_, u_, true, state);
      if (c + 1 < p_.chunks()) {
        if (borders_.data != nullptr) {
          this->store_state(state, this->border(borders_, head, c + 1));
        }
      } else if (to_.final != nullptr) {
        this->store_state(state, this->whole_state(to_.final, head));
      }
    }
  }

  [[gnu::noinline]] void store_tokens(int64_t head) const {
    T* out = static_cast<T*>(to_.out);
    for (int64_t t = 0; t < count_; ++t) {
      store_row(this->columns(), z_.row(t),
                out + this->gate_at(t, head) * p_.value_dim + unit_.column_begin);
    }
  }

  const DeltaForward& to_;
  const DeltaBorders& borders_;
  Matrix<C> state_;  // of all heads
};

/// The names are those of the formulas in gated_delta.h; a gradient's is that of its value with d
/// before it. With Z = K S, R = T^T dU, so that dY = diag(beta) R:
///
///   dU = diag(Ebar) K dS + P^T dO; dP = dO U^T; dA = - R U^T, below the diagonal
///   dQ = diag(E) dO S^T + (dP * D) K; X = diag(beta) (dA * D)
///   dK = (dP * D)^T Q + diag(Ebar) U dS^T - diag(E) dY S^T + X K + X^T K
///   dbeta_t = R_t . Y_t + sum_s (dA * KK^T * D)_ts
///   dS <- e^G_last dS + Q^T diag(E) dO - K^T diag(E) dY
///   F = dP * QK^T * D + dA * diag(beta) KK^T * D; x_t = Ebar_t u_t . (K dS)_t
///   dG_t = sum_s F_ts - sum_s F_st + q_t . (diag(E) dO S^T)_t - E_t Z_t . dY_t - x_t, and for the
///          last token of the chunk + sum x + e^G_last <S, dS>
///   dg_t = the sum of dG from t on, inside its document
///
/// where dS on the right is that of the state after the chunk.
template <class T>
class BackwardUnit : Chunk<T> {
  using Base = Chunk<T>;
  using Base::a_, Base::beta_, Base::count_, Base::d_, Base::e_, Base::e_bar_, Base::k_, Base::kk_,
      Base::p_, Base::p_of_, Base::q_, Base::qk_, Base::rows_, Base::t_, Base::u_, Base::unit_,
      Base::y_, Base::z_;
  using typename Base::C;

 public:
  BackwardUnit(const DeltaProblem& problem,
               const DeltaBackward& to,
               const DeltaBorders& borders,
               const DeltaBorders& gradients,
               const DeltaUnit& unit,
               void* scratch)
      : Base(problem, unit, scratch), to_(to), borders_(borders), gradients_(gradients) {
    dstate_ = this->take(this->keys() * (unit.head_end - unit.head_begin), problem.value_dim);
    state_ = this->take(this->keys(), problem.value_dim);
    do_ = this->take(kC, problem.value_dim);
    du_ = this->take(kC, problem.value_dim);
    dr_ = this->take(kC, problem.value_dim);
    // What only whole columns need.
    turned_ = this->take(delta_padded(problem.value_dim), problem.key_dim);
    ut_ = this->take(delta_padded(problem.value_dim), kC);
    dp_ = this->take(kC, kC);
    da_ = this->take(kC, kC);
    dq_ = this->take(kC, problem.key_dim);
    dk_ = this->take(kC, problem.key_dim);
    part_ = this->take(kC, problem.key_dim);
    dg_ = this->take_numbers(kC);
    dbeta_ = this->take_numbers(kC);
    x_ = this->take_numbers(kC);
    sums_below_ = this->take_numbers(kC);
  }

  void run() {
    for (int64_t c = unit_.chunk_end; c-- > unit_.chunk_begin;) {
      this->load_chunk(c);
      if (unit_.wants_tokens) {
        fill_zero(rows_ * dq_.ld, dq_.data);
        fill_zero(rows_ * dk_.ld, dk_.data);
      }
      for (int64_t head = unit_.head_begin; head < unit_.head_end; ++head) {
        run_head(c, head);
      }
      if (unit_.wants_tokens) {
        store_normalized(dq_, q_, this->q_factor_, this->query_scale(), this->q_column());
        store_normalized(dk_, k_, this->k_factor_, C(1), this->k_column());
      }
    }
  }

 private:
  void run_head(int64_t c, int64_t head) {
    const int64_t n = this->padded_columns();
    const int64_t keys = this->keys();
    const Matrix<C> dstate = {dstate_.row((head - unit_.head_begin) * keys), dstate_.ld};
    if (c + 1 == unit_.chunk_end) {
      this->load_state(c + 1 == p_.chunks() ? this->whole_state(to_.dfinal, head)
                                            : this->border(gradients_, head, c + 1),
                       dstate);
    }
    this->load_head(head);
    if (unit_.wants_tokens) {
      this->load_state(
          c == 0 ? this->whole_state(p_.initial, head) : this->border(borders_, head, c), state_);
      this->load_delta(head, state_);
    }
    this->load_rows(to_.dout, head * p_.value_dim + unit_.column_begin, this->columns(), do_);
    product<false>(rows_, n, keys, k_, dstate, false, du_);
    scale_rows(rows_, n, e_bar_, du_, du_);
    if (unit_.wants_tokens) {
      for (int64_t t = 0; t < rows_; ++t) {
        x_[t] = dot(n, u_.row(t), du_.row(t));
      }
    }
    product_lower<true>(rows_, n, p_of_, do_, true, du_);
    product_lower<true>(rows_, n, t_, du_, false, dr_);
    if (unit_.wants_tokens) {
      add_scores(n);
    }
    // From here on du is dY, and dr - diag(E) dY; do becomes diag(E) dO.
    scale_rows(rows_, n, beta_, dr_, du_);
    if (unit_.wants_tokens) {
      store_values(head);
    }
    for (int64_t t = 0; t < rows_; ++t) {
      const C e = -e_[t];
      const C* from = du_.row(t);
      C* out = dr_.row(t);
      TAPESTRY_VECTOR_LOOP
      for (int64_t j = 0; j < n; ++j) {
        out[j] = e * from[j];
      }
    }
    scale_rows(rows_, n, e_, do_, do_);
    if (unit_.wants_tokens) {
      add_states(n, dstate);
      store_gates(head, dstate);
    }
    if (unit_.wants_states) {
      scale(keys, n, this->decay_, dstate);
      product<true>(keys, n, rows_, q_, do_, true, dstate);
      product<true>(keys, n, rows_, k_, dr_, true, dstate);
      if (c > 0) {
        if (gradients_.data != nullptr) {
          this->store_state(dstate, this->border(gradients_, head, c));
        }
      } else if (to_.dinitial != nullptr) {
        this->store_state(dstate, this->whole_state(to_.dinitial, head));
      }
    }
  }

  /// What goes through P and A: the part of dq and dk, dbeta, and of dG the sums of F.
  [[gnu::noinline]] void add_scores(int64_t n) {
    transpose(rows_, n, u_.data, u_.ld, ut_.data, ut_.ld);
    lower_of_product(rows_, n, do_, ut_, dp_);
    lower_of_product(rows_, n, dr_, ut_, da_);
    fill_zero(rows_, sums_below_);
    for (int64_t t = 0; t < rows_; ++t) {
      const int64_t end = delta_padded(t + 1);
      const C* d = d_.row(t);
      const C* qk = qk_.row(t);
      const C* kk = kk_.row(t);
      C* dp = dp_.row(t);
      C* da = da_.row(t);
      const C beta = beta_[t];
      C of_row[kC];
      C of_beta[kC];
      TAPESTRY_VECTOR_LOOP
      for (int64_t s = 0; s < end; ++s) {
        const bool below = s < t;
        const C p = s <= t ? dp[s] * d[s] : C(0);
        const C a = below ? -da[s] * d[s] : C(0);
        const C b = below ? a * kk[s] : C(0);
        const C f = below ? p * qk[s] + beta * b : C(0);  // F_tt meets itself in dG_t
        dp[s] = p;
        da[s] = beta * a;
        of_row[s] = f;
        of_beta[s] = b;
        sums_below_[s] += f;
      }
      fill_zero(rows_ - end, dp + end);
      fill_zero(rows_ - end, da + end);
      C row_sum = 0;
      C beta_sum = 0;
      for (int64_t s = 0; s < end; ++s) {
        row_sum += of_row[s];
        beta_sum += of_beta[s];
      }
      dg_[t] = row_sum - x_[t];
      dbeta_[t] = beta_sum + dot(n, dr_.row(t), y_.row(t));
    }
    for (int64_t t = 0; t < rows_; ++t) {
      dg_[t] -= sums_below_[t];
    }
    const int64_t keys = this->keys();
    product_lower<false>(rows_, keys, dp_, k_, true, dq_);
    product_lower<true>(rows_, keys, dp_, q_, true, dk_);
    product_lower<false>(rows_, keys, da_, k_, true, dk_);
    product_lower<true>(rows_, keys, da_, k_, true, dk_);
  }

  /// What goes through the states: do is diag(E) dO and dr - diag(E) dY.
  [[gnu::noinline]] void add_states(int64_t n, Matrix<C> dstate) {
    const int64_t keys = this->keys();
    transpose(keys, n, state_.data, state_.ld, turned_.data, turned_.ld);
    product<false>(rows_, keys, n, do_, turned_, false, part_);
    for (int64_t t = 0; t < rows_; ++t) {
      const C* part = part_.row(t);
      C* dq = dq_.row(t);
      TAPESTRY_VECTOR_LOOP
      for (int64_t i = 0; i < keys; ++i) {
        dq[i] += part[i];
      }
      dg_[t] += dot(keys, q_.row(t), part) + dot(n, z_.row(t), dr_.row(t));
    }
    product<false>(rows_, keys, n, dr_, turned_, true, dk_);
    transpose(keys, n, dstate.data, dstate.ld, turned_.data, turned_.ld);
    scale_rows(rows_, n, e_bar_, u_, u_);
    product<false>(rows_, keys, n, u_, turned_, true, dk_);
  }

  void store_values(int64_t head) const {
    for (int64_t t = 0; t < count_; ++t) {
      store_row(p_.value_dim, du_.row(t), gradient_row(t) + this->v_column(head));
    }
  }

  void store_gates(int64_t head, Matrix<C> dstate) {
    double of_state = 0;
    for (int64_t i = 0; i < this->keys(); ++i) {
      of_state += dot(this->padded_columns(), state_.row(i), dstate.row(i));
    }
    double sum = this->decay_ * of_state;
    for (int64_t t = 0; t < count_; ++t) {
      sum += x_[t];
    }
    C* dg = static_cast<C*>(to_.dg);
    C* dbeta = static_cast<C*>(to_.dbeta);
    for (int64_t t = count_; t-- > 0;) {
      sum += dg_[t];
      // The first token of a document that begins in the chunk has nothing to forget.
      const bool begins = t >= this->continued_ && this->first_[t] == t;
      dg[this->gate_at(t, head)] = begins ? C(0) : static_cast<C>(sum);
      dbeta[this->gate_at(t, head)] = dbeta_[t];
      sum = begins ? 0 : sum;
    }
  }

  T* gradient_row(int64_t t) const {
    return static_cast<T*>(to_.dqkv) + (unit_.sample * p_.seq + this->token_ + t) * this->width();
  }

  /// The gradient of x from that of y = scale x / n: (scale dy - y (y . dy) / scale) / n.
  [[gnu::noinline]] void store_normalized(
      Matrix<C> dy_of, Matrix<C> y_of, const C* factors, C scale, int64_t column) const {
    for (int64_t t = 0; t < count_; ++t) {
      C* dy = dy_of.row(t);
      const C* y = y_of.row(t);
      const C along = dot(this->keys(), y, dy) / scale;
      const C factor = factors[t];
      const int64_t n = this->keys();
      TAPESTRY_VECTOR_LOOP
      for (int64_t i = 0; i < n; ++i) {
        dy[i] = factor * (scale * dy[i] - y[i] * along);
      }
      store_row(p_.key_dim, dy, gradient_row(t) + column);
    }
  }

  const DeltaBackward& to_;
  const DeltaBorders& borders_;
  const DeltaBorders& gradients_;
  Matrix<C> dstate_;  // of all heads
  Matrix<C> state_, do_, du_, dr_, turned_, ut_, dp_, da_, dq_, dk_, part_;
  C* dg_;
  C* dbeta_;
  C* x_;
  C* sums_below_;
};

/// One token of one value head: the state is read once from memory and written once, in bands of
/// columns that stay in the first cache.
template <class T>
class StepUnit {
  using C = compute_t<T>;

 public:
  StepUnit(const DeltaProblem& problem, const DeltaStep& to, void* scratch)
      : p_(problem), to_(to), q_(static_cast<C*>(scratch)), k_(q_ + delta_padded(p_.key_dim)) {
    v_ = k_ + delta_padded(p_.key_dim);
    out_ = v_ + delta_padded(p_.value_dim);
  }

  void run(int64_t unit) {
    const int64_t text = unit / p_.value_heads;
    const int64_t head = unit % p_.value_heads;
    const int64_t key_head = head / (p_.value_heads / p_.key_heads);
    const T* row = static_cast<const T*>(p_.qkv.data) + text * p_.qkv.batch;
    load_row(p_.key_dim, row + key_head * p_.key_dim, q_);
    load_row(p_.key_dim, row + (p_.key_heads + key_head) * p_.key_dim, k_);
    load_row(p_.value_dim, row + 2 * p_.key_heads * p_.key_dim + head * p_.value_dim, v_);
    C qq = 0;
    C kk = 0;
    C qk = 0;
    for (int64_t i = 0; i < p_.key_dim; ++i) {
      qq += q_[i] * q_[i];
      kk += k_[i] * k_[i];
    }
    const C eps = static_cast<C>(p_.eps);
    const C of_q = C(1) / (sqrt(qq + eps) * sqrt(static_cast<C>(p_.key_dim)));
    const C of_k = C(1) / sqrt(kk + eps);
    for (int64_t i = 0; i < p_.key_dim; ++i) {
      q_[i] *= of_q;
      k_[i] *= of_k;
      qk += q_[i] * k_[i];
    }
    const int64_t gate = text * p_.value_heads + head;
    const C decay = exp(static_cast<const C*>(p_.g)[gate]);
    const C beta = static_cast<const C*>(p_.beta)[gate];
    C* state = static_cast<C*>(to_.states) +
               (to_.slots[text] * p_.value_heads + head) * p_.key_dim * p_.value_dim;
    int64_t column = 0;
    for (; column + kBand * kLanes<C> <= p_.value_dim; column += kBand * kLanes<C>) {
      run_vectors<kBand>(decay, beta, qk, column, state + column);
    }
    for (; column + kLanes<C> <= p_.value_dim; column += kLanes<C>) {
      run_vectors<1>(decay, beta, qk, column, state + column);
    }
    for (; column < p_.value_dim; ++column) {
      run_column(decay, beta, qk, column, state + column);
    }
    store_row(p_.value_dim, out_, static_cast<T*>(to_.out) + gate * p_.value_dim);
  }

 private:
  static constexpr int kBand = 4;  // vectors

  // With z = S^T k and r = S^T q of the state before: delta = beta (v - e z), o = e r + (q . k)
  // delta, so that a second look at the state is only to write it.
  template <int kVectors>
  [[gnu::always_inline]] void run_vectors(C decay, C beta, C qk, int64_t column, C* state) {
    using V = vector_t<C>;
    V z[kVectors] = {};
    V r[kVectors] = {};
    for (int64_t i = 0; i < p_.key_dim; ++i) {
      const V k = broadcast(k_[i]);
      const V q = broadcast(q_[i]);
#pragma GCC unroll 4
      for (int n = 0; n < kVectors; ++n) {
        const V s = load(state + i * p_.value_dim + n * kLanes<C>);
        z[n] = multiply_add(s, k, z[n]);
        r[n] = multiply_add(s, q, r[n]);
      }
    }
    const V e = broadcast(decay);
#pragma GCC unroll 4
    for (int n = 0; n < kVectors; ++n) {
      const V v = load(v_ + column + n * kLanes<C>);
      z[n] = (v - e * z[n]) * broadcast(beta);
      store(out_ + column + n * kLanes<C>, multiply_add(e, r[n], z[n] * broadcast(qk)));
    }
    for (int64_t i = 0; i < p_.key_dim; ++i) {
      const V k = broadcast(k_[i]);
#pragma GCC unroll 4
      for (int n = 0; n < kVectors; ++n) {
        C* s = state + i * p_.value_dim + n * kLanes<C>;
        store(s, multiply_add(k, z[n], e * load(s)));
      }
    }
  }

  void run_column(C decay, C beta, C qk, int64_t column, C* state) {
    C z = 0;
    C r = 0;
    for (int64_t i = 0; i < p_.key_dim; ++i) {
      z += state[i * p_.value_dim] * k_[i];
      r += state[i * p_.value_dim] * q_[i];
    }
    const C delta = (v_[column] - decay * z) * beta;
    out_[column] = decay * r + delta * qk;
    for (int64_t i = 0; i < p_.key_dim; ++i) {
      C& s = state[i * p_.value_dim];
      s = k_[i] * delta + decay * s;
    }
  }

  const DeltaProblem& p_;
  const DeltaStep& to_;
  C* q_;
  C* k_;
  C* v_;
  C* out_;
};

}  // namespace

void delta_forward_unit(const DeltaProblem& problem,
                        const DeltaForward& to,
                        const DeltaBorders& borders,
                        const DeltaUnit& unit,
                        void* scratch) {
  for_floating(problem.dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    ForwardUnit<T>(problem, to, borders, unit, scratch).run();
  });
}

void delta_backward_unit(const DeltaProblem& problem,
                         const DeltaBackward& to,
                         const DeltaBorders& borders,
                         const DeltaBorders& gradients,
                         const DeltaUnit& unit,
                         void* scratch) {
  for_floating(problem.dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    BackwardUnit<T>(problem, to, borders, gradients, unit, scratch).run();
  });
}

void delta_step_unit(
    const DeltaProblem& problem, const DeltaStep& to, int64_t begin, int64_t end, void* scratch) {
  for_floating(problem.dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    StepUnit<T> step(problem, to, scratch);
    for (int64_t unit = begin; unit < end; ++unit) {
      step.run(unit);
    }
  });
}

}  // namespace tapestry::kernels::TAPESTRY_ISA
