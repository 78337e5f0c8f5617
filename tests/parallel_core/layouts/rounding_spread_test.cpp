#include "diagnosis/verify/rounding_spread.h"

#include <gtest/gtest.h>

#include <cmath>
#include <tuple>
#include <vector>

#include "autograd/tensor/factory.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry {
namespace {

TEST(MovedByRounding, TakesNumbersNextToEachOther) {
  std::vector<float> values;
  for (int i = 0; i < 600; ++i) {
    values.push_back(0.37F * static_cast<float>(i - 300));
  }
  const LogicalState weights = {{"a", tensor(values, {600})}, {"b", tensor(values, {600})}};
  for (const auto& [dtype, digits, fewest, most] :
       {std::tuple(kFloat32, 24, 590, 599), {kBFloat16, 8, 30, 70}, {kFloat16, 11, 30, 70}}) {
    SCOPED_TRACE(name_of(dtype));
    const LogicalState moved = moved_by_rounding(weights, dtype, 1);
    ASSERT_EQ(testing::names_of(moved), testing::names_of(weights));
    const std::vector<double> after = moved.at("a").to_vector<double>();
    int ups = 0;
    int downs = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      const double before = values[i];
      EXPECT_LE(std::abs(after[i] - before), std::ldexp(std::abs(before), 1 - digits)) << before;
      ups += std::abs(after[i]) > std::abs(before) ? 1 : 0;
      downs += std::abs(after[i]) < std::abs(before) ? 1 : 0;
    }
    EXPECT_GE(ups + downs, fewest);
    EXPECT_LE(ups + downs, most);
    EXPECT_GT(ups, (ups + downs) / 4);
    EXPECT_GT(downs, (ups + downs) / 4);
    EXPECT_FALSE(testing::same_bits(moved.at("a"), moved.at("b")));
    testing::expect_states_equal(moved_by_rounding(weights, dtype, 1), moved);
    EXPECT_FALSE(testing::same_bits(moved_by_rounding(weights, dtype, 2).at("a"), moved.at("a")));
  }
}

Finding at(Compared what, int64_t step, double distance = 0) {
  return {.what = what, .step = step, .distance = distance};
}

TEST(RoundingSpread, BoundsAreAMultipleOfTheLargestDistanceSoFar) {
  RoundingSpread spread;
  spread.add(at(Compared::kGradient, 1, 1e-6));
  spread.add(at(Compared::kGradient, 1, 3e-6));
  spread.add(at(Compared::kGradient, 2, 2e-6));
  spread.add(at(Compared::kGradient, 3, 5e-6));
  constexpr double kMultiple = RoundingSpread::kMultiple;
  EXPECT_DOUBLE_EQ(spread.bound_of(at(Compared::kGradient, 1)), kMultiple * 3e-6);
  EXPECT_DOUBLE_EQ(spread.bound_of(at(Compared::kGradient, 2)), kMultiple * 3e-6);
  EXPECT_DOUBLE_EQ(spread.bound_of(at(Compared::kGradient, 9)), kMultiple * 5e-6);
  // Of what was not seen to move there is the rounding of a number.
  EXPECT_DOUBLE_EQ(spread.bound_of(at(Compared::kWeights, 1)), kMultiple * 0x1p-24);
}

TEST(RoundingSpread, LossAndNormShareTheirs) {
  RoundingSpread spread;
  spread.add(at(Compared::kLoss, 1, 1e-6));
  spread.add(at(Compared::kGradNorm, 1, 4e-6));
  EXPECT_DOUBLE_EQ(spread.bound_of(at(Compared::kLoss, 1)), RoundingSpread::kMultiple * 4e-6);
  EXPECT_DOUBLE_EQ(spread.bound_of(at(Compared::kGradNorm, 1)), RoundingSpread::kMultiple * 4e-6);
}

TEST(RoundingSpread, ZeroGradientsAreAKindOfTheirOwn) {
  RoundingSpread spread;
  Finding zero = at(Compared::kGradient, 1, 1e-3);
  zero.zero_gradient = ZeroGradient::kAll;
  spread.add(zero);
  EXPECT_DOUBLE_EQ(spread.bound_of(zero), RoundingSpread::kMultiple * 1e-3);
  EXPECT_DOUBLE_EQ(spread.bound_of(at(Compared::kGradient, 1)),
                   RoundingSpread::kMultiple * 0x1p-24);
}

// A distance that is not a number, as of a run that breaks down, allows nothing.
TEST(RoundingSpread, NotANumberIsNoBound) {
  RoundingSpread spread;
  spread.add(at(Compared::kLoss, 1, NAN));
  Finding finding = at(Compared::kLoss, 1, 0.5);
  finding.bound = spread.bound_of(finding);
  EXPECT_FALSE(finding.agrees());
}

}  // namespace
}  // namespace tapestry
