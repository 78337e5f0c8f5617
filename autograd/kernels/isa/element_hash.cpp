#include "autograd/kernels/exact/element_hash.h"

namespace tapestry::kernels::TAPESTRY_ISA {

namespace {

// Numbers of 32 bits in words of 64: one multiplication of such each.
template <class Word>
inline void add_hash_words(
    int64_t n, const Word* words, const uint64_t* k1, const uint64_t* k2, uint64_t* sums) {
  uint64_t low = 0;
  uint64_t high = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t word = words[i];
    low += word * static_cast<uint32_t>(k1[i]);
    high += word * static_cast<uint32_t>(k2[i]);
  }
  sums[0] += low;
  sums[1] += high;
}

}  // namespace

void add_hash_row(
    int64_t n, const uint32_t* words, const uint64_t* k1, const uint64_t* k2, uint64_t* sums) {
  add_hash_words(n, words, k1, k2, sums);
}

void add_hash_row_of_halves(
    int64_t n, const uint16_t* words, const uint64_t* k1, const uint64_t* k2, uint64_t* sums) {
  add_hash_words(n, words, k1, k2, sums);
}

}  // namespace tapestry::kernels::TAPESTRY_ISA
