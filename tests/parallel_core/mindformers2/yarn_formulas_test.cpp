// Angles of yarn, against MindFormers 2.0's formula in float64.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "parallel_core/rotary_frequencies.h"
#include "tests/parallel_core/mindformers2/golden.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry {
namespace {

RotaryConfig yarn_of(const nlohmann::json& one) {
  RotaryConfig out;
  out.rope_type = "yarn";
  out.rotary_base = one["base"].get<double>();
  out.rope_scaling_factor = one["factor"].get<double>();
  out.original_max_position_embeddings = one["length"].get<int64_t>();
  out.mscale = one["mscale"].get<double>();
  out.mscale_all_dim = one["mscale_all_dim"].get<double>();
  out.mscale_on_angles = true;
  return out;
}

// Both sides compute in float64: a power, a logarithm and four more roundings.
TEST(YarnFormulas, AnglesAreThoseOfMindFormers) {
  for (const nlohmann::json& one : testing::golden_formulas()["yarn"]) {
    const RotaryFrequencies found =
        rotary_frequencies(yarn_of(one), one["channels"].get<int64_t>(), 1);
    const auto expected = one["angles"].get<std::vector<double>>();
    ASSERT_EQ(found.of_pairs.size(), expected.size());
    EXPECT_EQ(found.factor, 1);
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(found.of_pairs[i] / expected[i], 1, 1e-13) << one["channels"] << ", pair " << i;
    }
  }
}

}  // namespace
}  // namespace tapestry
