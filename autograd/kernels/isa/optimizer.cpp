#include "autograd/kernels/optimizer.h"

#include "autograd/kernels/isa/adamw_narrow.h"
#include "autograd/kernels/isa/optimizer_rows.h"
#include "autograd/kernels/isa/random_words.h"
#include "autograd/kernels/isa/split_float32.h"
#include "autograd/kernels/optimizer_constants.h"

namespace tapestry::kernels::TAPESTRY_ISA {

namespace {

template <class C>
[[gnu::always_inline]] inline void adamw_block(
    int64_t n, C* p, const C* grad, C* exp_avg, C* exp_avg_sq, const AdamConstants& k) {
  const auto grad_scale = static_cast<C>(k.grad_scale);
  const auto grad_limit = static_cast<C>(k.grad_limit);
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
    const C g = limited(grad[i] * grad_scale, grad_limit) + coupled_decay * p[i];
    const C m = beta1 * exp_avg[i] + rest1 * g;
    const C v = beta2 * exp_avg_sq[i] + rest2 * (g * g);
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    const C update = step_size * m / (root_of(v) * root_scale + eps);
    p[i] -= decoupled_decay * p[i] + update;
  }
}

template <class C>
[[gnu::always_inline]] inline void sgd_block(
    int64_t n, C* p, const C* grad, C* buffer, bool first_step, const SgdConstants& k) {
  const auto grad_scale = static_cast<C>(k.grad_scale);
  const auto grad_limit = static_cast<C>(k.grad_limit);
  const auto decay = static_cast<C>(k.decay);
  const auto keep = static_cast<C>(k.keep);
  const auto take = static_cast<C>(k.take);
  const auto from_buffer = static_cast<C>(k.from_buffer);
  const auto from_grad = static_cast<C>(k.from_grad);
  const auto lr = static_cast<C>(k.lr);
  if (buffer == nullptr) {
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < n; ++i) {
      p[i] -= lr * (limited(grad[i] * grad_scale, grad_limit) + decay * p[i]);
    }
  } else if (first_step) {
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < n; ++i) {
      const C g = limited(grad[i] * grad_scale, grad_limit) + decay * p[i];
      buffer[i] = g;
      p[i] -= lr * (from_grad * g + from_buffer * g);
    }
  } else {
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < n; ++i) {
      const C g = limited(grad[i] * grad_scale, grad_limit) + decay * p[i];
      const C b = keep * buffer[i] + take * g;
      buffer[i] = b;
      p[i] -= lr * (from_grad * g + from_buffer * b);
    }
  }
}

template <class C>
[[gnu::always_inline]] inline void lion_block(
    int64_t n, C* p, const C* grad, C* exp_avg, const LionConstants& k) {
  const auto grad_scale = static_cast<C>(k.grad_scale);
  const auto grad_limit = static_cast<C>(k.grad_limit);
  const auto decay = static_cast<C>(k.decay);
  const auto beta1 = static_cast<C>(k.beta1);
  const auto beta2 = static_cast<C>(k.beta2);
  const auto rest1 = static_cast<C>(k.rest1);
  const auto rest2 = static_cast<C>(k.rest2);
  const auto lr = static_cast<C>(k.lr);
  TAPESTRY_VECTOR_LOOP
  for (int64_t i = 0; i < n; ++i) {
    const C g = limited(grad[i] * grad_scale, grad_limit);
    const C c = beta1 * exp_avg[i] + rest1 * g;
    exp_avg[i] = beta2 * exp_avg[i] + rest2 * g;
    const C up = c > 0 ? lr : 0;
    p[i] -= decay * p[i] + (c < 0 ? -lr : up);
  }
}

void adamw_float64(const AdamTensor& t, const AdamConstants& k, int64_t begin, int64_t end) {
  double g_block[kBlock];
  for (int64_t at = begin; at < end; at += kBlock) {
    const int64_t n = block_size(end - at);
    double* p = static_cast<double*>(t.p) + at;
    adamw_block(n, p, read_any(t.grad_dtype, n, t.g, at, g_block),
                static_cast<double*>(t.exp_avg) + at, static_cast<double*>(t.exp_avg_sq) + at, k);
  }
}

#if defined(__AVX512F__) && defined(__AVX512BW__)
// As far as there are whole blocks; returns where the rest begins.
int64_t adamw_narrow(const AdamTensor& t, const AdamConstants& k, int64_t begin, int64_t end) {
  if (!NarrowAdamW::takes(t)) {
    return begin;
  }
  const NarrowAdamW narrow(k);
  RandomWords random(k.seed, t.rounding.data(), static_cast<int64_t>(t.rounding.size()));
  for (; end - begin >= kBlock; begin += kBlock) {
    narrow.update(t, begin, kBlock, random.draw(begin, kBlock));
  }
  return begin;
}
#else
int64_t adamw_narrow(const AdamTensor& /*t*/,
                     const AdamConstants& /*k*/,
                     int64_t begin,
                     int64_t /*end*/) {
  return begin;
}
#endif

void adamw_float32(const AdamTensor& t, const AdamConstants& k, int64_t begin, int64_t end) {
  float p_block[kBlock];
  float g_block[kBlock];
  float m_block[kBlock];
  float v_block[kBlock];
  RandomWords random(k.seed, t.rounding.data(), static_cast<int64_t>(t.rounding.size()));
  const bool split = t.low_bits != nullptr;
  const bool narrow_m = t.exp_avg_dtype == kBFloat16;
  const bool narrow_v = t.exp_avg_sq_dtype == kBFloat16;
  for (int64_t at = adamw_narrow(t, k, begin, end); at < end; at += kBlock) {
    const int64_t n = block_size(end - at);
    const float* g = read_any(t.grad_dtype, n, t.g, at, g_block);
    float* m = open_state(t.exp_avg_dtype, n, t.exp_avg, at, m_block);
    float* v = open_state(t.exp_avg_sq_dtype, n, t.exp_avg_sq, at, v_block);
    float* p = split ? p_block : static_cast<float*>(t.p) + at;
    if (split) {
      join_block(n, static_cast<const BFloat16*>(t.p) + at, t.low_bits + at, v, p);
      clear_signs(n, v);
    }
    adamw_block(n, p, g, m, v, k);
    if (split) {
      split_block(n, p, static_cast<BFloat16*>(t.p) + at, t.low_bits + at, v);
    }
    const uint32_t* words = narrow_m || narrow_v ? random.draw(at, n) : nullptr;
    if (narrow_m) {
      store_stochastic(n, m, words, 0, static_cast<BFloat16*>(t.exp_avg) + at);
    }
    if (narrow_v) {
      store_stochastic(n, v, words, 16, static_cast<BFloat16*>(t.exp_avg_sq) + at);
    }
    store_copy(t.copy_dtype, n, p, t.copy, at);
  }
}

template <class C>
void sgd_typed(const SgdTensor& t, const SgdConstants& k, int64_t begin, int64_t end) {
  C block[kBlock];
  for (int64_t at = begin; at < end; at += kBlock) {
    const int64_t n = block_size(end - at);
    C* p = static_cast<C*>(t.p) + at;
    C* buffer = t.momentum_buffer != nullptr ? static_cast<C*>(t.momentum_buffer) + at : nullptr;
    sgd_block(n, p, read_any(t.grad_dtype, n, t.g, at, block), buffer, t.first_step, k);
    if constexpr (kSame<C, float>) {
      store_copy(t.copy_dtype, n, p, t.copy, at);
    }
  }
}

template <class C>
void lion_typed(const LionTensor& t, const LionConstants& k, int64_t begin, int64_t end) {
  C g_block[kBlock];
  C m_block[kBlock];
  RandomWords random(k.seed, t.rounding.data(), static_cast<int64_t>(t.rounding.size()));
  for (int64_t at = begin; at < end; at += kBlock) {
    const int64_t n = block_size(end - at);
    C* p = static_cast<C*>(t.p) + at;
    C* m = open_state(t.exp_avg_dtype, n, t.exp_avg, at, m_block);
    lion_block(n, p, read_any(t.grad_dtype, n, t.g, at, g_block), m, k);
    if constexpr (kSame<C, float>) {
      if (t.exp_avg_dtype == kBFloat16) {
        store_stochastic(n, m, random.draw(at, n), 0, static_cast<BFloat16*>(t.exp_avg) + at);
      }
      store_copy(t.copy_dtype, n, p, t.copy, at);
    }
  }
}

template <class C>
void momentum_typed(const MuonMomentum& t, const MuonSettings& k, int64_t begin, int64_t end) {
  const auto grad_scale = static_cast<C>(k.grad_scale);
  const auto grad_limit = static_cast<C>(k.grad_limit);
  const auto momentum = static_cast<C>(k.momentum);
  const auto from_grad = static_cast<C>(k.nesterov ? 1.0 : 0.0);
  const auto from_buffer = static_cast<C>(k.nesterov ? k.momentum : 1.0);
  C block[kBlock];
  for (int64_t at = begin; at < end; at += kBlock) {
    const int64_t n = block_size(end - at);
    const C* grad = read_any(t.grad_dtype, n, t.g, at, block);
    C* buffer = static_cast<C*>(t.momentum_buffer) + at;
    C* direction = static_cast<C*>(t.direction) + at;
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < n; ++i) {
      const C g = limited(grad[i] * grad_scale, grad_limit);
      buffer[i] = momentum * buffer[i] + g;
      direction[i] = from_grad * g + from_buffer * buffer[i];
    }
  }
}

template <class C>
void apply_typed(const MuonApply& t, int64_t begin, int64_t end) {
  const auto step = static_cast<C>(t.step);
  const auto decay = static_cast<C>(t.decay);
  for (int64_t at = begin; at < end; at += kBlock) {
    const int64_t n = block_size(end - at);
    C* p = static_cast<C*>(t.p) + at;
    const C* direction = static_cast<const C*>(t.direction) + at;
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < n; ++i) {
      p[i] -= decay * p[i] + step * direction[i];
    }
    if constexpr (kSame<C, float>) {
      store_copy(t.copy_dtype, n, p, t.copy, at);
    }
  }
}

}  // namespace

void adamw_range(const AdamTensor& t, const AdamConstants& k, int64_t begin, int64_t end) {
  (t.param_dtype == kFloat64 ? &adamw_float64 : &adamw_float32)(t, k, begin, end);
}

void sgd_range(const SgdTensor& t, const SgdConstants& k, int64_t begin, int64_t end) {
  (t.param_dtype == kFloat64 ? &sgd_typed<double> : &sgd_typed<float>)(t, k, begin, end);
}

void lion_range(const LionTensor& t, const LionConstants& k, int64_t begin, int64_t end) {
  (t.param_dtype == kFloat64 ? &lion_typed<double> : &lion_typed<float>)(t, k, begin, end);
}

void momentum_range(const MuonMomentum& t, const MuonSettings& k, int64_t begin, int64_t end) {
  (t.dtype == kFloat64 ? &momentum_typed<double> : &momentum_typed<float>)(t, k, begin, end);
}

void apply_range(const MuonApply& t, int64_t begin, int64_t end) {
  (t.dtype == kFloat64 ? &apply_typed<double> : &apply_typed<float>)(t, begin, end);
}

void split_range(int64_t begin,
                 int64_t end,
                 const float* x,
                 BFloat16* high,
                 uint16_t* low_bits,
                 DType exp_avg_sq_dtype,
                 void* exp_avg_sq) {
  float block[kBlock];
  for (int64_t at = begin; at < end; at += kBlock) {
    const int64_t n = block_size(end - at);
    float* v = open_state(exp_avg_sq_dtype, n, exp_avg_sq, at, block);
    split_block(n, x + at, high + at, low_bits + at, v);
    if (exp_avg_sq_dtype == kBFloat16) {
      store_row(n, v, static_cast<BFloat16*>(exp_avg_sq) + at);
    }
  }
}

void join_range(int64_t begin,
                int64_t end,
                const BFloat16* high,
                const uint16_t* low_bits,
                DType exp_avg_sq_dtype,
                const void* exp_avg_sq,
                float* x) {
  float block[kBlock];
  for (int64_t at = begin; at < end; at += kBlock) {
    const int64_t n = block_size(end - at);
    join_block(n, high + at, low_bits + at, read_any(exp_avg_sq_dtype, n, exp_avg_sq, at, block),
               x + at);
  }
}

void add_stochastic_range(DType dtype,
                          int64_t begin,
                          int64_t end,
                          const void* x,
                          uint64_t seed,
                          const RandomRows* rounding,
                          int64_t rounding_count,
                          BFloat16* sum) {
  float x_block[kBlock];
  float block[kBlock];
  RandomWords random(seed, rounding, rounding_count);
  for (int64_t at = begin; at < end; at += kBlock) {
    const int64_t n = block_size(end - at);
    const float* term = read_any(dtype, n, x, at, x_block);
    load_row(n, sum + at, block);
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < n; ++i) {
      block[i] += term[i];
    }
    store_stochastic(n, block, random.draw(at, n), 0, sum + at);
  }
}

}  // namespace tapestry::kernels::TAPESTRY_ISA
