#include "parallel_core/data/numpy_random.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <vector>

#include "autograd/tensor/error.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry::data {
namespace {

using ::testing::ElementsAre;

std::vector<int> shuffled(int64_t seed, int n) {
  std::vector<int> values(static_cast<size_t>(n));
  std::iota(values.begin(), values.end(), 0);
  NumpyRandomState random(seed);
  random.shuffle(std::span<int>(values));
  return values;
}

TEST(NumpyRandomState, ShufflesAsNumPy) {
  EXPECT_THAT(shuffled(0, 10), ElementsAre(2, 8, 4, 9, 1, 6, 7, 3, 0, 5));
  EXPECT_THAT(shuffled(42, 10), ElementsAre(8, 1, 5, 0, 7, 2, 9, 4, 3, 6));
  EXPECT_THAT(shuffled(1234, 10), ElementsAre(7, 2, 9, 1, 0, 8, 4, 5, 6, 3));
}

TEST(NumpyRandomState, FullRangeGivesTheWordsOfTheGenerator) {
  NumpyRandomState random(1234);
  EXPECT_EQ(random.bounded(UINT32_MAX), 822569775U);
  EXPECT_EQ(random.bounded(UINT32_MAX), 2137449171U);
  EXPECT_EQ(random.bounded(UINT32_MAX), 2671936806U);
  EXPECT_EQ(random.bounded(UINT32_MAX), 3512589365U);
}

TEST(NumpyRandomState, BeyondOneWordTheFirstIsTheHighHalf) {
  NumpyRandomState random(1234);
  EXPECT_EQ(random.bounded(UINT64_MAX), (uint64_t{822569775} << 32U) | 2137449171U);
}

TEST(NumpyRandomState, StaysInBoundsAndDrawsNothingForOneValue) {
  NumpyRandomState random(7);
  NumpyRandomState twin(7);
  EXPECT_EQ(random.bounded(0), 0U);
  std::set<uint64_t> seen;
  for (int i = 0; i < 200; ++i) {
    const uint64_t value = random.bounded(5);
    EXPECT_EQ(value, twin.bounded(5));
    seen.insert(value);
  }
  EXPECT_THAT(seen, ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_TRUE(shuffled(1, 0).empty());
  EXPECT_THAT(shuffled(1, 1), ElementsAre(0));
}

TEST(NumpyRandomState, RefusesSeedsThatNumPyRefuses) {
  EXPECT_NO_THROW(NumpyRandomState(UINT32_MAX));
  EXPECT_ERROR(NumpyRandomState(-1), ValueError, "seed: -1");
  EXPECT_ERROR(NumpyRandomState(int64_t{1} << 32U), ValueError, "seed: 4294967296");
}

}  // namespace
}  // namespace tapestry::data
