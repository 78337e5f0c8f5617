// AdamW where everything is stored in 16 bits, by hand for AVX-512.
//
// Only for sources in kernels/isa/: everything here has internal linkage, per level.
#pragma once

#include "autograd/kernels/isa/split_float32.h"
#include "autograd/kernels/optimizer_constants.h"

#if defined(__AVX512F__) && defined(__AVX512BW__)
#include <immintrin.h>

namespace tapestry::kernels::TAPESTRY_ISA {
namespace {

/// For parameters that are bfloat16 halves with low_bits, both moments in bfloat16, and a gradient
/// in bfloat16 or float32. What the blocks of adamw_float32 pass from loop to loop through the
/// cache stays in registers here; the operations and so the bits are the same.
class NarrowAdamW {
 public:
  static constexpr int64_t kLanes = 16;

  static bool takes(const AdamTensor& t) {
    return t.low_bits != nullptr && t.exp_avg_dtype == kBFloat16 &&
           t.exp_avg_sq_dtype == kBFloat16 && t.copy == nullptr &&
           (t.grad_dtype == kBFloat16 || t.grad_dtype == kFloat32);
  }

  explicit NarrowAdamW(const AdamConstants& k)
      : grad_scale_(all(k.grad_scale)),
        grad_limit_(all(k.grad_limit)),
        least_grad_(all(-k.grad_limit)),
        coupled_decay_(all(k.coupled_decay)),
        decoupled_decay_(all(k.decoupled_decay)),
        beta1_(all(k.beta1)),
        rest1_(all(k.rest1)),
        beta2_(all(k.beta2)),
        rest2_(all(k.rest2)),
        step_size_(all(k.step_size)),
        root_scale_(all(k.root_scale)),
        eps_(all(k.eps)) {}

  /// Elements [at, at + n), n a multiple of kLanes; words[0] is the first one's.
  void update(const AdamTensor& t, int64_t at, int64_t n, const uint32_t* words) const {
    if (t.grad_dtype == kBFloat16) {
      run(t, static_cast<const BFloat16*>(t.g), at, n, words);
    } else {
      run(t, static_cast<const float*>(t.g), at, n, words);
    }
  }

 private:
  static __m512 all(double x) { return _mm512_set1_ps(static_cast<float>(x)); }
  static __m512i all_bits(uint32_t x) { return _mm512_set1_epi32(static_cast<int>(x)); }

  // GCC 12 warns of the undefined vector in the unmasked forms.
  static constexpr __mmask16 kAll = 0xffff;
  template <int kBits>
  static __m512i shifted_right(__m512i x) {
    return _mm512_maskz_srli_epi32(kAll, x, kBits);
  }
  static __m512i load_bits(const void* x) {
    return _mm512_maskz_cvtepu16_epi32(kAll, _mm256_loadu_si256(static_cast<const __m256i*>(x)));
  }
  static __m512i load_high(const void* x) {
    return _mm512_maskz_slli_epi32(kAll, load_bits(x), 16);
  }
  static void store_bits(__m512i bits, void* y) {
    _mm256_storeu_si256(static_cast<__m256i*>(y), _mm512_maskz_cvtepi32_epi16(kAll, bits));
  }
  static __m512 load(const BFloat16* x) { return _mm512_castsi512_ps(load_high(x)); }
  static __m512 load(const float* x) { return _mm512_loadu_ps(x); }

  static __mmask16 nan_mask(__m512i u) {
    const __m512 x = _mm512_castsi512_ps(u);
    return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  }

  // join_block: at a tie the sign of the mark says that the half went up.
  static __m512 join(__m512i whole, __m512i rest, __m512i mark) {
    const __m512i counted = _mm512_add_epi32(rest, shifted_right<31>(mark));
    const __mmask16 up = _mm512_cmpgt_epi32_mask(counted, all_bits(kTie));
    const __mmask16 less = _kandn_mask16(nan_mask(whole), up);
    const __m512i truncated = _mm512_mask_sub_epi32(whole, less, whole, all_bits(0x10000U));
    return _mm512_castsi512_ps(_mm512_or_si512(truncated, rest));
  }

  // split_block; returns the marked second moment.
  static __m512i split(__m512i u, __m512i second, BFloat16* high, uint16_t* low) {
    const __mmask16 nan = nan_mask(u);
    const __m512i upper = shifted_right<16>(u);
    const __m512i odd = _mm512_and_si512(upper, all_bits(1));
    const __m512i moved = _mm512_add_epi32(_mm512_add_epi32(u, all_bits(0x7fffU)), odd);
    const __m512i rounded = shifted_right<16>(moved);
    store_bits(_mm512_mask_or_epi32(rounded, nan, upper, all_bits(0x40U)), high);
    store_bits(u, low);
    const __m512i tail = _mm512_and_si512(u, all_bits(0x1ffffU));
    const __mmask16 up =
        _kandn_mask16(nan, _mm512_cmpeq_epi32_mask(tail, all_bits(0x10000U | kTie)));
    const __m512i plain = _mm512_and_si512(second, all_bits(~kSignBit));
    return _mm512_mask_or_epi32(plain, up, plain, all_bits(kSignBit));
  }

  // store_stochastic
  static void store_rounded(__m512i u, __m512i random, BFloat16* y) {
    const __m512i magnitude = _mm512_and_si512(u, all_bits(~kSignBit));
    const __mmask16 moves = _mm512_cmplt_epu32_mask(magnitude, all_bits(0x7f7f0000U));
    const __m512i kept = shifted_right<16>(_mm512_mask_add_epi32(u, moves, u, random));
    store_bits(_mm512_mask_or_epi32(kept, nan_mask(u), kept, all_bits(0x40U)), y);
  }

  template <class G>
  void run(const AdamTensor& t, const G* grad, int64_t at, int64_t n, const uint32_t* words) const {
    auto* high = static_cast<BFloat16*>(t.p) + at;
    uint16_t* low = t.low_bits + at;
    auto* exp_avg = static_cast<BFloat16*>(t.exp_avg) + at;
    auto* exp_avg_sq = static_cast<BFloat16*>(t.exp_avg_sq) + at;
    grad += at;
    for (int64_t i = 0; i < n; i += kLanes) {
      const __m512i marked = load_high(exp_avg_sq + i);
      const __m512 p = join(load_high(high + i), load_bits(low + i), marked);
      const __m512 second = _mm512_castsi512_ps(_mm512_and_si512(marked, all_bits(~kSignBit)));
      // The order of min and max lets NaN pass, as limited() does.
      const __m512 scaled = _mm512_mul_ps(load(grad + i), grad_scale_);
      const __m512 bounded =
          _mm512_maskz_max_ps(kAll, least_grad_, _mm512_maskz_min_ps(kAll, grad_limit_, scaled));
      const __m512 g = _mm512_fmadd_ps(coupled_decay_, p, bounded);
      const __m512 m = _mm512_fmadd_ps(beta1_, load(exp_avg + i), _mm512_mul_ps(rest1_, g));
      const __m512 v = _mm512_fmadd_ps(beta2_, second, _mm512_mul_ps(rest2_, _mm512_mul_ps(g, g)));
      const __m512 divisor = _mm512_fmadd_ps(_mm512_maskz_sqrt_ps(kAll, v), root_scale_, eps_);
      const __m512 change = _mm512_div_ps(_mm512_mul_ps(step_size_, m), divisor);
      const __m512 updated = _mm512_sub_ps(p, _mm512_fmadd_ps(decoupled_decay_, p, change));
      const __m512i new_mark =
          split(_mm512_castps_si512(updated), _mm512_castps_si512(v), high + i, low + i);
      const __m512i random = _mm512_loadu_si512(words + i);
      store_rounded(_mm512_castps_si512(m), _mm512_and_si512(random, all_bits(0xffffU)),
                    exp_avg + i);
      store_rounded(new_mark, shifted_right<16>(random), exp_avg_sq + i);
    }
  }

  __m512 grad_scale_, grad_limit_, least_grad_, coupled_decay_, decoupled_decay_;
  __m512 beta1_, rest1_, beta2_, rest2_, step_size_, root_scale_, eps_;
};

}  // namespace
}  // namespace tapestry::kernels::TAPESTRY_ISA

#endif
