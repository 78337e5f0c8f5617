#include "autograd/kernels/exact/element_hash.h"

#include <algorithm>
#include <array>

namespace tapestry::kernels {

namespace {

// A counter made random. Source: Steele, Lea and Flood 2014, "Fast splittable pseudorandom number
// generators" (SplitMix64).
constexpr uint64_t random_word(uint64_t counter) {
  uint64_t x = (counter + 1) * 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31U);
}

struct Keys {
  alignas(64) std::array<uint64_t, kHashRow> low{};
  alignas(64) std::array<uint64_t, kHashRow> high{};
};

constexpr Keys make_keys() {
  Keys keys;
  for (size_t i = 0; i < keys.low.size(); ++i) {
    const uint64_t word = random_word(i);
    keys.low[i] = (word & 0xFFFFFFFFU) | 1U;
    keys.high[i] = (word >> 32U) | 1U;
  }
  return keys;
}

constexpr Keys kKeys = make_keys();
constexpr uint64_t kRowsLow = uint64_t{1} << 40U;  // where counters of rows begin
constexpr uint64_t kRowsHigh = uint64_t{1} << 60U;

template <class Word, class AddRow>
ElementHash hash_words(int64_t n, const Word* words, int64_t first, AddRow add_row) {
  ElementHash hash;
  for (int64_t done = 0; done < n;) {
    const int64_t row = (first + done) / kHashRow;
    const int64_t within = (first + done) % kHashRow;
    const int64_t count = std::min(n - done, kHashRow - within);
    std::array<uint64_t, 2> sums = {0, 0};
    add_row(count, words + done, kKeys.low.data() + within, kKeys.high.data() + within,
            sums.data());
    hash.low += sums[0] * (random_word(kRowsLow + static_cast<uint64_t>(row)) | 1U);
    hash.high += sums[1] * (random_word(kRowsHigh + static_cast<uint64_t>(row)) | 1U);
    done += count;
  }
  return hash;
}

}  // namespace

ElementHash hash_elements(int bytes, int64_t n, const void* elements, int64_t first) {
  if (bytes == 1) {
    const auto add_bytes = [](int64_t count, const uint8_t* words, const uint64_t* k1,
                              const uint64_t* k2, uint64_t* sums) {
      for (int64_t i = 0; i < count; ++i) {
        sums[0] += words[i] * k1[i];
        sums[1] += words[i] * k2[i];
      }
    };
    return hash_words(n, static_cast<const uint8_t*>(elements), first, add_bytes);
  }
  if (bytes == 2) {
    return hash_words(n, static_cast<const uint16_t*>(elements), first,
                      TAPESTRY_DISPATCH(add_hash_row_of_halves));
  }
  const int64_t words = bytes / 4;
  return hash_words(n * words, static_cast<const uint32_t*>(elements), first * words,
                    TAPESTRY_DISPATCH(add_hash_row));
}

}  // namespace tapestry::kernels
