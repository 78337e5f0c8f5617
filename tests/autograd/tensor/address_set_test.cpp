#include "autograd/tensor/address_set.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace tapestry {
namespace {

TEST(AddressSet, JoinsNeighboursAndCutsRanges) {
  AddressSet set;
  EXPECT_EQ(set.insert(10, 20), 10);
  EXPECT_EQ(set.insert(30, 40), 10);
  EXPECT_EQ(set.insert(15, 35), 10) << "of which half was there";
  EXPECT_EQ(set.first_behind(0).begin, 10U);
  EXPECT_EQ(set.first_behind(0).end, 40U);
  EXPECT_EQ(set.erase(20, 25), 5);
  EXPECT_EQ(set.first_behind(20).begin, 25U);
  EXPECT_EQ(set.first_behind(40).end, 0U);
  EXPECT_EQ(set.count(0, 100), 25);
  EXPECT_EQ(set.insert(20, 25), 5);
  EXPECT_EQ(set.first_behind(39).begin, 10U) << "joined on both sides";
  EXPECT_EQ(set.erase(40, 50), 0);
}

TEST(AddressSet, IsASetOfNumbers) {
  AddressSet set;
  std::vector<bool> expected(200);
  std::mt19937 random(1);
  for (int i = 0; i < 4000; ++i) {
    const size_t begin = random() % 190;
    const size_t end = begin + 1 + random() % 10;
    const bool adds = random() % 2 == 0;
    int64_t changed = 0;
    int64_t there = 0;
    for (size_t at = begin; at < end; ++at) {
      there += expected[at] ? 1 : 0;
      changed += expected[at] != adds ? 1 : 0;
      expected[at] = adds;
    }
    ASSERT_EQ(set.count(begin, end), there);
    ASSERT_EQ(adds ? set.insert(begin, end) : set.erase(begin, end), changed);
    size_t first = 0;
    for (AddressSet::Range range = set.first_behind(0); range.end > 0;
         range = set.first_behind(range.end)) {
      for (size_t at = first; at < range.begin; ++at) {
        ASSERT_FALSE(expected[at]);
      }
      for (size_t at = range.begin; at < range.end; ++at) {
        ASSERT_TRUE(expected[at]);
      }
      ASSERT_TRUE(range.end == expected.size() || !expected[range.end]) << "neighbours are joined";
      first = range.end;
    }
    for (size_t at = first; at < expected.size(); ++at) {
      ASSERT_FALSE(expected[at]);
    }
  }
}

}  // namespace
}  // namespace tapestry
