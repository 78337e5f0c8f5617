// Counter-based random numbers: Philox 4x32-10 (Salmon et al. 2011, "Parallel random numbers: as
// easy as 1, 2, 3", section 3.3).
//
// A number is a function of (seed, stream, index): no state, no order, so it depends neither on
// threads nor on how an array is cut. The 64-bit seed is the key, low word first. The 128-bit
// counter holds a block number in its low half and the stream in its high half. What belongs to
// index i:
//   64-bit word    block i / 2, words 2 (i % 2) (low half) and 2 (i % 2) + 1 (high half)
//   32-bit word    block i / 4, word i % 4
//   normal         block i / 2, both 64-bit words, see fill_normal
// Draws of different kinds from one stream are therefore not independent: give each use its stream.
#pragma once

#include <array>
#include <cstdint>

#include "autograd/kernels/machine/dtype.h"

namespace tapestry::kernels {

/// The key of one round is that of the round before plus these.
inline constexpr uint32_t kPhiloxKeyStep0 = 0x9E3779B9U;
inline constexpr uint32_t kPhiloxKeyStep1 = 0xBB67AE85U;
inline constexpr int kPhiloxRounds = 10;

[[gnu::always_inline]] constexpr inline void philox_round(
    uint32_t& c0, uint32_t& c1, uint32_t& c2, uint32_t& c3, uint32_t k0, uint32_t k1) {
  const uint64_t p0 = uint64_t{0xD2511F53U} * c0;
  const uint64_t p1 = uint64_t{0xCD9E8D57U} * c2;
  c0 = static_cast<uint32_t>(p1 >> 32U) ^ c1 ^ k0;
  c1 = static_cast<uint32_t>(p1);
  c2 = static_cast<uint32_t>(p0 >> 32U) ^ c3 ^ k1;
  c3 = static_cast<uint32_t>(p0);
}

/// The four words of one block; counter words 0 and 1 are the halves of counter_low. In place of an
/// array: constant expressions, and code compiled per CPU level (see cpu.h), need plain memory.
[[gnu::always_inline]] constexpr inline void philox_block(uint64_t key,
                                                          uint64_t counter_low,
                                                          uint64_t counter_high,
                                                          uint32_t* words) {
  auto k0 = static_cast<uint32_t>(key);
  auto k1 = static_cast<uint32_t>(key >> 32U);
  words[0] = static_cast<uint32_t>(counter_low);
  words[1] = static_cast<uint32_t>(counter_low >> 32U);
  words[2] = static_cast<uint32_t>(counter_high);
  words[3] = static_cast<uint32_t>(counter_high >> 32U);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    philox_round(words[0], words[1], words[2], words[3], k0, k1);
    k0 += kPhiloxKeyStep0;
    k1 += kPhiloxKeyStep1;
  }
}

constexpr std::array<uint32_t, 4> philox(uint64_t key,
                                         uint64_t counter_low,
                                         uint64_t counter_high) {
  uint32_t words[4] = {};
  philox_block(key, counter_low, counter_high, words);
  return {words[0], words[1], words[2], words[3]};
}

/// The 64-bit word of that index.
constexpr uint64_t random_word(uint64_t seed, uint64_t stream, uint64_t index) {
  uint32_t words[4] = {};
  philox_block(seed, index / 2, stream, words);
  const uint64_t odd = index % 2;
  return words[2 * odd] | (uint64_t{words[2 * odd + 1]} << 32U);
}

/// The number that the 32-bit word of an index has to stay below for an event of that probability;
/// 2^32 for 1.
constexpr uint64_t bernoulli_threshold(double probability) {
  const double scaled = probability * 0x1p32 + 0.5;
  return scaled <= 0 ? 0 : (scaled >= 0x1p32 ? uint64_t{1} << 32U : static_cast<uint64_t>(scaled));
}

/// y[i], i < n, of index first_index + i: low + (high - low) u, where u are the upper 53 bits of
/// the 64-bit word (24 unless dtype is float64) times 2^-53 (2^-24): 0 <= u < 1. A result that
/// rounding lifts to `high` becomes the next number below it. Floating dtypes.
void fill_uniform(DType dtype,
                  int64_t n,
                  uint64_t seed,
                  uint64_t stream,
                  uint64_t first_index,
                  double low,
                  double high,
                  void* y);

/// y[i] = mean + std z of index first_index + i. Indices 2 b and 2 b + 1 share block b (Box &
/// Muller 1958): u1 in (0, 1] and u2 in [0, 1) are made of 53 bits of its 64-bit words, r = sqrt(-2
/// log u1), z = r cos(2 pi u2) for the even and r sin(2 pi u2) for the odd index. Computed in
/// float64, rounded once. Floating dtypes.
void fill_normal(DType dtype,
                 int64_t n,
                 uint64_t seed,
                 uint64_t stream,
                 uint64_t first_index,
                 double mean,
                 double std,
                 void* y);

/// y[i] = (32-bit word of index first_index + i) < bernoulli_threshold(keep_probability).
void fill_bernoulli(int64_t n,
                    uint64_t seed,
                    uint64_t stream,
                    uint64_t first_index,
                    double keep_probability,
                    bool* y);

/// y[i] = keep ? x[i] * scale : 0, where keep is what fill_bernoulli gives for that index; also
/// where x is not finite. Floating; y may be x. The mask is never in memory: backward makes it
/// again.
void dropout(DType dtype,
             int64_t n,
             uint64_t seed,
             uint64_t stream,
             uint64_t first_index,
             double keep_probability,
             double scale,
             const void* x,
             void* y);

}  // namespace tapestry::kernels
