#include "autograd/kernels/optimizer.h"

#include <type_traits>

#include "autograd/kernels/isa/optimizer_constants.h"
#include "autograd/kernels/isa/row_io.h"

namespace tapestry::kernels::TAPESTRY_ISA {

void adamw_range(DType param_dtype,
                 DType grad_dtype,
                 int64_t begin,
                 int64_t end,
                 void* p,
                 const void* g,
                 void* exp_avg,
                 void* exp_avg_sq,
                 const AdamConstants& constants);
void sgd_range(DType param_dtype,
               DType grad_dtype,
               int64_t begin,
               int64_t end,
               void* p,
               const void* g,
               void* buffer,
               const SgdConstants& constants);

namespace {

template <class C>
[[gnu::always_inline]] inline void adamw_block(
    int64_t n, C* p, const C* grad, C* exp_avg, C* exp_avg_sq, const AdamConstants& k) {
  const auto grad_scale = static_cast<C>(k.grad_scale);
  const auto coupled_decay = static_cast<C>(k.coupled_decay);
  const auto decoupled_decay = static_cast<C>(k.decoupled_decay);
  const auto beta1 = static_cast<C>(k.beta1);
  const auto beta2 = static_cast<C>(k.beta2);
  const auto rest1 = static_cast<C>(k.rest1);
  const auto rest2 = static_cast<C>(k.rest2);
  const auto step_size = static_cast<C>(k.step_size);
  const auto root_scale = static_cast<C>(k.root_scale);
  const auto eps = static_cast<C>(k.eps);
  TAPESTRY_VECTOR_LOOP
  for (int64_t i = 0; i < n; ++i) {
    const C g = grad[i] * grad_scale + coupled_decay * p[i];
    const C m = beta1 * exp_avg[i] + rest1 * g;
    const C v = beta2 * exp_avg_sq[i] + rest2 * (g * g);
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    C root;
    if constexpr (sizeof(C) == 4) {
      root = __builtin_sqrtf(v);
    } else {
      root = __builtin_sqrt(v);
    }
    const C update = step_size * m / (root * root_scale + eps);
    p[i] -= decoupled_decay * p[i] + update;
  }
}

template <class C>
[[gnu::always_inline]] inline void sgd_block(
    int64_t n, C* p, const C* grad, C* buffer, const SgdConstants& k) {
  const auto grad_scale = static_cast<C>(k.grad_scale);
  const auto decay = static_cast<C>(k.decay);
  const auto keep = static_cast<C>(k.keep);
  const auto take = static_cast<C>(k.take);
  const auto from_buffer = static_cast<C>(k.from_buffer);
  const auto from_grad = static_cast<C>(k.from_grad);
  const auto lr = static_cast<C>(k.lr);
  if (buffer == nullptr) {
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < n; ++i) {
      p[i] -= lr * (grad[i] * grad_scale + decay * p[i]);
    }
  } else if (k.first_step) {  // the buffer may hold anything
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < n; ++i) {
      const C g = grad[i] * grad_scale + decay * p[i];
      buffer[i] = g;
      p[i] -= lr * (from_grad * g + from_buffer * g);
    }
  } else {
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < n; ++i) {
      const C g = grad[i] * grad_scale + decay * p[i];
      const C b = keep * buffer[i] + take * g;
      buffer[i] = b;
      p[i] -= lr * (from_grad * g + from_buffer * b);
    }
  }
}

/// f(first element, count, gradient in the parameter's type) for the blocks of a range.
template <class P, class F>
[[gnu::always_inline]] inline void for_blocks(
    DType grad_dtype, int64_t begin, int64_t end, const void* g, const F& f) {
  for_floating(grad_dtype, [&](auto* tag) {
    using G = std::remove_pointer_t<decltype(tag)>;
    P block[kBlock];
    for (int64_t done = begin; done < end; done += kBlock) {
      const int64_t m = block_size(end - done);
      f(done, m, read_block(m, static_cast<const G*>(g) + done, block));
    }
  });
}

template <class P>
void adamw_typed(DType grad_dtype,
                 int64_t begin,
                 int64_t end,
                 void* p,
                 const void* g,
                 void* exp_avg,
                 void* exp_avg_sq,
                 const AdamConstants& k) {
  for_blocks<P>(grad_dtype, begin, end, g, [&](int64_t at, int64_t m, const P* grad) {
    adamw_block(m, static_cast<P*>(p) + at, grad, static_cast<P*>(exp_avg) + at,
                static_cast<P*>(exp_avg_sq) + at, k);
  });
}

template <class P>
void sgd_typed(DType grad_dtype,
               int64_t begin,
               int64_t end,
               void* p,
               const void* g,
               void* buffer,
               const SgdConstants& k) {
  for_blocks<P>(grad_dtype, begin, end, g, [&](int64_t at, int64_t m, const P* grad) {
    sgd_block(m, static_cast<P*>(p) + at, grad,
              buffer != nullptr ? static_cast<P*>(buffer) + at : nullptr, k);
  });
}

}  // namespace

void adamw_range(DType param_dtype,
                 DType grad_dtype,
                 int64_t begin,
                 int64_t end,
                 void* p,
                 const void* g,
                 void* exp_avg,
                 void* exp_avg_sq,
                 const AdamConstants& constants) {
  const auto run = param_dtype == kFloat64 ? &adamw_typed<double> : &adamw_typed<float>;
  run(grad_dtype, begin, end, p, g, exp_avg, exp_avg_sq, constants);
}

void sgd_range(DType param_dtype,
               DType grad_dtype,
               int64_t begin,
               int64_t end,
               void* p,
               const void* g,
               void* buffer,
               const SgdConstants& constants) {
  const auto run = param_dtype == kFloat64 ? &sgd_typed<double> : &sgd_typed<float>;
  run(grad_dtype, begin, end, p, g, buffer, constants);
}

}  // namespace tapestry::kernels::TAPESTRY_ISA
