#include "autograd/kernels/moe_permute.h"

#include <type_traits>

#include "autograd/kernels/isa/row_io.h"
#include "autograd/kernels/isa/simd.h"
#include "autograd/kernels/isa/stream_store.h"

namespace tapestry::kernels::TAPESTRY_ISA {

void permute_tokens(const PermuteRows& call, int64_t begin, int64_t end, bool streams);
void unpermute_tokens(const UnpermuteRows& call, int64_t begin, int64_t end, bool streams);
void unpermute_backward_tokens(const UnpermuteRowsBackward& call,
                               int64_t begin,
                               int64_t end,
                               bool streams);

namespace {

/// Half a vector of 16-bit elements: as many as a vector has of float.
// NOLINTNEXTLINE(modernize-use-using): an alias cannot carry the attribute
typedef uint16_t HalfVector __attribute__((vector_size(kVectorBytes / 2)));

/// One vector of neighbours in the compute type, and back.
template <class T>
TAPESTRY_INLINE vector_t<compute_t<T>> load_wide(const T* x) {
  if constexpr (kSame<T, BFloat16>) {
    HalfVector bits;
    __builtin_memcpy(&bits, x, sizeof(bits));
    return reinterpret_cast<FloatVector>(__builtin_convertvector(bits, UInt32Vector) << 16U);
  } else {
    return load(x);
  }
}
template <class T>
TAPESTRY_INLINE auto narrow(vector_t<compute_t<T>> v) {
  if constexpr (kSame<T, BFloat16>) {  // as bfloat16_bits()
    const auto u = reinterpret_cast<UInt32Vector>(v);
    const UInt32Vector high = u >> 16U;
    const UInt32Vector rounded = (u + 0x7fffU + (high & 1U)) >> 16U;
    return __builtin_convertvector(v != v ? high | 0x40U : rounded, HalfVector);
  } else {
    return v;
  }
}

/// y = v: with `streams` past the caches.
template <class T, class V>
TAPESTRY_INLINE void put_vector(T* y, V v, bool streams) {
  if (streams) {
    stream(y, v);
  } else {
    __builtin_memcpy(static_cast<void*>(y), &v, sizeof(v));
  }
}

/// Elements of a cache line: what one prefetch brings.
template <class T>
inline constexpr int64_t kLineElements = 64 / static_cast<int64_t>(sizeof(T));

template <class C>
C gate_of(const void* gates, const TokenRows& map, int64_t token, int64_t choice) {
  return gates == nullptr ? C(1) : static_cast<const C*>(gates)[token * map.topk + choice];
}

/// The choice of a token whose row comes next after `row`, or -1.
int64_t next_choice(const TokenRows& map, int64_t token, int64_t row) {
  const int32_t* rows = map.rows + token * map.topk;
  int64_t next = -1;
  for (int64_t j = 0; j < map.topk; ++j) {
    if (rows[j] > row && (next < 0 || rows[j] < rows[next])) {
      next = j;
    }
  }
  return next;
}

/// A row that will be read soon, of the same choice of the token after the next: rows lie anywhere,
/// which the processor does not foresee. Null where there is none.
template <class T>
const T* row_ahead(const TokenRows& map, int64_t token, int64_t choice, const void* x, int64_t ld) {
  constexpr int64_t kAhead = 2;
  if (token + kAhead >= map.tokens || choice >= map.topk) {
    return nullptr;
  }
  const int64_t row = map.rows[(token + kAhead) * map.topk + choice];
  return row < 0 ? nullptr : static_cast<const T*>(x) + row * ld;
}

template <class T>
void permute_token(const PermuteRows& call, int64_t token, bool streams) {
  const auto* x = static_cast<const T*>(call.x) + token * call.x_stride;
  const auto bytes = call.n * static_cast<int64_t>(sizeof(T));
  for (int64_t j = 0; j < call.map.topk; ++j) {
    const int64_t row = call.map.rows[token * call.map.topk + j];
    if (row < 0) {
      continue;
    }
    auto* y = static_cast<T*>(call.y) + row * call.n;
    if (streams) {
      stream_bytes(bytes, x, y);
    } else {
      __builtin_memcpy(static_cast<void*>(y), x, static_cast<size_t>(bytes));
    }
  }
}

/// One row of a sum, with its gate, and another row that is fetched meanwhile.
template <class T>
struct Term {
  const T* x;
  compute_t<T> gate;
  const T* ahead;
};

/// y = the sum of one or two terms, in one pass.
template <bool kTwo, class T>
void sum_of_terms(int64_t n, const Term<T>& a, const Term<T>& b, T* y, bool streams) {
  using C = compute_t<T>;
  const vector_t<C> gate_a = broadcast(a.gate);
  const vector_t<C> gate_b = broadcast(b.gate);
  int64_t i = 0;
  for (; i + kLineElements<T> <= n; i += kLineElements<T>) {
    if (a.ahead != nullptr) {
      __builtin_prefetch(a.ahead + i);
    }
    if (kTwo && b.ahead != nullptr) {
      __builtin_prefetch(b.ahead + i);
    }
#pragma GCC unroll 8
    for (int64_t at = i; at < i + kLineElements<T>; at += kLanes<C>) {
      vector_t<C> sum = gate_a * load_wide(a.x + at);
      if constexpr (kTwo) {
        sum = multiply_add(gate_b, load_wide(b.x + at), sum);
      }
      put_vector(y + at, narrow<T>(sum), streams);
    }
  }
  for (; i < n; ++i) {
    C sum = a.gate * get(a.x[i]);
    if constexpr (kTwo) {
      sum += b.gate * get(b.x[i]);
    }
    put(sum, y[i]);
  }
}

/// sum = or += gate x
template <class C>
TAPESTRY_INLINE void add_term(int64_t n, bool first, C gate, const C* x, C* sum) {
  if (first) {
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < n; ++i) {
      sum[i] = gate * x[i];
    }
  } else {
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < n; ++i) {
      sum[i] += gate * x[i];
    }
  }
}

/// y = the sum of any number of terms.
template <class T>
void sum_in_blocks(const UnpermuteRows& call, int64_t token, T* y) {
  using C = compute_t<T>;
  C x_block[kBlock];
  C y_block[kBlock];
  const auto* x = static_cast<const T*>(call.x);
  for (int64_t done = 0; done < call.n; done += kBlock) {
    const int64_t m = block_size(call.n - done);
    C* sum = output_block(y + done, y_block);
    int64_t row = -1;
    for (int64_t choice = next_choice(call.map, token, row); choice >= 0;
         choice = next_choice(call.map, token, row)) {
      const bool first = row < 0;
      row = call.map.rows[token * call.map.topk + choice];
      add_term(m, first, gate_of<C>(call.gates, call.map, token, choice),
               read_block(m, x + row * call.x_stride + done, x_block), sum);
    }
    if (row < 0) {
      TAPESTRY_VECTOR_LOOP
      for (int64_t i = 0; i < m; ++i) {
        sum[i] = C(0);
      }
    }
    write_block(m, sum, y + done);
  }
}

template <class T>
void unpermute_token(const UnpermuteRows& call, int64_t token, bool streams) {
  using C = compute_t<T>;
  constexpr int64_t kFew = 2;
  Term<T> terms[kFew] = {};
  int64_t count = 0;
  int64_t row = -1;
  for (int64_t choice = next_choice(call.map, token, row); choice >= 0;
       choice = next_choice(call.map, token, row)) {
    row = call.map.rows[token * call.map.topk + choice];
    if (count < kFew) {
      terms[count] = {static_cast<const T*>(call.x) + row * call.x_stride,
                      gate_of<C>(call.gates, call.map, token, choice),
                      row_ahead<T>(call.map, token, count, call.x, call.x_stride)};
    }
    ++count;
  }
  T* y = static_cast<T*>(call.y) + token * call.n;
  if constexpr (kIsDirect<T>) {
    if (count == 1) {
      return sum_of_terms<false>(call.n, terms[0], terms[0], y, streams);
    }
    if (count == 2) {
      return sum_of_terms<true>(call.n, terms[0], terms[1], y, streams);
    }
  }
  sum_in_blocks(call, token, y);
}

/// A row of dy and x with its gradient, each of the last two or null; `ahead` as in a Term.
template <class T>
struct BackwardRow {
  compute_t<T> gate;
  const T* dy;
  const T* x;
  T* dx;
  const T* ahead;
};

/// dx = gate dy and the result dy . x, in several sums: one would wait for each of its additions.
/// They have four lines of lanes at every CPU level, which are added in one order.
template <bool kDot, bool kScale, class T>
compute_t<T> backward_elements(int64_t n, const BackwardRow<T>& row, bool streams) {
  using C = compute_t<T>;
  constexpr int64_t kLane = kLanes<C>;
  constexpr int64_t kParts = 64 / kVectorBytes;  // vectors of a line
  constexpr int64_t kSums = 4 * kParts;
  vector_t<C> sums[kSums] = {};
  const vector_t<C> gate = broadcast(row.gate);
  int64_t i = 0;
  for (; i + kSums * kLane <= n; i += kSums * kLane) {
    if (kDot && row.ahead != nullptr) {
      for (int64_t line = 0; line < kSums * kLane; line += kLineElements<T>) {
        __builtin_prefetch(row.ahead + i + line);
      }
    }
#pragma GCC unroll 16
    for (int64_t v = 0; v < kSums; ++v) {
      const int64_t at = i + v * kLane;
      const vector_t<C> slope = load_wide(row.dy + at);
      if constexpr (kDot) {
        sums[v] = multiply_add(slope, load_wide(row.x + at), sums[v]);
      }
      if constexpr (kScale) {
        put_vector(row.dx + at, narrow<T>(slope * gate), streams);
      }
    }
  }
  C total = 0;
  if constexpr (kDot) {
    for (int64_t part = 0; part < kParts; ++part) {
      const vector_t<C>* of_lines = sums + part;
      const vector_t<C> all =
          (of_lines[0] + of_lines[kParts]) + (of_lines[2 * kParts] + of_lines[3 * kParts]);
      for (int64_t lane = 0; lane < kLane; ++lane) {
        total += all[lane];
      }
    }
  }
  for (; i < n; ++i) {
    if constexpr (kDot) {
      total += get(row.dy[i]) * get(row.x[i]);
    }
    if constexpr (kScale) {
      put(get(row.dy[i]) * row.gate, row.dx[i]);
    }
  }
  return total;
}

/// What is wanted of a row.
template <class T>
compute_t<T> backward_wanted(int64_t n, const BackwardRow<T>& row, bool streams) {
  if (row.x == nullptr) {
    return backward_elements<false, true>(n, row, streams);
  }
  return row.dx == nullptr ? backward_elements<true, false>(n, row, streams)
                           : backward_elements<true, true>(n, row, streams);
}

template <class T>
compute_t<T> backward_row(int64_t n, const BackwardRow<T>& row, bool streams) {
  if constexpr (kIsDirect<T>) {
    return backward_wanted(n, row, streams);
  } else {
    using C = compute_t<T>;
    C dy_block[kBlock];
    C x_block[kBlock];
    C dx_block[kBlock];
    C total = 0;
    for (int64_t done = 0; done < n; done += kBlock) {
      const int64_t m = block_size(n - done);
      load_row(m, row.dy + done, dy_block);
      if (row.x != nullptr) {
        load_row(m, row.x + done, x_block);
      }
      total += backward_wanted<C>(m,
                                  {row.gate, dy_block, row.x == nullptr ? nullptr : x_block,
                                   row.dx == nullptr ? nullptr : dx_block, nullptr},
                                  false);
      if (row.dx != nullptr) {
        store_row(m, static_cast<const C*>(dx_block), row.dx + done);
      }
    }
    return total;
  }
}

template <class T>
void unpermute_backward_token(const UnpermuteRowsBackward& call, int64_t token, bool streams) {
  using C = compute_t<T>;
  for (int64_t j = 0; j < call.map.topk; ++j) {
    const int64_t choice = token * call.map.topk + j;
    const int64_t row = call.map.rows[choice];
    C dot = 0;
    if (row >= 0 && (call.dx != nullptr || call.dgates != nullptr)) {
      const bool dots = call.dgates != nullptr;
      dot = backward_row<T>(
          call.n,
          {gate_of<C>(call.gates, call.map, token, j),
           static_cast<const T*>(call.dy) + token * call.dy_stride,
           dots ? static_cast<const T*>(call.x) + row * call.x_stride : nullptr,
           call.dx == nullptr ? nullptr : static_cast<T*>(call.dx) + row * call.n,
           dots ? row_ahead<T>(call.map, token, j, call.x, call.x_stride) : nullptr},
          streams);
    }
    if (call.dgates != nullptr) {
      static_cast<C*>(call.dgates)[choice] = dot;
    }
  }
}

}  // namespace

void permute_tokens(const PermuteRows& call, int64_t begin, int64_t end, bool streams) {
  for_floating(call.dtype, [&](auto* tag) {
    for (int64_t token = begin; token < end; ++token) {
      permute_token<std::remove_pointer_t<decltype(tag)>>(call, token, streams);
    }
  });
  end_streams();
}

void unpermute_tokens(const UnpermuteRows& call, int64_t begin, int64_t end, bool streams) {
  for_floating(call.dtype, [&](auto* tag) {
    for (int64_t token = begin; token < end; ++token) {
      unpermute_token<std::remove_pointer_t<decltype(tag)>>(call, token, streams);
    }
  });
  end_streams();
}

void unpermute_backward_tokens(const UnpermuteRowsBackward& call,
                               int64_t begin,
                               int64_t end,
                               bool streams) {
  for_floating(call.dtype, [&](auto* tag) {
    for (int64_t token = begin; token < end; ++token) {
      unpermute_backward_token<std::remove_pointer_t<decltype(tag)>>(call, token, streams);
    }
  });
  end_streams();
}

}  // namespace tapestry::kernels::TAPESTRY_ISA
