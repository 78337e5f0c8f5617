#include "autograd/kernels/swiglu.h"

#include <type_traits>

#include "autograd/kernels/isa/row_io.h"
#include "autograd/kernels/isa/wide_math.h"
#include "autograd/kernels/machine/exact.h"

namespace tapestry::kernels::TAPESTRY_ISA {

void swiglu_rows(const SwigluForward& call, int64_t begin, int64_t end);
void swiglu_backward_rows(const SwigluBackward& call, int64_t begin, int64_t end);

namespace {

template <class T>
void forward_row(int64_t n, const T* gate, const T* up, T* y) {
  using C = compute_t<T>;
  C gate_block[kBlock];
  C up_block[kBlock];
  C y_block[kBlock];
  for (int64_t done = 0; done < n; done += kBlock) {
    const int64_t m = block_size(n - done);
    const C* a = read_block(m, gate + done, gate_block);
    const C* b = read_block(m, up + done, up_block);
    C* out = output_block(y + done, y_block);
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < m; ++i) {
      out[i] = a[i] / (C(1) + exp(-a[i])) * b[i];
    }
    write_block(m, out, y + done);
  }
}

template <class T>
void backward_row(int64_t n, const T* gate, const T* up, const T* dy, T* dgate, T* dup) {
  using C = compute_t<T>;
  constexpr C kLimit = sizeof(C) == 8 ? C(700) : C(87);  // beyond it e^-x overflows
  C gate_block[kBlock];
  C up_block[kBlock];
  C dy_block[kBlock];
  C dgate_block[kBlock];
  C dup_block[kBlock];
  for (int64_t done = 0; done < n; done += kBlock) {
    const int64_t m = block_size(n - done);
    const C* a = read_block(m, gate + done, gate_block);
    const C* b = read_block(m, up + done, up_block);
    const C* g = read_block(m, dy + done, dy_block);
    C* out_a = output_block(dgate + done, dgate_block);
    C* out_b = output_block(dup + done, dup_block);
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < m; ++i) {
      const C x = a[i];
      const C c = x < -kLimit ? -kLimit : x;
      const C e = exp(-c);
      const C s = C(1) / (C(1) + e);
      const C slope = s * (C(1) + c * (e * s));  // e s = 1 - s without cancellation
      const C u = b[i];
      out_a[i] = g[i] * u * slope;
      out_b[i] = g[i] * (x * s);
    }
    write_block(m, out_a, dgate + done);
    write_block(m, out_b, dup + done);
  }
}

#if defined(__AVX512F__)

template <class T>
void wide_forward_row(int64_t n, const T* gate, const T* up, T* y) {
  using Accuracy = typename AccuracyFor<T>::type;
  const auto f = [](FloatVector x, FloatVector u) { return x * sigmoids<Accuracy>(x).of_x * u; };
  for_wide_steps<T>(n, [&](int64_t i, auto step) {
    const WidePair x = step.read(gate + i);
    const WidePair u = step.read(up + i);
    step.write({f(x.a, u.a), f(x.b, u.b)}, y + i);
  });
}

template <class T>
void wide_backward_row(int64_t n, const T* gate, const T* up, const T* dy, T* dgate, T* dup) {
  using Accuracy = typename AccuracyFor<T>::type;
  struct Gradients {
    FloatVector gate;
    FloatVector up;
  };
  const auto f = [](FloatVector x, FloatVector u, FloatVector g) -> Gradients {
    const Sigmoids s = sigmoids<Accuracy>(x);
    const FloatVector c = larger(fill(-87), x);
    const FloatVector slope = s.of_x * multiply_add(c, s.of_minus_x, fill(1));
    return {g * u * slope, g * (x * s.of_x)};
  };
  for_wide_steps<T>(n, [&](int64_t i, auto step) {
    const WidePair x = step.read(gate + i);
    const WidePair u = step.read(up + i);
    const WidePair g = step.read(dy + i);
    const Gradients a = f(x.a, u.a, g.a);
    const Gradients b = f(x.b, u.b, g.b);
    step.write({a.gate, b.gate}, dgate + i);
    step.write({a.up, b.up}, dup + i);
  });
}

#endif

}  // namespace

void swiglu_rows(const SwigluForward& call, int64_t begin, int64_t end) {
  for_floating(call.dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    auto* forward = &forward_row<T>;
#if defined(__AVX512F__)
    if constexpr (kIsWide<T>) {
      forward = in_exact() ? forward : &wide_forward_row<T>;
    }
#endif
    for (int64_t row = begin; row < end; ++row) {
      forward(call.n, static_cast<const T*>(call.gate) + row * call.gate_stride,
              static_cast<const T*>(call.up) + row * call.up_stride,
              static_cast<T*>(call.y) + row * call.n);
    }
  });
}

void swiglu_backward_rows(const SwigluBackward& call, int64_t begin, int64_t end) {
  for_floating(call.dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    auto* backward = &backward_row<T>;
#if defined(__AVX512F__)
    if constexpr (kIsWide<T>) {
      backward = in_exact() ? backward : &wide_backward_row<T>;
    }
#endif
    for (int64_t row = begin; row < end; ++row) {
      backward(call.n, static_cast<const T*>(call.gate) + row * call.gate_stride,
               static_cast<const T*>(call.up) + row * call.up_stride,
               static_cast<const T*>(call.dy) + row * call.n,
               static_cast<T*>(call.dgate) + row * call.dgate_stride,
               static_cast<T*>(call.dup) + row * call.dup_stride);
    }
  });
}

}  // namespace tapestry::kernels::TAPESTRY_ISA
