// The loops of state_space.h. States are kept transposed, [N, p], so that they are right factors of
// the products that meet them: C S^T in the output, B dS^T in the gradient of x.
//
// Exponents are binary: e^(a D) = 2^(factor D). Their running sums are kept in two parts, since
// tokens that decay strongly make the sums large beside the differences of later ones.
#include <type_traits>

#include "autograd/kernels/isa/matrix_tile.h"
#include "autograd/kernels/isa/row_io.h"
#include "autograd/kernels/recurrence/state_space_call.h"

namespace tapestry::kernels::TAPESTRY_ISA {

namespace {

constexpr int64_t kUnit = 16;  // rows and columns of what is in working memory come in such units
constexpr double kLog2E = 1.4426950408889634;

[[gnu::always_inline]] inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
[[gnu::always_inline]] inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
[[gnu::always_inline]] inline int64_t unit_below(int64_t n) { return n / kUnit * kUnit; }
[[gnu::always_inline]] inline int64_t unit_above(int64_t n) {
  return (n + kUnit - 1) / kUnit * kUnit;
}

/// log(1 + e), 0 <= e <= 1; the quotient makes up for the rounding of 1 + e.
TAPESTRY_INLINE float log_of_one_plus(float e) {
  const float u = 1.0F + e;
  const float d = u - 1.0F;
  return d == 0.0F ? e : log(u) * (e / d);
}
TAPESTRY_INLINE double log_of_one_plus(double e) { return __builtin_log1p(e); }

template <class C>
TAPESTRY_INLINE C softplus(C x) {
  const C a = x < 0 ? x : -x;
  return (x > 0 ? x : C(0)) + log_of_one_plus(exp(a));
}

// ----------------------------------------------------------------------------------- products

template <class C>
Operand<C> matrix(const C* data, int64_t ld) {
  return {data, ld};
}

/// c [m,n] = a b, or += with kAdd; a is [m,k], or stored as [k,m].
template <bool kTransA, bool kAdd, class C>
[[gnu::noinline]] void multiply(
    int64_t m, int64_t n, int64_t k, Operand<C> a, Operand<C> b, C* c, int64_t ldc) {
  constexpr int64_t kL = kLanes<C>;
  for (int64_t j = 0; j < n; j += 2 * kL) {
    for (int64_t i = 0; i < m; i += kTileRows) {
      const C* rows = kTransA ? a.data + i : a.data + i * a.ld;
      C* out = c + i * ldc + j;
      if (j + kL < n) {
        multiply_tile<C, 2, kTransA>(k, rows, a.ld, b.data + j, b.ld, kAdd, out, ldc);
      } else {
        multiply_tile<C, 1, kTransA>(k, rows, a.ld, b.data + j, b.ld, kAdd, out, ldc);
      }
    }
  }
}

/// The tokens of a chunk, counted from its first.
struct Tokens {
  int64_t begin;  // of the chunk in its row
  int64_t count;
  int64_t rows;          // count in whole units
  int64_t before;        // tokens that see the state before the chunk: those before it
  int64_t last;          // the state after the chunk sees tokens from it on
  const int32_t* first;  // of the row, at the chunk's first token; null: one document

  /// The first token of the chunk that token t sees.
  int64_t sees(int64_t t) const { return first == nullptr ? 0 : larger(first[t] - begin, 0); }
  /// Whether a document of its own state begins with token t.
  bool begins(int64_t t) const { return first != nullptr && first[t] == begin + t; }
  /// Columns of a matrix of scores [t, s] that are made, and 0 where t does not see s.
  int64_t made_from(int64_t t) const { return unit_below(sees(unit_below(t))); }
  int64_t made_to(int64_t t) const { return unit_above(t + 1); }
  /// After the last token that sees one of kTileRows tokens from s on.
  int64_t seen_by(int64_t s) const {
    if (first == nullptr) {
      return count;
    }
    int64_t end = count;
    while (end > s && first[end - 1] - begin >= s + kTileRows) {
      --end;
    }
    return end;
  }
};

Tokens tokens_of(const StateSpaceCall& call, int64_t sample, int64_t chunk) {
  Tokens t = {};
  t.begin = chunk * call.chunk;
  t.count = smaller(call.chunk, call.tokens - t.begin);
  t.rows = unit_above(t.count);
  t.before = t.count;
  if (call.first != nullptr) {
    t.first = call.first + sample * call.first_batch + t.begin;
    while (t.before > 0 && t.first[t.before - 1] >= t.begin) {
      --t.before;
    }
    t.last = t.sees(t.count - 1);
  }
  return t;
}

/// scores [t, s] = a b where t may see s; a [rows, k], b [k, rows].
template <class C>
[[gnu::noinline]] void multiply_seen(
    const Tokens& tokens, int64_t k, Operand<C> a, Operand<C> b, C* scores, int64_t ld) {
  int64_t from[kMostChunk / kTileRows];
  for (int64_t i = 0; i < tokens.count; i += kTileRows) {
    from[i / kTileRows] = tokens.sees(i);
  }
  multiply_where(tokens.count, tokens.rows, k, a, b, scores, ld, [&](int64_t i, int64_t j) {
    return j < i + kTileRows && j + kLanes<C> > from[i / kTileRows];
  });
}

/// sums [t, n] += scores [t, s] b [s, n].
template <class C>
[[gnu::noinline]] void add_seen(
    const Tokens& tokens, int64_t n, Operand<C> scores, Operand<C> b, C* sums, int64_t ld) {
  Span spans[kMostChunk / kTileRows];
  for (int64_t i = 0; i < tokens.count; i += kTileRows) {
    spans[i / kTileRows] = {tokens.sees(i), smaller(i + kTileRows, tokens.count)};
  }
  multiply_accumulate<false>(tokens.count, n, scores, b, sums, ld,
                             [&](int64_t i) { return spans[i / kTileRows]; });
}

/// sums [s, n] += the transpose of scores [t, s], times b [t, n].
template <class C>
[[gnu::noinline]] void add_seeing(
    const Tokens& tokens, int64_t n, Operand<C> scores, Operand<C> b, C* sums, int64_t ld) {
  Span spans[kMostChunk / kTileRows];
  for (int64_t i = 0; i < tokens.count; i += kTileRows) {
    spans[i / kTileRows] = {i, tokens.seen_by(i)};
  }
  multiply_accumulate<true>(tokens.count, n, scores, b, sums, ld,
                            [&](int64_t i) { return spans[i / kTileRows]; });
}

// ------------------------------------------------------------------------------------- vectors

template <class C>
[[gnu::always_inline]] inline C sum_of(vector_t<C> v) {
  C sum = 0;
  for (int64_t i = 0; i < kLanes<C>; ++i) {
    sum += v[i];
  }
  return sum;
}

/// n is a multiple of kUnit.
template <class C>
[[gnu::always_inline]] inline C dot(int64_t n, const C* a, const C* b) {
  vector_t<C> sum = {};
  for (int64_t i = 0; i < n; i += kLanes<C>) {
    sum = multiply_add(load(a + i), load(b + i), sum);
  }
  return sum_of<C>(sum);
}

template <class C>
[[gnu::always_inline]] inline void scale_row(int64_t n, C factor, const C* x, C* out) {
  for (int64_t i = 0; i < n; i += kLanes<C>) {
    store(out + i, load(x + i) * factor);
  }
}

template <class C>
[[gnu::always_inline]] inline void fill(int64_t n, C value, C* out) {
  for (int64_t i = 0; i < n; ++i) {
    out[i] = value;
  }
}

/// Hands out parts of the working memory, each on its own cache lines.
class Room {
 public:
  explicit Room(void* memory) : next_(static_cast<char*>(memory)) {}
  template <class C>
  C* take(int64_t n) {
    char* out = next_;
    next_ += (n * static_cast<int64_t>(sizeof(C)) + 63) / 64 * 64;
    return reinterpret_cast<C*>(out);
  }

 private:
  char* next_;
};

// --------------------------------------------------------------------------------------- a head

/// Steps of the tokens of a chunk and the running sums of a D log2(e), which begin anew where a
/// document does.
template <class C>
struct Steps {
  C* step;
  C* raw;  // of which the step is the softplus, clamped
  C* high;
  C* low;

  explicit Steps(Room& room, int64_t rows)
      : step(room.take<C>(rows)),
        raw(room.take<C>(rows)),
        high(room.take<C>(rows)),
        low(room.take<C>(rows)) {}

  [[gnu::noinline]] void make(const StateSpaceCall& call,
                              const Tokens& tokens,
                              int64_t sample,
                              int64_t head) const {
    const auto bias = static_cast<const C*>(call.dt_bias)[head];
    const C* dt = static_cast<const C*>(call.dt) +
                  (sample * call.tokens + tokens.begin) * call.dt_stride + head;
    for (int64_t t = 0; t < tokens.count; ++t) {
      raw[t] = dt[t * call.dt_stride] + bias;
    }
    const auto least = static_cast<C>(call.step_min);
    const auto most = static_cast<C>(call.step_max);
    TAPESTRY_VECTOR_LOOP
    for (int64_t t = 0; t < tokens.count; ++t) {
      step[t] = clamp(softplus(raw[t]), least, most);
    }
    const double factor = call.a[head] * kLog2E;
    double sum = 0;
    double lost = 0;  // by rounding the sum
    for (int64_t t = 0; t < tokens.count; ++t) {
      const double term = factor * static_cast<double>(step[t]);
      const double next = sum + term;
      const double added = next - sum;
      lost += (sum - (next - added)) + (term - added);
      sum = next;
      if (tokens.begins(t)) {
        sum = lost = 0;
      }
      high[t] = static_cast<C>(sum);
      low[t] = static_cast<C>((sum - static_cast<double>(high[t])) + lost);
    }
    for (int64_t t = tokens.count; t < tokens.rows; ++t) {
      step[t] = raw[t] = high[t] = low[t] = 0;
    }
  }

  /// since [t] = E_t: of the state before the chunk in token t; until [s] = e^(G_last - G_s): of
  /// token s in the state after the chunk; both 0 where it is not seen. Returns e^(G_last), of the
  /// one state in the other.
  [[gnu::noinline]] C to_borders(const Tokens& tokens, C* since, C* until) const {
    const int64_t end = tokens.count - 1;
    const auto most = broadcast(high[end]);
    const auto rest = broadcast(low[end]);
    for (int64_t t = 0; t < tokens.rows; t += kLanes<C>) {
      const vector_t<C> h = load(high + t);
      const vector_t<C> l = load(low + t);
      store(since + t, exp2(h + l));
      store(until + t, exp2(-larger_of(vector_t<C>{}, (h - most) + (l - rest))));
    }
    for (int64_t t = tokens.before; t < tokens.rows; ++t) {
      since[t] = 0;
    }
    for (int64_t t = 0; t < tokens.last; ++t) {
      until[t] = 0;
    }
    for (int64_t t = tokens.count; t < tokens.rows; ++t) {
      until[t] = 0;
    }
    return since[end];
  }

  /// 2^ the exponents of W [t, s .. s + kLanes).
  [[gnu::always_inline]] vector_t<C> weights(vector_t<C> ht, vector_t<C> lt, int64_t s) const {
    return exp2(-larger_of(vector_t<C>{}, (load(high + s) - ht) + (load(low + s) - lt)));
  }
};

/// Elements of row t that were made without regard to what t sees become 0.
template <class C>
[[gnu::always_inline]] inline void hide(const Tokens& tokens, int64_t t, C* row) {
  const int64_t sees = tokens.sees(t);
  for (int64_t s = tokens.made_from(t); s < sees; ++s) {
    row[s] = 0;
  }
  const int64_t to = tokens.made_to(t);
  for (int64_t s = t + 1; s < to; ++s) {
    row[s] = 0;
  }
}

template <class T>
class HeadLoops {
  using C = compute_t<T>;
  using V = vector_t<C>;

 public:
  HeadLoops(const StateSpaceCall& call, const StateSpacePart& part)
      : c_(call),
        part_(part),
        group_(part.head_begin / (call.heads / call.groups)),
        n_(state_space_padded(call.state_size)),
        p_(state_space_padded(call.head_dim)),
        width_(call.heads * call.head_dim + 2 * call.groups * call.state_size),
        chunks_(state_space_chunks(call.tokens, call.chunk)),
        most_rows_(unit_above(smaller(call.chunk, call.tokens))) {}

  // ------------------------------------------------------------------------------------- states

  void states(void* scratch) const {
    Room room(scratch);
    C* b = room.take<C>(most_rows_ * n_);
    C* x = room.take<C>(most_rows_ * p_);
    C* since = room.take<C>(most_rows_);
    C* until = room.take<C>(most_rows_);
    const Steps<C> steps(room, most_rows_);
    for (int64_t chunk = part_.chunk_begin; chunk < part_.chunk_end; ++chunk) {
      const Tokens tokens = tokens_of(c_, part_.sample, chunk);
      read(tokens, c_.xbc, c_.xbc_stride, b_column(), c_.state_size, b);
      for (int64_t head = part_.head_begin; head < part_.head_end; ++head) {
        steps.make(c_, tokens, part_.sample, head);
        const C decay = steps.to_borders(tokens, since, until);
        read(tokens, c_.xbc, c_.xbc_stride, head * c_.head_dim, c_.head_dim, x);
        for (int64_t t = tokens.last; t < tokens.count; ++t) {
          scale_row(p_, until[t] * steps.step[t], x + t * p_, x + t * p_);
        }
        C* after = border(chunk + 1, head);
        decayed(decay, border(chunk, head), after);
        multiply<true, true>(n_, p_, tokens.count - tokens.last, matrix(b + tokens.last * n_, n_),
                             matrix(x + tokens.last * p_, p_), after, p_);
      }
    }
  }

  /// Gradients of the states before the chunks, the last chunk first.
  void dstates(const StateSpaceGradients& gradients,
               const StateSpaceWindow& window,
               void* scratch) const {
    Room room(scratch);
    C* c = room.take<C>(most_rows_ * n_);
    C* dy = room.take<C>(most_rows_ * p_);
    C* since = room.take<C>(most_rows_);
    C* until = room.take<C>(most_rows_);
    const Steps<C> steps(room, most_rows_);
    for (int64_t chunk = part_.chunk_end - 1; chunk >= part_.chunk_begin; --chunk) {
      const Tokens tokens = tokens_of(c_, part_.sample, chunk);
      read(tokens, c_.xbc, c_.xbc_stride, c_column(), c_.state_size, c);
      for (int64_t head = part_.head_begin; head < part_.head_end; ++head) {
        steps.make(c_, tokens, part_.sample, head);
        const C decay = steps.to_borders(tokens, since, until);
        read(tokens, gradients.dy, gradients.dy_stride, head * c_.head_dim, c_.head_dim, dy);
        for (int64_t t = 0; t < tokens.before; ++t) {
          scale_row(p_, since[t], dy + t * p_, dy + t * p_);
        }
        C* before = dstate(window, chunk, head);
        decayed(decay, dstate(window, chunk + 1, head), before);
        multiply<true, true>(n_, p_, tokens.before, matrix(c, n_), matrix(dy, p_), before, p_);
      }
    }
  }

  // ------------------------------------------------------------------------------------- output

  void output(void* y, void* scratch) const {
    Room room(scratch);
    C* b = room.take<C>(most_rows_ * n_);
    C* c = room.take<C>(most_rows_ * n_);
    C* b_transposed = room.take<C>(n_ * most_rows_);
    C* products = room.take<C>(most_rows_ * most_rows_);
    C* scores = room.take<C>(most_rows_ * most_rows_);
    C* x = room.take<C>(most_rows_ * p_);
    C* scaled = room.take<C>(most_rows_ * p_);
    C* sums = room.take<C>(most_rows_ * p_);
    C* since = room.take<C>(most_rows_);
    C* until = room.take<C>(most_rows_);
    const Steps<C> steps(room, most_rows_);
    const int64_t chunk = part_.chunk_begin;
    const Tokens tokens = tokens_of(c_, part_.sample, chunk);
    const int64_t ld = tokens.rows;
    group_products(tokens, b, c, b_transposed, products);
    for (int64_t head = part_.head_begin; head < part_.head_end; ++head) {
      steps.make(c_, tokens, part_.sample, head);
      steps.to_borders(tokens, since, until);
      read(tokens, c_.xbc, c_.xbc_stride, head * c_.head_dim, c_.head_dim, x);
      for (int64_t t = 0; t < tokens.count; ++t) {
        scale_row(p_, steps.step[t], x + t * p_, scaled + t * p_);
      }
      const int64_t before = tokens.before;
      multiply<false, false>(before, p_, n_, matrix(c, n_), matrix<C>(border(chunk, head), p_),
                             sums, p_);
      for (int64_t t = 0; t < before; ++t) {
        scale_row(p_, since[t], sums + t * p_, sums + t * p_);
      }
      fill((tokens.rows - before) * p_, C(0), sums + before * p_);
      weigh(tokens, steps, products, scores);
      add_seen(tokens, p_, matrix<C>(scores, ld), matrix<C>(scaled, p_), sums, p_);
      const V d = broadcast(static_cast<const C*>(c_.d)[head]);
      T* out = static_cast<T*>(y) + row(tokens) * c_.heads * c_.head_dim + head * c_.head_dim;
      for (int64_t t = 0; t < tokens.count; ++t) {
        C* sum = sums + t * p_;
        for (int64_t i = 0; i < p_; i += kLanes<C>) {
          store(sum + i, multiply_add(d, load(x + t * p_ + i), load(sum + i)));
        }
        store_row(c_.head_dim, sum, out + t * c_.heads * c_.head_dim);
      }
    }
  }

  // ----------------------------------------------------------------------------------- backward

  void backward(const StateSpaceGradients& gradients,
                const StateSpaceWindow& window,
                StateSpaceHeadSums* head_sums,
                void* scratch) const {
    Room room(scratch);
    const Work w(room, most_rows_, n_, p_);
    const Steps<C> steps(room, most_rows_);
    const int64_t chunk = part_.chunk_begin;
    const Tokens tokens = tokens_of(c_, part_.sample, chunk);
    group_products(tokens, w.b, w.c, w.state_rows, w.products);
    fill(tokens.rows * tokens.rows, C(0), w.dproducts);
    fill(tokens.rows * n_, C(0), w.db);
    fill(tokens.rows * n_, C(0), w.dc);
    for (int64_t head = part_.head_begin; head < part_.head_end; ++head) {
      steps.make(c_, tokens, part_.sample, head);
      const C decay = steps.to_borders(tokens, w.since, w.until);
      read(tokens, c_.xbc, c_.xbc_stride, head * c_.head_dim, c_.head_dim, w.x);
      read(tokens, gradients.dy, gradients.dy_stride, head * c_.head_dim, c_.head_dim, w.dy);
      through_scores(tokens, steps, w);
      const C* dstate_after = dstate(window, chunk + 1, head);
      const C* state = border(chunk, head);
      through_states(tokens, state, dstate_after, w);
      const double through_all =
          decay == 0 ? 0.0 : static_cast<double>(decay * dot(n_ * p_, state, dstate_after));
      head_sums[head] = finish_head(tokens, head, through_all, steps, gradients, w);
    }
    const int64_t ld = tokens.rows;
    add_seen(tokens, n_, matrix<C>(w.dproducts, ld), matrix<C>(w.b, n_), w.dc, n_);
    add_seeing(tokens, n_, matrix<C>(w.dproducts, ld), matrix<C>(w.c, n_), w.db, n_);
    T* out = static_cast<T*>(gradients.dxbc) + row(tokens) * width_;
    for (int64_t t = 0; t < tokens.count; ++t) {
      store_row(c_.state_size, w.db + t * n_, out + t * width_ + b_column());
      store_row(c_.state_size, w.dc + t * n_, out + t * width_ + c_column());
    }
  }

  double log_decay(int64_t head, void* scratch) const {
    Room room(scratch);
    const Steps<C> steps(room, most_rows_);
    double sum = 0;
    for (int64_t chunk = 0; chunk < chunks_; ++chunk) {
      const Tokens tokens = tokens_of(c_, part_.sample, chunk);
      if (tokens.before < tokens.count) {
        return -__builtin_inf();
      }
      steps.make(c_, tokens, part_.sample, head);
      for (int64_t t = 0; t < tokens.count; ++t) {
        sum += c_.a[head] * static_cast<double>(steps.step[t]);
      }
    }
    return sum;
  }

 private:
  struct Work {
    C *b, *c, *db, *dc;           // [rows, N]
    C* through;                   // [rows, N]
    C *state_rows, *dstate_rows;  // [p, N], the first of them also [N, rows] before the heads
    C *products, *dproducts;      // [rows, rows]
    C* scores;                    // [rows, rows]: gradients of the scores, then the scores
    C *x, *dy, *scaled, *dx;      // [rows, p]
    C* transposed;                // [p, rows]
    C *since, *until, *ddecays, *dcolumns, *since_dots, *until_dots, *x_dots;

    Work(Room& room, int64_t rows, int64_t n, int64_t p)
        : b(room.take<C>(rows * n)),
          c(room.take<C>(rows * n)),
          db(room.take<C>(rows * n)),
          dc(room.take<C>(rows * n)),
          through(room.take<C>(rows * n)),
          state_rows(room.take<C>(n * larger(p, rows))),
          dstate_rows(room.take<C>(n * p)),
          products(room.take<C>(rows * rows)),
          dproducts(room.take<C>(rows * rows)),
          scores(room.take<C>(rows * rows)),
          x(room.take<C>(rows * p)),
          dy(room.take<C>(rows * p)),
          scaled(room.take<C>(rows * p)),
          dx(room.take<C>(rows * p)),
          transposed(room.take<C>(rows * p)),
          since(room.take<C>(rows)),
          until(room.take<C>(rows)),
          ddecays(room.take<C>(rows)),
          dcolumns(room.take<C>(rows)),
          since_dots(room.take<C>(rows)),
          until_dots(room.take<C>(rows)),
          x_dots(room.take<C>(rows)) {}
  };

  int64_t b_column() const { return c_.heads * c_.head_dim + group_ * c_.state_size; }
  int64_t c_column() const { return b_column() + c_.groups * c_.state_size; }
  int64_t row(const Tokens& tokens) const { return part_.sample * c_.tokens + tokens.begin; }

  C* border(int64_t chunk, int64_t head) const {
    const int64_t number = (part_.sample * (chunks_ + 1) + chunk) * c_.heads + head;
    return static_cast<C*>(c_.borders) + number * n_ * p_;
  }
  C* dstate(const StateSpaceWindow& window, int64_t chunk, int64_t head) const {
    const int64_t slot = chunk - window.chunk_begin;
    const int64_t number = (slot * c_.batch + part_.sample) * c_.heads + head;
    return static_cast<C*>(window.dstates) + number * n_ * p_;
  }
  void decayed(C decay, const C* from, C* to) const {
    if (decay == 0) {  // a document has begun: not 0 times what may be infinite
      fill(n_ * p_, C(0), to);
    } else {
      scale_row(n_ * p_, decay, from, to);
    }
  }

  /// Columns of the tokens' rows as a matrix [rows, whole units], zeros around what there is.
  [[gnu::noinline]] void read(const Tokens& tokens,
                              const void* rows,
                              int64_t stride,
                              int64_t column,
                              int64_t width,
                              C* out) const {
    const T* from = static_cast<const T*>(rows) + row(tokens) * stride + column;
    const int64_t padded = unit_above(width);
    for (int64_t t = 0; t < tokens.count; ++t) {
      load_row(width, from + t * stride, out + t * padded);
      for (int64_t i = width; i < padded; ++i) {
        out[t * padded + i] = 0;
      }
    }
    fill((tokens.rows - tokens.count) * padded, C(0), out + tokens.count * padded);
  }

  /// B, C and products [t, s] = C_t . B_s.
  void group_products(const Tokens& tokens, C* b, C* c, C* b_transposed, C* products) const {
    read(tokens, c_.xbc, c_.xbc_stride, b_column(), c_.state_size, b);
    read(tokens, c_.xbc, c_.xbc_stride, c_column(), c_.state_size, c);
    transpose(tokens.rows, n_, b, n_, b_transposed, tokens.rows);
    multiply_seen(tokens, c_.state_size, matrix<C>(c, n_), matrix<C>(b_transposed, tokens.rows),
                  products, tokens.rows);
  }

  /// scores = products o W.
  [[gnu::noinline]] static void weigh(const Tokens& tokens,
                                      const Steps<C>& steps,
                                      const C* products,
                                      C* scores) {
    for (int64_t t = 0; t < tokens.count; ++t) {
      const V high = broadcast(steps.high[t]);
      const V low = broadcast(steps.low[t]);
      const int64_t to = tokens.made_to(t);
      const int64_t at = t * tokens.rows;
      for (int64_t s = tokens.made_from(t); s < to; s += kLanes<C>) {
        store(scores + at + s, load(products + at + s) * steps.weights(high, low, s));
      }
      hide(tokens, t, scores + at);
    }
  }

  /// Gradients through the scores: dproducts += dM o W; dx = M^T dY; scaled = diag(D) X; and
  /// ddecays [t] = the sum of dM o M over the later tokens, t among them, and the earlier ones,
  /// that is, over all weights in which token t decays. From the last t on the columns' sums grow
  /// by a row each, and nothing cancels.
  [[gnu::noinline]] void through_scores(const Tokens& tokens,
                                        const Steps<C>& steps,
                                        const Work& w) const {
    const int64_t ld = tokens.rows;
    for (int64_t t = 0; t < tokens.rows; ++t) {
      scale_row(p_, steps.step[t], w.x + t * p_, w.scaled + t * p_);
    }
    transpose(tokens.rows, p_, w.scaled, p_, w.transposed, ld);
    multiply_seen(tokens, c_.head_dim, matrix<C>(w.dy, p_), matrix<C>(w.transposed, ld), w.scores,
                  ld);
    fill(tokens.rows, C(0), w.dcolumns);
    for (int64_t t = tokens.count - 1; t >= 0; --t) {
      const V high = broadcast(steps.high[t]);
      const V low = broadcast(steps.low[t]);
      C* scores = w.scores + t * ld;
      C* dproducts = w.dproducts + t * ld;
      const C* products = w.products + t * ld;
      const int64_t from = tokens.made_from(t);
      const int64_t to = tokens.made_to(t);
      const int64_t sees = tokens.sees(t);
      V sum = {};
      for (int64_t s = from; s < to; s += kLanes<C>) {
        V weights = steps.weights(high, low, s);
        V dscores = load(scores + s);
        V product = load(products + s);
        const bool is_edge = s < sees || s + kLanes<C> > t;
        if (is_edge) {
          for (int64_t i = 0; i < kLanes<C>; ++i) {
            const bool hidden = s + i < sees || s + i > t;
            weights[i] = hidden ? 0 : weights[i];
            dscores[i] = hidden ? 0 : dscores[i];
            product[i] = hidden ? 0 : product[i];
          }
        }
        const V dproduct = dscores * weights;
        store(dproducts + s, load(dproducts + s) + dproduct);
        store(scores + s, product * weights);
        V dcolumn = multiply_add(dproduct, product, load(w.dcolumns + s));
        store(w.dcolumns + s, dcolumn);
        if (is_edge) {
          for (int64_t i = 0; i < kLanes<C>; ++i) {
            dcolumn[i] = s + i < t ? dcolumn[i] : 0;
          }
        }
        sum += dcolumn;
      }
      w.ddecays[t] = sum_of<C>(sum);
    }
    fill(tokens.rows * p_, C(0), w.dx);
    add_seeing(tokens, p_, matrix<C>(w.scores, ld), matrix<C>(w.dy, p_), w.dx, p_);
  }

  /// Gradients through the states at the chunk's borders: dx += diag(until) B dS^T, dB +=
  /// diag(until D) X dS, dC += diag(E) dY S. since_dots are the parts of the tokens in what the
  /// state before the chunk gives to Y . dY, until_dots theirs in S' . dS'.
  [[gnu::noinline]] void through_states(const Tokens& tokens,
                                        const C* state,
                                        const C* dstate_after,
                                        const Work& w) const {
    transpose(n_, p_, state, p_, w.state_rows, n_);
    transpose(n_, p_, dstate_after, p_, w.dstate_rows, n_);
    const int64_t before = tokens.before;
    C* const rows = w.transposed;  // [rows, p], which is free again
    for (int64_t t = 0; t < unit_above(before); ++t) {
      scale_row(p_, w.since[t], w.dy + t * p_, rows + t * p_);
    }
    multiply<false, false>(before, n_, c_.head_dim, matrix<C>(rows, p_),
                           matrix<C>(w.state_rows, n_), w.through, n_);
    for (int64_t t = 0; t < before; ++t) {
      V sum = {};
      for (int64_t i = t * n_; i < (t + 1) * n_; i += kLanes<C>) {
        const V through = load(w.through + i);
        sum = multiply_add(through, load(w.c + i), sum);
        store(w.dc + i, load(w.dc + i) + through);
      }
      w.since_dots[t] = sum_of<C>(sum);
    }
    const int64_t from = tokens.last / kTileRows * kTileRows;
    const int64_t seen = tokens.count - from;
    C* const dx = w.through;  // [rows, p] of a matrix [rows, N or p]
    // Rows before `last` are multiplied by 0.
    fill(tokens.rows, C(0), w.until_dots);
    for (int64_t part = 0; part < p_; part += n_) {
      const int64_t columns = smaller(n_, p_ - part);
      multiply<false, false>(seen, columns, c_.state_size, matrix<C>(w.b + from * n_, n_),
                             matrix<C>(dstate_after + part, p_), dx, columns);
      for (int64_t t = from; t < tokens.count; ++t) {
        const V until = broadcast(w.until[t]);
        V sum = {};
        for (int64_t i = 0; i < columns; i += kLanes<C>) {
          C* out = w.dx + t * p_ + part + i;
          const V through = until * load(dx + (t - from) * columns + i);
          sum = multiply_add(through, load(w.scaled + t * p_ + part + i), sum);
          store(out, load(out) + through);
        }
        w.until_dots[t] += sum_of<C>(sum);
      }
    }
    for (int64_t t = from; t < tokens.rows; ++t) {
      scale_row(p_, w.until[t], w.scaled + t * p_, rows + t * p_);
    }
    multiply<false, true>(seen, n_, c_.head_dim, matrix<C>(rows + from * p_, p_),
                          matrix<C>(w.dstate_rows, n_), w.db + from * n_, n_);
  }

  /// From the gradients of D X and of the running sums to those of x, dt and the parameters.
  [[gnu::noinline]] StateSpaceHeadSums finish_head(const Tokens& tokens,
                                                   int64_t head,
                                                   double through_all,
                                                   const Steps<C>& steps,
                                                   const StateSpaceGradients& gradients,
                                                   const Work& w) const {
    const auto d = static_cast<const C*>(c_.d)[head];
    T* dx = static_cast<T*>(gradients.dxbc) + row(tokens) * width_ + head * c_.head_dim;
    double dd = 0;
    for (int64_t t = 0; t < tokens.count; ++t) {
      C* gradient = w.dx + t * p_;
      const C* x = w.x + t * p_;
      const C* dy = w.dy + t * p_;
      w.x_dots[t] = dot(p_, gradient, x);
      dd += static_cast<double>(dot(p_, dy, x));
      const V step = broadcast(steps.step[t]);
      for (int64_t i = 0; i < p_; i += kLanes<C>) {
        store(gradient + i, multiply_add(step, load(gradient + i), load(dy + i) * d));
      }
      store_row(c_.head_dim, gradient, dx + t * width_);
    }
    // Token t decays: weights of later tokens for earlier ones; what the state before the chunk
    // gives to later tokens; what earlier tokens give to the state after it; and the one state in
    // the other. Each is a sum of its own, since those that cancel would leave the rounding of
    // others, which a large `a` magnifies.
    const double a = c_.a[head];
    C* ddt = static_cast<C*>(gradients.ddt) + row(tokens) * c_.heads + head;
    double until = 0;
    for (int64_t t = 0; t < tokens.count; ++t) {
      const auto own = static_cast<double>(w.until_dots[t]);
      w.ddecays[t] += static_cast<C>(until + through_all);
      until += own;
    }
    double since = 0;
    double da = 0;
    double dbias = 0;
    for (int64_t t = tokens.count - 1; t >= 0; --t) {
      const auto step = static_cast<double>(steps.step[t]);
      const auto through_x = static_cast<double>(w.x_dots[t]);
      since += t < tokens.before ? static_cast<double>(w.since_dots[t]) : 0.0;
      const double sum = tokens.begins(t) ? 0.0 : static_cast<double>(w.ddecays[t]) + since;
      const C raw = steps.raw[t];
      const C plain = softplus(raw);
      const bool is_clamped =
          plain < static_cast<C>(c_.step_min) || plain > static_cast<C>(c_.step_max);
      const double slope = is_clamped ? 0.0 : static_cast<double>(C(1) / (C(1) + exp(-raw)));
      const double dstep = (through_x + a * sum) * slope;
      ddt[t * c_.heads] = static_cast<C>(dstep);
      dbias += dstep;
      da += step * sum;
    }
    return {da, dd, dbias};
  }

  const StateSpaceCall& c_;
  const StateSpacePart& part_;
  const int64_t group_;
  const int64_t n_;
  const int64_t p_;
  const int64_t width_;
  const int64_t chunks_;
  const int64_t most_rows_;
};

/// Calls f(null pointer of the element type).
template <class F>
void for_type(const StateSpaceCall& call, const F& f) {
  for_floating(call.dtype, f);
}

}  // namespace

void state_space_states_part(const StateSpaceCall& call,
                             const StateSpacePart& part,
                             void* scratch) {
  for_type(call, [&](auto* tag) {
    HeadLoops<std::remove_pointer_t<decltype(tag)>>(call, part).states(scratch);
  });
}

void state_space_output_part(const StateSpaceCall& call,
                             const StateSpacePart& part,
                             void* y,
                             void* scratch) {
  for_type(call, [&](auto* tag) {
    HeadLoops<std::remove_pointer_t<decltype(tag)>>(call, part).output(y, scratch);
  });
}

void state_space_dstates_part(const StateSpaceCall& call,
                              const StateSpacePart& part,
                              const StateSpaceGradients& gradients,
                              const StateSpaceWindow& window,
                              void* scratch) {
  for_type(call, [&](auto* tag) {
    HeadLoops<std::remove_pointer_t<decltype(tag)>>(call, part).dstates(gradients, window, scratch);
  });
}

void state_space_backward_part(const StateSpaceCall& call,
                               const StateSpacePart& part,
                               const StateSpaceGradients& gradients,
                               const StateSpaceWindow& window,
                               StateSpaceHeadSums* sums,
                               void* scratch) {
  for_type(call, [&](auto* tag) {
    HeadLoops<std::remove_pointer_t<decltype(tag)>>(call, part)
        .backward(gradients, window, sums, scratch);
  });
}

double state_space_log_decay_of(const StateSpaceCall& call,
                                int64_t sample,
                                int64_t head,
                                void* scratch) {
  const StateSpacePart part = {sample, head, head + 1, 0, 0};
  return call.dtype == kFloat64 ? HeadLoops<double>(call, part).log_decay(head, scratch)
                                : HeadLoops<float>(call, part).log_decay(head, scratch);
}

namespace {

/// One token: S <- e^(a D) S + D x B^T and y = S C + d x, row by row of S.
template <class T, class C = compute_t<T>>
void step_head(const StateSpaceStep& step, int64_t text, int64_t head) {
  const StateSpaceCall& c = step.call;
  const int64_t n = c.state_size;
  const int64_t p = c.head_dim;
  const int64_t group = head / (c.heads / c.groups);
  const T* row = static_cast<const T*>(c.xbc) + text * c.xbc_stride;
  const T* b_row = row + c.heads * p + group * n;
  const T* c_row = b_row + c.groups * n;
  const C raw = static_cast<const C*>(c.dt)[text * c.dt_stride + head] +
                static_cast<const C*>(c.dt_bias)[head];
  const C size = clamp(softplus(raw), static_cast<C>(c.step_min), static_cast<C>(c.step_max));
  const auto decay = static_cast<C>(__builtin_exp(c.a[head] * static_cast<double>(size)));
  const auto d = static_cast<const C*>(c.d)[head];
  C* state = static_cast<C*>(step.states) + (step.slots[text] * c.heads + head) * p * n;
  T* y = static_cast<T*>(step.y) + text * c.heads * p + head * p;
  C b_block[kBlock];
  C c_block[kBlock];
  for (int64_t i = 0; i < p; ++i) {
    const C x = get(row[head * p + i]);
    const C factor = size * x;
    C* s = state + i * n;
    C sum = 0;
    for (int64_t done = 0; done < n; done += kBlock) {
      const int64_t m = block_size(n - done);
      if (i == 0 || n > kBlock) {
        load_row(m, b_row + done, b_block);
        load_row(m, c_row + done, c_block);
      }
      C part = 0;
#pragma omp simd reduction(+ : part)
      for (int64_t j = 0; j < m; ++j) {
        const C next = s[done + j] * decay + factor * b_block[j];
        s[done + j] = next;
        part += next * c_block[j];
      }
      sum += part;
    }
    put<T>(sum + d * x, y[i]);
  }
}

}  // namespace

void state_space_step_heads(const StateSpaceStep& step,
                            int64_t text,
                            int64_t head_begin,
                            int64_t head_end) {
  for_floating(step.call.dtype, [&](auto* tag) {
    for (int64_t head = head_begin; head < head_end; ++head) {
      step_head<std::remove_pointer_t<decltype(tag)>>(step, text, head);
    }
  });
}

}  // namespace tapestry::kernels::TAPESTRY_ISA
