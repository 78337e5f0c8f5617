// A hash of a tensor's bits that is a sum over its elements, so that whoever has a part of them
// adds its share: slices, pieces and experts of a layout have one hash together, in any order.
//
// With w the 32 bits of an element, i its number in the whole tensor, i = 1024 q + r:
//
//   low  = sum_i w_i k1[r] h1(q) mod 2^64      high = the same with k2, h2
//
// k are fixed odd numbers of 32 bits and h odd ones of 64, all of a generator of random numbers. So
// one changed element always changes both, and two different tensors have one hash with a
// probability of about 2^-120 unless somebody has looked for them. It is a check against faults, no
// signature.
#pragma once

#include <cstdint>

#include "autograd/kernels/machine/cpu.h"

namespace tapestry::kernels {

/// 128 bits. Adds modulo 2^64 in each half.
struct ElementHash {
  uint64_t low = 0;
  uint64_t high = 0;

  ElementHash& operator+=(const ElementHash& other) {
    low += other.low;
    high += other.high;
    return *this;
  }
  bool operator==(const ElementHash&) const = default;
};

/// The share of n elements that lie one after the other in the whole tensor and in memory, the
/// first of them its element `first`. Elements have `bytes` 1, 2, 4 or 8; those of 8 count as two
/// of
/// 4. On the calling thread.
ElementHash hash_elements(int bytes, int64_t n, const void* elements, int64_t first);

inline constexpr int64_t kHashRow = 1024;  ///< elements with one h

// For hash_elements: sums[0] += words[i] k1[i], sums[1] += words[i] k2[i], modulo 2^64.
TAPESTRY_DECLARE_PER_ISA(
    void add_hash_row(
        int64_t n, const uint32_t* words, const uint64_t* k1, const uint64_t* k2, uint64_t* sums);
    void add_hash_row_of_halves(
        int64_t n, const uint16_t* words, const uint64_t* k1, const uint64_t* k2, uint64_t* sums))

}  // namespace tapestry::kernels
