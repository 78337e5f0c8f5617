// What a connection to several residual streams starts as, and what is done with streams as a
// whole. Formulas: tests/autograd/ops/hyper_connection_test.cpp; models: gpt_model_test.cpp.
#include "parallel_core/transformer/hyper_connection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "autograd/ops/ops.h"
#include "autograd/tape/engine.h"
#include "tests/parallel_core/model_families.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry {
namespace hyper_connection_test {
namespace {

using testing::Overrides;
using testing::small_config;

const Overrides kStreams = {"model_config.enable_hyper_connections=True",
                            "model_config.hidden_size=128"};

Tensor hidden_states(const Shape& shape) {
  return normal(0, 1, shape, kFloat32, RandomKey{3, 1, 0});
}

TEST(HyperConnection, StartsAsMindFormersDoes) {
  const AllConfig config = small_config(kStreams);
  const HyperConnection connection(config.model_config, "c", {});
  std::map<std::string, nn::Parameter*> own;
  for (const auto& entry : connection.named_parameters()) {
    own[entry.name] = entry.parameter;
  }
  ASSERT_EQ(own.size(), 3U);
  const nn::Parameter& weight = *own.at("weight");
  ASSERT_EQ(weight.shape(), (Shape{24, 512}));
  EXPECT_TRUE(weight.flags().decay);
  double squares = 0;
  for (const double value : weight.to_vector<double>()) {
    squares += value * value;
  }
  // Variance 1e-4; of so many numbers it is within five standard deviations of itself.
  const double count = 24 * 512;
  EXPECT_NEAR(squares / count, 1e-4, 5 * 1e-4 * std::sqrt(2 / count));
  EXPECT_EQ(own.at("alpha")->to_vector<float>(), (std::vector<float>{0.01F, 0.01F, 0.01F}));
  EXPECT_FALSE(own.at("alpha")->flags().decay);
  const std::vector<float> bias = own.at("bias")->to_vector<float>();
  EXPECT_FALSE(own.at("bias")->flags().decay);
  for (size_t j = 0; j < 24; ++j) {
    const bool is_diagonal = j >= 8 && (j - 8) % 5 == 0;
    EXPECT_FLOAT_EQ(bias[j], j < 4 ? -std::log(3.0F) : j < 8 || is_diagonal ? 0.0F : -5.0F) << j;
  }
  const std::vector<std::string> names = {"c.alpha.weight", "c.bias", "c.weight"};
  size_t i = 0;
  for (const auto& [name, parameter] : own) {
    EXPECT_EQ(parameter->logical().at(0).name, names[i++]);
  }
}

// In the beginning a block reads a quarter of each of four streams, that is their mean, and its
// output comes to each of them once.
TEST(HyperConnection, StartsLikeOneStream) {
  const AllConfig config = small_config(kStreams);
  const HyperConnection connection(config.model_config, "c", {});
  const Tensor x = hidden_states({2, 5, 128});
  const HyperConnectionReading read = connection(copy_to_streams(x, 4));
  // Gates move by alpha, and by what the streams make of the weights: less than a percent or two.
  EXPECT_LE(testing::distance(read.input, x), 0.02);
  const Tensor out = hidden_states({2, 5, 128});
  const Tensor mean = mean_of_streams(connection.write(read, out), 4);
  EXPECT_LE(testing::distance(mean, x + out), 0.02);
}

TEST(HyperConnection, CopiesAndMeansOfStreams) {
  const Tensor x = hidden_states({2, 3, 8}).set_requires_grad();
  const Tensor copies = copy_to_streams(x, 3);
  EXPECT_EQ(copies.shape(), (Shape{2, 3, 24}));
  for (int64_t stream = 0; stream < 3; ++stream) {
    EXPECT_TRUE(testing::same_bits(copies.slice(2, 8 * stream, 8 * stream + 8), x));
  }
  const Tensor factors = hidden_states({2, 3, 24});
  const Tensor mean = mean_of_streams(copies * factors, 3);
  const Tensor expected =
      x.detach() * (factors.slice(2, 0, 8) + factors.slice(2, 8, 16) + factors.slice(2, 16, 24)) /
      3.0;
  EXPECT_LE(testing::distance(mean, expected), 1e-6);
  const Tensor gradient = grad(sum(mean), {x})[0];
  EXPECT_LE(testing::distance(gradient * x.detach(), expected), 1e-6);
  // Rounded once.
  const Tensor half = hidden_states({4, 2, 8}).to(kBFloat16);
  EXPECT_TRUE(testing::same_bits(mean_of_streams(copy_to_streams(half, 4), 4), half));
}

}  // namespace
}  // namespace hyper_connection_test
}  // namespace tapestry
