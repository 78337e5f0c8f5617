#include "autograd/kernels/moe_permute.h"

#include <type_traits>

#include "autograd/kernels/isa/row_io.h"

namespace tapestry::kernels::TAPESTRY_ISA {

void permute_tokens(const PermuteRows& call, int64_t begin, int64_t end);
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
void permute_token(const PermuteRows& call, int64_t token) {
  const auto* x = static_cast<const T*>(call.x) + token * call.x_stride;
  for (int64_t j = 0; j < call.map.topk; ++j) {
    const int64_t row = call.map.rows[token * call.map.topk + j];
    if (row >= 0) {
      __builtin_memcpy(static_cast<T*>(call.y) + row * call.n, x,
                       static_cast<size_t>(call.n) * sizeof(T));
    }
  }
}

template <class T>
void unpermute_token(const UnpermuteRows& call, int64_t token) {
  using C = compute_t<T>;
  C x_block[kBlock];
  C y_block[kBlock];
  const auto* x = static_cast<const T*>(call.x);
  auto* y = static_cast<T*>(call.y) + token * call.n;
  for (int64_t done = 0; done < call.n; done += kBlock) {
    const int64_t m = block_size(call.n - done);
    C* sum = output_block(y + done, y_block);
    bool first = true;
    for (int64_t row = -1;;) {
      const int64_t choice = next_choice(call.map, token, row);
      if (choice < 0) {
        break;
      }
      row = call.map.rows[token * call.map.topk + choice];
      const C gate = gate_of<C>(call.gates, call.map, token, choice);
      const C* term = read_block(m, x + row * call.x_stride + done, x_block);
      if (first) {
        TAPESTRY_VECTOR_LOOP
        for (int64_t i = 0; i < m; ++i) {
          sum[i] = gate * term[i];
        }
      } else {
        TAPESTRY_VECTOR_LOOP
        for (int64_t i = 0; i < m; ++i) {
          sum[i] += gate * term[i];
        }
      }
      first = false;
    }
    if (first) {
      TAPESTRY_VECTOR_LOOP
      for (int64_t i = 0; i < m; ++i) {
        sum[i] = C(0);
      }
    }
    write_block(m, sum, y + done);
  }
}

/// dx = gate dy.
template <class T>
void scale_row(int64_t n, compute_t<T> gate, const T* dy, T* dx) {
  using C = compute_t<T>;
  C dy_block[kBlock];
  C dx_block[kBlock];
  for (int64_t done = 0; done < n; done += kBlock) {
    const int64_t m = block_size(n - done);
    const C* d = read_block(m, dy + done, dy_block);
    C* out = output_block(dx + done, dx_block);
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < m; ++i) {
      out[i] = gate * d[i];
    }
    write_block(m, out, dx + done);
  }
}

template <class T>
compute_t<T> dot_row(int64_t n, const T* dy, const T* x) {
  using C = compute_t<T>;
  C dy_block[kBlock];
  C x_block[kBlock];
  C total = 0;
  for (int64_t done = 0; done < n; done += kBlock) {
    const int64_t m = block_size(n - done);
    const C* d = read_block(m, dy + done, dy_block);
    const C* v = read_block(m, x + done, x_block);
    C sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < m; ++i) {
      sum += d[i] * v[i];
    }
    total += sum;
  }
  return total;
}

template <class T>
void unpermute_backward_token(const UnpermuteRowsBackward& call, int64_t token) {
  using C = compute_t<T>;
  const auto* dy = static_cast<const T*>(call.dy) + token * call.dy_stride;
  for (int64_t j = 0; j < call.map.topk; ++j) {
    const int64_t choice = token * call.map.topk + j;
    const int64_t row = call.map.rows[choice];
    if (row >= 0 && call.dx != nullptr) {
      scale_row(call.n, gate_of<C>(call.gates, call.map, token, j), dy,
                static_cast<T*>(call.dx) + row * call.n);
    }
    if (call.dgates != nullptr) {
      static_cast<C*>(call.dgates)[choice] =
          row < 0 ? C(0) : dot_row(call.n, dy, static_cast<const T*>(call.x) + row * call.x_stride);
    }
  }
}

}  // namespace

void permute_tokens(const PermuteRows& call, int64_t begin, int64_t end) {
  for_floating(call.dtype, [&](auto* tag) {
    for (int64_t token = begin; token < end; ++token) {
      permute_token<std::remove_pointer_t<decltype(tag)>>(call, token);
    }
  });
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
