#include "autograd/kernels/attention/rope.h"

#include <type_traits>

#include "autograd/kernels/isa/row_io.h"

namespace tapestry::kernels::TAPESTRY_ISA {

void rope_rows(const RopeCall& call, int64_t begin, int64_t end);

namespace {

template <class C>
[[gnu::always_inline]] inline void turn(
    int64_t m, const C* a, const C* b, const C* cos, const C* sin, C sign, C* ya, C* yb) {
  TAPESTRY_VECTOR_LOOP
  for (int64_t i = 0; i < m; ++i) {
    const C first = a[i];
    const C second = b[i];
    const C s = sign * sin[i];
    // Which of two products is rounded is not left to the compiler.
    ya[i] = multiply_add(first, cos[i], -(second * s));
    yb[i] = multiply_add(second, cos[i], first * s);
  }
}

/// Pairs (2 m, 2 m + 1) are pulled apart into two blocks; others are two blocks as they lie.
template <class T, class C = compute_t<T>>
void turn_row(
    int64_t pairs, bool interleaved, const T* x, const C* cos, const C* sin, C sign, T* y) {
  C block[2 * kBlock];
  C a_block[kBlock];
  C b_block[kBlock];
  for (int64_t done = 0; done < pairs; done += kBlock) {
    const int64_t m = block_size(pairs - done);
    if (interleaved) {
      const C* in = read_block(2 * m, x + 2 * done, block);
      for (int64_t i = 0; i < m; ++i) {
        a_block[i] = in[2 * i];
        b_block[i] = in[2 * i + 1];
      }
      turn(m, a_block, b_block, cos + done, sin + done, sign, a_block, b_block);
      C* out = output_block(y + 2 * done, block);
      for (int64_t i = 0; i < m; ++i) {
        out[2 * i] = a_block[i];
        out[2 * i + 1] = b_block[i];
      }
      write_block(2 * m, out, y + 2 * done);
    } else {
      const C* a = read_block(m, x + done, a_block);
      const C* b = read_block(m, x + pairs + done, b_block);
      C* ya = output_block(y + done, block);
      C* yb = output_block(y + pairs + done, block + kBlock);
      turn(m, a, b, cos + done, sin + done, sign, ya, yb);
      write_block(m, ya, y + done);
      write_block(m, yb, y + pairs + done);
    }
  }
}

}  // namespace

/// Rows are counted over [batch, seq, heads], so that neighbours share their angles.
void rope_rows(const RopeCall& call, int64_t begin, int64_t end) {
  const RopeStrides& xs = call.x_strides;
  const RopeStrides& ys = call.y_strides;
  const int64_t pairs = call.rotary_dim / 2;
  for_floating(call.dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    using C = compute_t<T>;
    for (int64_t row = begin; row < end; ++row) {
      const int64_t head = row % call.heads;
      const int64_t position = row / call.heads % call.seq;
      const int64_t sample = row / call.heads / call.seq;
      const T* x =
          static_cast<const T*>(call.x) + sample * xs.batch + head * xs.head + position * xs.row;
      T* y = static_cast<T*>(call.y) + sample * ys.batch + head * ys.head + position * ys.row;
      const int64_t angles =
          call.rows == nullptr ? position : call.rows[sample * call.rows_batch + position];
      turn_row(pairs, call.interleaved, x, static_cast<const C*>(call.cos) + angles * pairs,
               static_cast<const C*>(call.sin) + angles * pairs, call.inverse ? C(-1) : C(1), y);
      for (int64_t i = call.rotary_dim; i < call.head_dim; ++i) {
        y[i] = x[i];
      }
    }
  });
}

}  // namespace tapestry::kernels::TAPESTRY_ISA
