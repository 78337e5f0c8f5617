#include "autograd/kernels/bias_activation.h"

#include <type_traits>

#include "autograd/kernels/isa/row_io.h"
#include "autograd/kernels/isa/vector_math.h"

// The bias comes in the type computed in, C below, and sums are returned in it.
namespace tapestry::kernels::TAPESTRY_ISA {

void bias_activation_rows(const BiasActivationForward& call, int64_t begin, int64_t end);
void bias_activation_backward_rows(const BiasActivationBackward& call,
                                   int64_t begin,
                                   int64_t end,
                                   void* dbias);

namespace {

#define TAPESTRY_ACTIVATION(Name, function)    \
  struct Name {                                \
    template <class C>                         \
    TAPESTRY_INLINE static C f(C z) {          \
      return function(z);                      \
    }                                          \
    template <class C>                         \
    TAPESTRY_INLINE static C derivative(C z) { \
      return function##_derivative(z);         \
    }                                          \
  };

struct RoughGelu {
  TAPESTRY_INLINE static float f(float z) { return rough_gelu(z); }
  TAPESTRY_INLINE static float derivative(float z) { return rough_gelu_derivative(z); }
};
struct Gelu {
  using ForBFloat16 = RoughGelu;
  template <class C>
  TAPESTRY_INLINE static C f(C z) {
    return gelu(z);
  }
  template <class C>
  TAPESTRY_INLINE static C derivative(C z) {
    return gelu_derivative(z);
  }
};
TAPESTRY_ACTIVATION(GeluTanh, gelu_tanh)
TAPESTRY_ACTIVATION(Silu, silu)

template <class F, class T>
void forward_row(int64_t n, const T* x, const compute_t<T>* bias, T* y) {
  using C = compute_t<T>;
  C x_block[kBlock];
  C y_block[kBlock];
  for (int64_t done = 0; done < n; done += kBlock) {
    const int64_t m = block_size(n - done);
    const C* in = read_block(m, x + done, x_block);
    C* out = output_block(y + done, y_block);
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < m; ++i) {
      out[i] = F::f(in[i] + bias[done + i]);
    }
    write_block(m, out, y + done);
  }
}

template <class F, class T>
void backward_row(
    int64_t n, const T* dy, const T* x, const compute_t<T>* bias, T* dx, compute_t<T>* dbias) {
  using C = compute_t<T>;
  C x_block[kBlock];
  C dy_block[kBlock];
  C dx_block[kBlock];
  for (int64_t done = 0; done < n; done += kBlock) {
    const int64_t m = block_size(n - done);
    const C* in = read_block(m, x + done, x_block);
    const C* g = read_block(m, dy + done, dy_block);
    C* out = dx != nullptr ? output_block(dx + done, dx_block) : dx_block;
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < m; ++i) {
      out[i] = g[i] * F::derivative(in[i] + bias[done + i]);
    }
    if (dbias != nullptr) {
      TAPESTRY_VECTOR_LOOP
      for (int64_t i = 0; i < m; ++i) {
        dbias[done + i] += out[i];
      }
    }
    if (dx != nullptr) {
      write_block(m, out, dx + done);
    }
  }
}

/// Calls body with an object of the function's type.
template <class Body>
void with_activation(Activation f, const Body& body) {
  switch (f) {
    case Activation::kGelu:
      return body(Gelu{});
    case Activation::kGeluTanh:
      return body(GeluTanh{});
    case Activation::kSilu:
      return body(Silu{});
  }
}

}  // namespace

void bias_activation_rows(const BiasActivationForward& call, int64_t begin, int64_t end) {
  const int64_t n = call.n;
  with_activation(call.f, [&](auto function) {
    for_floating(call.dtype, [&](auto* tag) {
      using T = std::remove_pointer_t<decltype(tag)>;
      for (int64_t row = begin; row < end; ++row) {
        forward_row<function_for<decltype(function), T>>(
            n, static_cast<const T*>(call.x) + row * n, static_cast<const compute_t<T>*>(call.bias),
            static_cast<T*>(call.y) + row * n);
      }
    });
  });
}

void bias_activation_backward_rows(const BiasActivationBackward& call,
                                   int64_t begin,
                                   int64_t end,
                                   void* dbias) {
  const int64_t n = call.n;
  with_activation(call.f, [&](auto function) {
    for_floating(call.dtype, [&](auto* tag) {
      using T = std::remove_pointer_t<decltype(tag)>;
      for (int64_t row = begin; row < end; ++row) {
        backward_row<function_for<decltype(function), T>>(
            n, static_cast<const T*>(call.dy) + row * n, static_cast<const T*>(call.x) + row * n,
            static_cast<const compute_t<T>*>(call.bias),
            call.dx != nullptr ? static_cast<T*>(call.dx) + row * n : nullptr,
            static_cast<compute_t<T>*>(dbias));
      }
    });
  });
}

}  // namespace tapestry::kernels::TAPESTRY_ISA
