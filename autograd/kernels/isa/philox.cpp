#include "autograd/kernels/philox.h"

#include <type_traits>

#include "autograd/kernels/isa/row_io.h"
#include "autograd/kernels/philox_blocks.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace tapestry::kernels::TAPESTRY_ISA {

namespace {

#if defined(__AVX512F__)

// Each counter word has a 64-bit lane per block, of which the product reads the lower half: so
// neither halves nor words have to be sorted between rounds. What is in the upper halves is of no
// meaning. Writes the first `count` of 8 kVectors blocks.
template <int kVectors>
[[gnu::always_inline]] inline void philox_lanes(
    uint64_t seed, uint64_t stream, uint64_t first, int64_t count, uint32_t* out) {
  constexpr __mmask8 kLanes = 0xff;  // GCC 12 warns of the undefined vector in unmasked forms
  const auto all = [](uint64_t x) { return _mm512_set1_epi64(static_cast<int64_t>(x)); };
  __m512i c0[kVectors];
  __m512i c1[kVectors];
  __m512i c2[kVectors];
  __m512i c3[kVectors];
  for (int j = 0; j < kVectors; ++j) {
    c0[j] = _mm512_add_epi64(all(first + static_cast<uint64_t>(8 * j)),
                             _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7));
    c1[j] = _mm512_maskz_srli_epi64(kLanes, c0[j], 32);
    c2[j] = all(stream);
    c3[j] = all(stream >> 32U);
  }
  auto k0 = static_cast<uint32_t>(seed);
  auto k1 = static_cast<uint32_t>(seed >> 32U);
  const __m512i factor0 = all(0xD2511F53U);  // as in philox_round
  const __m512i factor1 = all(0xCD9E8D57U);
  constexpr int kXor = 0x96;  // of three operands
  for (int round = 0; round < kPhiloxRounds; ++round) {
    for (int j = 0; j < kVectors; ++j) {
      const __m512i p0 = _mm512_maskz_mul_epu32(kLanes, factor0, c0[j]);
      const __m512i p1 = _mm512_maskz_mul_epu32(kLanes, factor1, c2[j]);
      c0[j] =
          _mm512_ternarylogic_epi64(_mm512_maskz_srli_epi64(kLanes, p1, 32), c1[j], all(k0), kXor);
      c1[j] = p1;
      c2[j] =
          _mm512_ternarylogic_epi64(_mm512_maskz_srli_epi64(kLanes, p0, 32), c3[j], all(k1), kXor);
      c3[j] = p0;
    }
    k0 += kPhiloxKeyStep0;
    k1 += kPhiloxKeyStep1;
  }
  for (int j = 0; j < kVectors; ++j) {
    const __m512i a = _mm512_mask_shuffle_epi32(c0[j], 0xaaaa, c1[j], _MM_PERM_CCAA);
    const __m512i b = _mm512_mask_shuffle_epi32(c2[j], 0xaaaa, c3[j], _MM_PERM_CCAA);
    const __m512i front =
        _mm512_permutex2var_epi64(a, _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11), b);
    const __m512i back =
        _mm512_permutex2var_epi64(a, _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15), b);
    const int64_t left = count - 8 * j;
    if (left >= 8) {
      _mm512_storeu_si512(out + 32 * j, front);
      _mm512_storeu_si512(out + 32 * j + 16, back);
    } else if (left > 0) {
      const auto kept = static_cast<uint32_t>((uint32_t{1} << (2 * left)) - 1U);
      _mm512_mask_storeu_epi64(out + 32 * j, static_cast<__mmask8>(kept), front);
      _mm512_mask_storeu_epi64(out + 32 * j + 16, static_cast<__mmask8>(kept >> 8U), back);
    }
  }
}

#else

// Round by round for a group of blocks: a loop over blocks with the rounds inside does not become
// vector code. Writes the first `count` of them.
template <int64_t kGroup>
[[gnu::always_inline]] inline void philox_group(
    uint64_t seed, uint64_t stream, uint64_t first, int64_t count, uint32_t* out) {
  uint32_t c0[kGroup];
  uint32_t c1[kGroup];
  uint32_t c2[kGroup];
  uint32_t c3[kGroup];
  TAPESTRY_VECTOR_LOOP
  for (int64_t b = 0; b < kGroup; ++b) {
    const uint64_t low = first + static_cast<uint64_t>(b);
    c0[b] = static_cast<uint32_t>(low);
    c1[b] = static_cast<uint32_t>(low >> 32U);
    c2[b] = static_cast<uint32_t>(stream);
    c3[b] = static_cast<uint32_t>(stream >> 32U);
  }
  auto k0 = static_cast<uint32_t>(seed);
  auto k1 = static_cast<uint32_t>(seed >> 32U);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    TAPESTRY_VECTOR_LOOP
    for (int64_t b = 0; b < kGroup; ++b) {
      philox_round(c0[b], c1[b], c2[b], c3[b], k0, k1);
    }
    k0 += kPhiloxKeyStep0;
    k1 += kPhiloxKeyStep1;
  }
  TAPESTRY_VECTOR_LOOP
  for (int64_t b = 0; b < count; ++b) {
    out[4 * b] = c0[b];
    out[4 * b + 1] = c1[b];
    out[4 * b + 2] = c2[b];
    out[4 * b + 3] = c3[b];
  }
}

#endif

}  // namespace

void philox_blocks(
    uint64_t seed, uint64_t stream, uint64_t first_block, int64_t count, uint32_t* words) {
#if defined(__AVX512F__)
  constexpr int kVectors = 4;
  int64_t done = 0;
  for (; count - done > 8; done += 8 * kVectors) {
    philox_lanes<kVectors>(seed, stream, first_block + static_cast<uint64_t>(done), count - done,
                           words + 4 * done);
  }
  if (done < count) {
    philox_lanes<1>(seed, stream, first_block + static_cast<uint64_t>(done), count - done,
                    words + 4 * done);
  }
#else
  constexpr int64_t kGroup = 64;
  for (int64_t done = 0; done < count; done += kGroup) {
    const uint64_t first = first_block + static_cast<uint64_t>(done);
    const int64_t left = count - done;
    uint32_t* out = words + 4 * done;
    if (left > kGroup / 2) {
      philox_group<kGroup>(seed, stream, first, left < kGroup ? left : kGroup, out);
    } else if (left > kGroup / 4) {
      philox_group<kGroup / 2>(seed, stream, first, left, out);
    } else {
      philox_group<kGroup / 4>(seed, stream, first, left, out);
    }
  }
#endif
}

void bernoulli_range(
    int64_t n, uint64_t seed, uint64_t stream, uint64_t first_index, uint64_t threshold, bool* y) {
  constexpr int64_t kElements = 4 * kBlock;
  uint32_t words[kElements + 4];
  for (int64_t done = 0; done < n; done += kElements) {
    const int64_t m = n - done < kElements ? n - done : kElements;
    const uint64_t index = first_index + static_cast<uint64_t>(done);
    const auto skip = static_cast<int64_t>(index % 4);
    philox_blocks(seed, stream, index / 4, (skip + m + 3) / 4, words);
    // Compared in 32 bits, which have no room for the threshold of certainty.
    const auto limit = static_cast<uint32_t>(threshold);
    const bool always = threshold > UINT32_MAX;
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < m; ++i) {
      y[done + i] = always | (words[skip + i] < limit);
    }
  }
}

void dropout_range(DType dtype,
                   int64_t n,
                   uint64_t seed,
                   uint64_t stream,
                   uint64_t first_index,
                   uint64_t threshold,
                   double scale,
                   const void* x,
                   void* y) {
  for_floating(dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    using C = compute_t<T>;
    const auto factor = static_cast<C>(scale);
    const auto limit = static_cast<uint32_t>(threshold);
    const bool always = threshold > UINT32_MAX;
    C in_block[kBlock];
    C out_block[kBlock];
    uint32_t words[kBlock + 4];
    for (int64_t done = 0; done < n; done += kBlock) {
      const int64_t m = block_size(n - done);
      const uint64_t index = first_index + static_cast<uint64_t>(done);
      const auto skip = static_cast<int64_t>(index % 4);
      philox_blocks(seed, stream, index / 4, (skip + m + 3) / 4, words);
      const C* in = read_block(m, static_cast<const T*>(x) + done, in_block);
      C* out = output_block(static_cast<T*>(y) + done, out_block);
      TAPESTRY_VECTOR_LOOP
      for (int64_t i = 0; i < m; ++i) {
        const C scaled = in[i] * factor;
        out[i] = always | (words[skip + i] < limit) ? scaled : C(0);
      }
      write_block(m, out, static_cast<T*>(y) + done);
    }
  });
}

}  // namespace tapestry::kernels::TAPESTRY_ISA
