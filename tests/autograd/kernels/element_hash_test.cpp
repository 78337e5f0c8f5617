#include "autograd/kernels/exact/element_hash.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <random>
#include <vector>

namespace tapestry::kernels {
namespace {

std::vector<uint32_t> random_words(size_t count) {
  std::mt19937 random(7);
  std::vector<uint32_t> words(count);
  for (uint32_t& word : words) {
    word = static_cast<uint32_t>(random());
  }
  return words;
}

ElementHash hash_of(const std::vector<uint32_t>& words) {
  return hash_elements(4, static_cast<int64_t>(words.size()), words.data(), 0);
}

TEST(ElementHash, PartsAddUp) {
  const std::vector<uint32_t> words = random_words(5000);
  const ElementHash whole = hash_of(words);
  for (const int64_t cut : {1, 1023, 1024, 1025, 3333}) {
    ElementHash parts = hash_elements(4, 5000 - cut, words.data() + cut, cut);
    parts += hash_elements(4, cut, words.data(), 0);
    EXPECT_EQ(parts, whole) << cut;
  }
}

TEST(ElementHash, EachBitOfEachElementCounts) {
  std::vector<uint32_t> words = random_words(2100);
  const ElementHash whole = hash_of(words);
  for (const size_t i : {0, 1, 1023, 1024, 2099}) {
    for (uint32_t bit = 0; bit < 32; ++bit) {
      words[i] ^= 1U << bit;
      const ElementHash changed = hash_of(words);
      EXPECT_NE(changed.low, whole.low) << i << " " << bit;
      EXPECT_NE(changed.high, whole.high) << i << " " << bit;
      words[i] ^= 1U << bit;
    }
  }
}

TEST(ElementHash, PlacesCount) {
  std::vector<uint32_t> words = random_words(4096);
  const ElementHash whole = hash_of(words);
  for (const auto& [a, b] : {std::array<size_t, 2>{0, 1}, {5, 1029}, {1023, 1024}}) {
    std::swap(words[a], words[b]);
    EXPECT_NE(hash_of(words), whole);
    std::swap(words[a], words[b]);
  }
}

// The bits of files: a change of the hash is a change of what checkpoints say.
TEST(ElementHash, IsTheOneThatCheckpointsHold) {
  std::vector<uint32_t> words(3000);
  for (size_t i = 0; i < words.size(); ++i) {
    words[i] = static_cast<uint32_t>(i * 2654435761U);
  }
  const ElementHash hash = hash_of(words);
  EXPECT_EQ(hash.low, 0x13B5684466A53820U) << std::hex << hash.low;
  EXPECT_EQ(hash.high, 0x9693093F2AFE4DACU) << std::hex << hash.high;
}

TEST(ElementHash, OfWideAndNarrowElements) {
  const std::vector<uint32_t> words = random_words(3000);
  EXPECT_EQ(hash_elements(8, 1500, words.data(), 0), hash_of(words));
  EXPECT_EQ(hash_elements(8, 500, words.data() + 2000, 1000),
            hash_elements(4, 1000, words.data() + 2000, 2000));
  std::vector<uint16_t> halves(1500);
  std::vector<uint8_t> bytes(1500);
  std::vector<uint32_t> same(1500);
  for (size_t i = 0; i < same.size(); ++i) {
    bytes[i] = static_cast<uint8_t>(words[i]);
    halves[i] = bytes[i];
    same[i] = bytes[i];
  }
  EXPECT_EQ(hash_elements(2, 1500, halves.data(), 0), hash_of(same));
  EXPECT_EQ(hash_elements(1, 1500, bytes.data(), 0), hash_of(same));
}

}  // namespace
}  // namespace tapestry::kernels
