// What the router decides and computes, against stored float64 results of NumPy.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/ops/ops.h"
#include "autograd/tape/engine.h"
#include "autograd/tape/grad_mode.h"
#include "tests/parallel_core/transformer/moe/router_testing.h"

namespace tapestry {
namespace {

using ::testing::Each;
using ::testing::ElementsAreArray;
using ::testing::IsEmpty;
using testing::list_of;
using testing::numbers_of;

// Differences by the rounding of float32, in parts of the largest expected value or of `least`.
void expect_close(const std::vector<double>& found,
                  const std::vector<double>& expected,
                  double tolerance,
                  const char* what,
                  double least = 1e-30) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  double scale = least;
  for (const double value : expected) {
    scale = std::max(scale, std::abs(value));
  }
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_NEAR(found[i], expected[i], tolerance * scale) << what << " " << i;
  }
}

class RoutingCase : public ::testing::TestWithParam<size_t> {
 protected:
  const nlohmann::json& settings() const { return entry()["config"]; }
  const nlohmann::json& answer() const { return entry()["answer"]; }
  const nlohmann::json& entry() const { return testing::routing_cases()[GetParam()]; }
  int64_t rows() const { return settings().value("rows", 2); }
  int64_t seq_length() const { return settings().value("seq_length", 5); }
  int64_t experts() const { return settings()["num_experts"].get<int64_t>(); }
  Tensor logits() const {
    return tensor(list_of<float>(entry()["logits"]), {rows() * seq_length(), experts()});
  }
  bool has_numbers() const { return answer().contains("gates"); }

  void expect_decisions(const Routing& found) const {
    EXPECT_THAT(found.experts, ElementsAreArray(list_of<int32_t>(answer()["experts"])));
    EXPECT_THAT(found.kept, ElementsAreArray(list_of<uint8_t>(answer()["kept"])));
    expect_counts(found);
  }
  void expect_counts(const Routing& found) const {
    EXPECT_THAT(found.tokens_per_expert,
                ElementsAreArray(list_of<int64_t>(answer()["tokens_per_expert"])));
    EXPECT_THAT(found.dropped_per_expert,
                ElementsAreArray(list_of<int64_t>(answer()["dropped_per_expert"])));
    EXPECT_THAT(found.balance_counts,
                ElementsAreArray(list_of<int64_t>(answer()["balance_counts"])));
    EXPECT_NEAR(found.smallest_router_gap, answer()["router_gap"].get<double>(), 1e-6);
    EXPECT_NEAR(found.smallest_group_gap, answer()["group_gap"].get<double>(), 1e-6);
    EXPECT_NEAR(found.smallest_capacity_gap, answer()["capacity_gap"].get<double>(), 1e-6);
  }
};

// The functions that a router is made of; logits that are not numbers reach them alone, as a
// product spreads them over all experts.
TEST_P(RoutingCase, FreeFunctionsDecideAsStored) {
  const MoEConfig moe = testing::config_of(settings()).moe;
  const GateRule gate = gate_rule(moe);
  const ChoiceRule rule = choice_rule(moe);
  const Tensor scores = router_scores(logits(), gate);
  const bool by_scores = gate.scores != GateRule::Scores::kSoftmax || settings().contains("bias") ||
                         rule.method == ChoiceRule::Method::kNoauxTc;
  std::vector<float> values = (by_scores ? scores : logits()).to_vector<float>();
  if (settings().contains("bias")) {
    const auto bias = list_of<float>(settings()["bias"]);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] += bias[i % bias.size()];
    }
  }
  const ExpertChoice choice = choose_experts(values, rule);
  EXPECT_THAT(choice.experts, ElementsAreArray(list_of<int32_t>(answer()["experts"])));
  if (!moe.moe_expert_capacity_factor) {
    return;
  }
  const int64_t tokens = rows() * seq_length();
  const Tensor gates =
      expert_gates(logits(), scores, tensor(choice.experts, {tokens, rule.topk}), gate);
  const KeptAssignments found = keep_assignments(
      {rule.topk, testing::all_tokens(rows(), seq_length()).numbers, choice.experts,
       gates.to_vector<float>()},
      experts(), expert_capacity(tokens, rule.topk, experts(), *moe.moe_expert_capacity_factor),
      drop_policy(moe.moe_token_drop_policy));
  EXPECT_THAT(found.kept, ElementsAreArray(list_of<uint8_t>(answer()["kept"])));
  EXPECT_THAT(found.dropped_per_expert,
              ElementsAreArray(list_of<int64_t>(answer()["dropped_per_expert"])));
}

TEST_P(RoutingCase, DecidesAndComputesAsStored) {
  if (!has_numbers()) {
    GTEST_SKIP() << "a product spreads what is not a number over all experts";
  }
  const auto router = testing::router_of_case(settings());
  const Tensor x = logits().set_requires_grad();
  const Routing found = router->forward(x, testing::all_tokens(rows(), seq_length()));
  expect_decisions(found);
  expect_close(found.gates.to_vector<double>(), numbers_of(answer()["gates"]), 1e-6, "gate");
  const double expected = answer()["aux_loss"].get<double>();
  ASSERT_EQ(found.aux_loss.defined(), expected != 0);
  if (expected != 0) {
    EXPECT_NEAR(found.aux_loss.item(), expected, 2e-6 * expected);
  }
}

TEST_P(RoutingCase, GradientsAreThoseStored) {
  if (!has_numbers()) {
    GTEST_SKIP() << "logits that are not numbers have no gradient";
  }
  const auto router = testing::router_of_case(settings());
  const Tensor x = logits().set_requires_grad();
  const Routing found = router->forward(x, testing::all_tokens(rows(), seq_length()));
  std::vector<float> probe;
  for (int64_t i = 0; i < found.gates.numel(); ++i) {
    probe.push_back(static_cast<float>(testing::probe_of(i)));
  }
  Tensor loss = sum(found.gates * tensor(probe, found.gates.shape()));
  if (found.aux_loss.defined()) {
    loss = loss + found.aux_loss;
  }
  loss.backward();
  const std::vector<double> expected = numbers_of(answer()["grad"]);
  // Small gradients are differences of products with gates, which are of size 1.
  const double least = 0.05;
  expect_close(x.grad().to_vector<double>(), expected, 2e-5, "gradient of x", least);
  const Tensor weight_gradient =
      matmul(tensor(expected, x.shape()).transpose(0, 1), x.detach().to(kFloat64));
  expect_close(router->parameters().front().grad().to_vector<double>(),
               weight_gradient.to_vector<double>(), 2e-5, "gradient of the weight",
               least * max(abs(x.detach())).item());
}

TEST_P(RoutingCase, EvaluationDropsNothingAndHasNoLoss) {
  if (!has_numbers()) {
    GTEST_SKIP() << "a product spreads what is not a number over all experts";
  }
  const auto expect_evaluation = [&](TopKRouter& router) {
    const Routing found = router.forward(logits(), testing::all_tokens(rows(), seq_length()));
    EXPECT_THAT(found.experts, ElementsAreArray(list_of<int32_t>(answer()["experts"])));
    EXPECT_THAT(found.kept, IsEmpty());
    EXPECT_THAT(found.dropped_per_expert, Each(0));
    EXPECT_FALSE(found.aux_loss.defined());
    EXPECT_EQ(found.smallest_capacity_gap, 1e9);
  };
  const auto router = testing::router_of_case(settings());
  router->eval();
  expect_evaluation(*router);
  router->train();
  const NoGradGuard guard;
  expect_evaluation(*router);
}

std::string name_of_case(const ::testing::TestParamInfo<size_t>& info) {
  auto name = testing::routing_cases()[info.param]["name"].get<std::string>();
  std::replace_if(
      name.begin(), name.end(),
      [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Stored,
                         RoutingCase,
                         ::testing::Range<size_t>(0, testing::routing_cases().size()),
                         name_of_case);

}  // namespace
}  // namespace tapestry
