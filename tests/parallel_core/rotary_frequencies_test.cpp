#include "parallel_core/rotary_frequencies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace tapestry {
namespace {

// Expected values: the formulas of the papers, evaluated by another program.
void expect_frequencies(const RotaryFrequencies& found, const std::vector<double>& expected) {
  ASSERT_EQ(found.of_pairs.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(found.of_pairs[i] / expected[i], 1, 1e-11) << "pair " << i;
  }
}

RotaryConfig scaled(const char* type, double factor, int64_t length) {
  RotaryConfig config;
  config.rotary_base = 100;
  config.rope_type = type;
  config.rope_scaling_factor = factor;
  config.original_max_position_embeddings = length;
  return config;
}

TEST(RotaryFrequencies, YarnKeepsFastPairsAndDividesSlowOnes) {
  const RotaryConfig config = scaled("yarn", 4, 64);
  expect_frequencies(rotary_frequencies(config, 8, 1000),
                     {1, 0.23717082451263, 0.05, 0.0079056941504209});
  EXPECT_NEAR(rotary_frequencies(config, 8, 1000).factor, 1.1386294361119891, 1e-14);

  RotaryConfig exact = config;
  exact.beta_fast = 4;
  exact.beta_slow = 0.25;
  exact.truncate = false;
  exact.mscale = 0.5;
  exact.mscale_all_dim = 2;
  expect_frequencies(rotary_frequencies(exact, 8, 1),
                     {1, 0.29770115657021, 0.062998295793256, 0.010073505026118});
  EXPECT_NEAR(rotary_frequencies(exact, 8, 1).factor, 0.83719498162035955, 1e-14);
  exact.attention_factor = 1.25;
  EXPECT_EQ(rotary_frequencies(exact, 8, 1).factor, 1.25);
}

TEST(RotaryFrequencies, LongropeHasTwoTables) {
  RotaryConfig config = scaled("longrope", 4, 16);
  config.short_factor = {1, 1, 1, 1};
  config.long_factor = {2, 4, 8, 16};
  const double step = 0.31622776601683794;  // 100^(-1/4)
  expect_frequencies(rotary_frequencies(config, 8, 16), {1, step, 0.1, 0.1 * step});
  expect_frequencies(rotary_frequencies(config, 8, 17), {0.5, step / 4, 0.0125, 0.1 * step / 16});
  EXPECT_NEAR(rotary_frequencies(config, 8, 16).factor, 1.2247448713915890, 1e-14);
  EXPECT_TRUE(frequencies_depend_on_length(config));
}

TEST(RotaryFrequencies, DynamicBaseGrowsWithTheText) {
  const RotaryConfig config = scaled("dynamic", 2, 16);
  const double step = 0.31622776601683794;
  expect_frequencies(rotary_frequencies(config, 8, 7), {1, step, 0.1, 0.1 * step});
  expect_frequencies(rotary_frequencies(config, 8, 48),
                     {1, 0.18493111942973, 0.034199518933534, 0.0063245553203368});
  EXPECT_TRUE(frequencies_depend_on_length(config));
  EXPECT_FALSE(frequencies_depend_on_length(scaled("yarn", 2, 16)));
}

TEST(RotaryFrequencies, BackwardIsTheNegativeAngle) {
  RotaryConfig config = scaled("default", 1, 16);
  config.rotary_backward = true;
  expect_frequencies(rotary_frequencies(config, 4, 1), {-1, -0.1});
}

}  // namespace
}  // namespace tapestry
