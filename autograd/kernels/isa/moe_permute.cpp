#include "autograd/kernels/moe_permute.h"

#include <type_traits>

#include "autograd/kernels/isa/row_io.h"
#include "autograd/kernels/isa/simd.h"
#include "autograd/kernels/isa/stream_store.h"

namespace tapestry::kernels::TAPESTRY_ISA {

void permute_tokens(const PermuteRows& call, int64_t begin, int64_t end, bool streams);
void unpermute_tokens(const UnpermuteRows& call, int64_t begin, int64_t end);
void unpermute_backward_tokens(const UnpermuteRowsBackward& call, int64_t begin, int64_t end);

namespace {

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

template <class C>
C gate_of(const void* gates, const TokenRows& map, int64_t token, int64_t choice) {
  return gates == nullptr ? C(1) : static_cast<const C*>(gates)[token * map.topk + choice];
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
      __builtin_memcpy(y, x, static_cast<size_t>(bytes));
    }
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

/// One row of a sum, with its gate.
template <class T>
struct Term {
  const T* x;
  compute_t<T> gate;
};

/// y = the sum of one or two terms, rounded once, in one pass.
template <class T>
TAPESTRY_INLINE void sum_of_one(int64_t n, const Term<T>& a, T* y) {
  TAPESTRY_VECTOR_LOOP
  for (int64_t i = 0; i < n; ++i) {
    put(a.gate * get(a.x[i]), y[i]);
  }
}
template <class T>
TAPESTRY_INLINE void sum_of_two(int64_t n, const Term<T>& a, const Term<T>& b, T* y) {
  TAPESTRY_VECTOR_LOOP
  for (int64_t i = 0; i < n; ++i) {
    compute_t<T> sum = a.gate * get(a.x[i]);
    sum += b.gate * get(b.x[i]);
    put(sum, y[i]);
  }
}

template <class T>
void unpermute_token(const UnpermuteRows& call, int64_t token) {
  using C = compute_t<T>;
  const auto* x = static_cast<const T*>(call.x);
  auto* y = static_cast<T*>(call.y) + token * call.n;
  constexpr int64_t kFew = 2;
  Term<T> terms[kFew] = {};
  int64_t count = 0;
  int64_t row = -1;
  for (int64_t choice = next_choice(call.map, token, row); choice >= 0;
       choice = next_choice(call.map, token, row)) {
    row = call.map.rows[token * call.map.topk + choice];
    if (count < kFew) {
      terms[count] = {x + row * call.x_stride, gate_of<C>(call.gates, call.map, token, choice)};
    }
    ++count;
  }
  if constexpr (kIsDirect<T>) {
    if (count == 1) {
      return sum_of_one(call.n, terms[0], y);
    }
    if (count == 2) {
      return sum_of_two(call.n, terms[0], terms[1], y);
    }
  }
  C x_block[kBlock];
  C y_block[kBlock];
  for (int64_t done = 0; done < call.n; done += kBlock) {
    const int64_t m = block_size(call.n - done);
    C* sum = output_block(y + done, y_block);
    row = -1;
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

/// One vector of neighbours in the compute type.
template <class T>
TAPESTRY_INLINE vector_t<compute_t<T>> load_wide(const T* x) {
  if constexpr (kSame<T, BFloat16>) {
    // NOLINTNEXTLINE(modernize-use-using): an alias cannot carry the attribute
    typedef uint16_t HalfVector __attribute__((vector_size(kVectorBytes / 2)));
    HalfVector bits;
    __builtin_memcpy(&bits, x, sizeof(bits));
    return reinterpret_cast<FloatVector>(__builtin_convertvector(bits, UInt32Vector) << 16U);
  } else {
    return load(x);
  }
}

/// x . y in several sums: one would wait for each of its additions.
template <class T>
compute_t<T> dot(int64_t n, const compute_t<T>* x, const T* y) {
  using C = compute_t<T>;
  constexpr int64_t kSums = 4;
  constexpr int64_t kLane = kLanes<C>;
  vector_t<C> sums[kSums] = {};
  int64_t i = 0;
  for (; i + kSums * kLane <= n; i += kSums * kLane) {
#pragma GCC unroll 4
    for (int64_t v = 0; v < kSums; ++v) {
      sums[v] = multiply_add(load(x + i + v * kLane), load_wide(y + i + v * kLane), sums[v]);
    }
  }
  const vector_t<C> all = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  C total = 0;
  for (int64_t lane = 0; lane < kLane; ++lane) {
    total += all[lane];
  }
  for (; i < n; ++i) {
    total += x[i] * get(y[i]);
  }
  return total;
}

/// dy . x of a block.
template <class T>
TAPESTRY_INLINE compute_t<T> dot_block(int64_t n, const compute_t<T>* dy, const T* x) {
  if constexpr (kIsDirect<T>) {
    return dot(n, dy, x);
  } else {
    compute_t<T> x_block[kBlock];
    load_row(n, x, x_block);
    return dot(n, dy, static_cast<const compute_t<T>*>(x_block));
  }
}

/// dx = gate dy
template <class T>
TAPESTRY_INLINE void scale(int64_t n, compute_t<T> gate, const compute_t<T>* dy, T* dx) {
  if constexpr (kIsDirect<T>) {
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < n; ++i) {
      put(gate * dy[i], dx[i]);
    }
  } else {
    compute_t<T> scaled[kBlock];
    add_term(n, true, gate, dy, scaled);
    store_row(n, scaled, dx);
  }
}

template <class T>
void unpermute_backward_token(const UnpermuteRowsBackward& call, int64_t token) {
  using C = compute_t<T>;
  C dy_block[kBlock];
  const auto* dy = static_cast<const T*>(call.dy) + token * call.dy_stride;
  const int32_t* rows = call.map.rows + token * call.map.topk;
  auto* dgates = static_cast<C*>(call.dgates) + token * call.map.topk;
  if (call.dgates != nullptr) {
    for (int64_t j = 0; j < call.map.topk; ++j) {
      dgates[j] = C(0);
    }
  }
  for (int64_t done = 0; done < call.n; done += kBlock) {
    const int64_t m = block_size(call.n - done);
    const C* d = read_block(m, dy + done, dy_block);
    for (int64_t j = 0; j < call.map.topk; ++j) {
      if (rows[j] < 0) {
        continue;
      }
      if (call.dgates != nullptr) {
        dgates[j] +=
            dot_block(m, d, static_cast<const T*>(call.x) + rows[j] * call.x_stride + done);
      }
      if (call.dx != nullptr) {
        auto* dx = static_cast<T*>(call.dx) + rows[j] * call.n + done;
        scale(m, gate_of<C>(call.gates, call.map, token, j), d, dx);
      }
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

void unpermute_tokens(const UnpermuteRows& call, int64_t begin, int64_t end) {
  for_floating(call.dtype, [&](auto* tag) {
    for (int64_t token = begin; token < end; ++token) {
      unpermute_token<std::remove_pointer_t<decltype(tag)>>(call, token);
    }
  });
}

void unpermute_backward_tokens(const UnpermuteRowsBackward& call, int64_t begin, int64_t end) {
  for_floating(call.dtype, [&](auto* tag) {
    for (int64_t token = begin; token < end; ++token) {
      unpermute_backward_token<std::remove_pointer_t<decltype(tag)>>(call, token);
    }
  });
}

}  // namespace tapestry::kernels::TAPESTRY_ISA
