#include "diagnosis/accuracy/curve_statistics.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/diagnosis/accuracy/made_up_curves.h"

namespace tapestry::accuracy {
namespace {

TEST(CurveStatistics, TheLastWindowTakesWhatIsLeft) {
  const WindowMeans means = window_means({1, 3, 5, 7, 12}, 2);
  ASSERT_EQ(means.mean.size(), 2U);
  EXPECT_EQ(means.mean[0], 2);
  EXPECT_EQ(means.mean[1], 8);
  EXPECT_EQ(means.begin(1), 2U);
  EXPECT_EQ(means.end(1), 5U);
  EXPECT_EQ(window_means({}, 2).mean.size(), 0U);
  EXPECT_EQ(window_means({4}, 2).mean.size(), 1U);
}

TEST(CurveStatistics, ThereAreEightWindowsWherePossible) {
  EXPECT_EQ(fitting_window(3, 50), 1U);
  EXPECT_EQ(fitting_window(80, 50), 10U);
  EXPECT_EQ(fitting_window(100'000, 50), 50U);
}

// The standard error of a mean of AR(1) noise is sd sqrt((1 + r) / (1 - r) / n).
TEST(CurveStatistics, StandardErrorKnowsOfCorrelation) {
  constexpr double kCorrelation = 0.98;
  constexpr size_t kValues = 20'000;
  double state = 0;
  Normal normal(3);
  std::vector<double> values;
  for (size_t i = 0; i < kValues; ++i) {
    state = kCorrelation * state + std::sqrt(1 - kCorrelation * kCorrelation) * normal();
    values.push_back(state);
  }
  const WindowMeans windows = window_means(values, 50);
  const Bias bias = bias_of(windows.mean, 0, windows.mean.size());
  const double expected =
      std::sqrt((1 + kCorrelation) / (1 - kCorrelation) / static_cast<double>(kValues));
  EXPECT_GT(bias.standard_error, 0.8 * expected);
  EXPECT_LT(bias.standard_error, 1.8 * expected);
  EXPECT_LT(bias.significance(), 4);
}

TEST(CurveStatistics, FewWindowsHaveNoStandardError) {
  const Bias bias = bias_of({1, 1, 1}, 0, 3);
  EXPECT_TRUE(std::isnan(bias.standard_error));
  EXPECT_TRUE(std::isnan(bias.significance()));
  EXPECT_EQ(bias.sign_balance, 1);
  EXPECT_EQ(bias_of({0, 0}, 0, 2).sign_balance, 0.5);
}

TEST(CurveStatistics, AKinkIsNoJump) {
  std::vector<double> kink(400, 0);
  std::vector<double> jump(400, 0);
  for (size_t i = 200; i < 400; ++i) {
    kink[i] = 0.01 * static_cast<double>(i - 200);
    jump[i] = 1 + kink[i];
  }
  EXPECT_LT(std::abs(largest_jump(kink, 50).size), 0.05);
  EXPECT_EQ(largest_jump(jump, 50).at, 200U);
  EXPECT_NEAR(largest_jump(jump, 50).size, 1, 1e-9);
  EXPECT_EQ(largest_jump({1, 2, 3}, 50).size, 0);
}

TEST(CurveStatistics, OnsetIsWhereADeviationBegins) {
  EXPECT_EQ(onset_of({0, 0, 0, 1, 2, 3}), 3U);
  EXPECT_EQ(onset_of({0, 0, 1, 1, 1, 1}), 2U);
  EXPECT_EQ(onset_of({1, 1, 1}), 0U);
}

}  // namespace
}  // namespace tapestry::accuracy
