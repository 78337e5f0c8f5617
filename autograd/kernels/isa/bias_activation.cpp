#include "autograd/kernels/bias_activation.h"

#include <type_traits>

#include "autograd/kernels/isa/row_io.h"
#include "autograd/kernels/isa/vector_math.h"
#include "autograd/kernels/isa/wide_math.h"
#include "autograd/kernels/machine/exact.h"

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

#if defined(__AVX512F__)

/// Whether rows of T have loops of their own here. For gelu they would bring nothing.
template <class F, class T>
inline constexpr bool kHasWide = kIsWide<T> && !kSame<F, Gelu>;

/// f(z) and f'(z) of 16 elements.
template <class F, class Accuracy>
struct WideFunction;

template <class Accuracy>
struct WideFunction<Silu, Accuracy> {
  TAPESTRY_INLINE static FloatVector f(FloatVector z) { return z * sigmoids<Accuracy>(z).of_x; }
  TAPESTRY_INLINE static FloatVector derivative(FloatVector z) {
    const Sigmoids s = sigmoids<Accuracy>(z);
    const FloatVector c = smaller(fill(87), larger(fill(-87), z));
    return s.of_x * multiply_add(c, s.of_minus_x, fill(1));
  }
};

template <class Accuracy>
struct WideFunction<GeluTanh, Accuracy> {
  TAPESTRY_INLINE static FloatVector f(FloatVector z) {
    const FloatVector cubic = multiply_add(z * z, fill(0.044715F), fill(1));
    const FloatVector u2 = kFactor * z * cubic;
    return z * sigmoids<Accuracy>(u2).of_x;
  }
  TAPESTRY_INLINE static FloatVector derivative(FloatVector z) {
    const FloatVector c = smaller(fill(9.9F), larger(fill(-9.9F), z));
    const FloatVector c2 = c * c;
    const Sigmoids s = sigmoids<Accuracy>(kFactor * c * multiply_add(c2, fill(0.044715F), fill(1)));
    const FloatVector slope = kFactor * multiply_add(c2, fill(3 * 0.044715F), fill(1));
    return s.of_x * multiply_add(c * slope, s.of_minus_x, fill(1));
  }

 private:
  static constexpr float kFactor = kTwiceSqrt2OverPi<float>;
};

template <class F, class T>
void wide_forward_row(int64_t n, const T* x, const float* bias, T* y) {
  using Function = WideFunction<F, typename AccuracyFor<T>::type>;
  for_wide_steps<T>(n, [&](int64_t i, auto step) {
    const WidePair in = step.read(x + i);
    const WidePair add = step.read(bias + i);
    step.write({Function::f(in.a + add.a), Function::f(in.b + add.b)}, y + i);
  });
}

template <class F, class T>
void wide_backward_row(int64_t n, const T* dy, const T* x, const float* bias, T* dx, float* dbias) {
  using Function = WideFunction<F, typename AccuracyFor<T>::type>;
  for_wide_steps<T>(n, [&](int64_t i, auto step) {
    const WidePair in = step.read(x + i);
    const WidePair add = step.read(bias + i);
    const WidePair g = step.read(dy + i);
    const WidePair out = {g.a * Function::derivative(in.a + add.a),
                          g.b * Function::derivative(in.b + add.b)};
    if (dbias != nullptr) {
      const WidePair sums = step.read(dbias + i);
      step.write({plus(sums.a, out.a), plus(sums.b, out.b)}, dbias + i);
    }
    if (dx != nullptr) {
      step.write(out, dx + i);
    }
  });
}

#endif

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
#if defined(__AVX512F__)
      if constexpr (kHasWide<decltype(function), T>) {
        if (!in_exact()) {
          for (int64_t row = begin; row < end; ++row) {
            wide_forward_row<decltype(function)>(n, static_cast<const T*>(call.x) + row * n,
                                                 static_cast<const float*>(call.bias),
                                                 static_cast<T*>(call.y) + row * n);
          }
          return;
        }
      }
#endif
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
#if defined(__AVX512F__)
      if constexpr (kHasWide<decltype(function), T>) {
        if (!in_exact()) {
          for (int64_t row = begin; row < end; ++row) {
            wide_backward_row<decltype(function)>(
                n, static_cast<const T*>(call.dy) + row * n,
                static_cast<const T*>(call.x) + row * n, static_cast<const float*>(call.bias),
                call.dx != nullptr ? static_cast<T*>(call.dx) + row * n : nullptr,
                static_cast<float*>(dbias));
          }
          return;
        }
      }
#endif
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
