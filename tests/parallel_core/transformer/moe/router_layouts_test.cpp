// A routing group whose tokens are spread over ranks decides and learns as one rank does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/ops/ops.h"
#include "autograd/tape/engine.h"
#include "autograd/tensor/error.h"
#include "parallel_core/context_parallel/context_parallel_layout.h"
#include "parallel_core/random.h"
#include "parallel_core/tensor_parallel/tensor_parallel_layout.h"
#include "tests/parallel_core/parallel_testing.h"
#include "tests/parallel_core/transformer/moe/router_testing.h"
#include "tests/says.h"

namespace tapestry {
namespace {

using testing::run_parallel;

constexpr int64_t kRows = 3;
constexpr int64_t kLength = 16;
constexpr int64_t kHidden = 8;

struct Layout {
  std::string name;
  int ranks = 1;
  int tensor = 1;
  int context = 1;
  bool sequence_parallel = false;
  bool sequence_first = false;
};

const std::vector<Layout> kLayouts = {
    {.name = "sbh", .sequence_first = true},
    {.name = "tp_without_sp", .ranks = 2, .tensor = 2},
    {.name = "tp_without_sp_sbh", .ranks = 4, .tensor = 4, .sequence_first = true},
    {.name = "sp", .ranks = 2, .tensor = 2, .sequence_parallel = true},
    {.name = "sp_sbh", .ranks = 4, .tensor = 4, .sequence_parallel = true, .sequence_first = true},
    {.name = "cp", .ranks = 2, .context = 2},
    {.name = "cp_sbh", .ranks = 4, .context = 4, .sequence_first = true},
    {.name = "cp_and_tp_without_sp", .ranks = 4, .tensor = 2, .context = 2},
    {.name = "cp_and_sp", .ranks = 4, .tensor = 2, .context = 2, .sequence_parallel = true},
    {.name = "cp_and_sp_sbh",
     .ranks = 4,
     .tensor = 2,
     .context = 2,
     .sequence_parallel = true,
     .sequence_first = true},
};

struct Settings {
  std::string name;
  const char* json;
};

const std::vector<Settings> kSettings = {
    {"dropless", R"({"num_experts": 8})"},
    {"probs", R"({"num_experts": 8, "capacity": 0.9, "losses": [["aux_loss", 0.01]], "z": 0.001})"},
    {"position_by_row", R"({"num_experts": 8, "capacity": 0.75, "policy": "position",
                            "losses": [["seq_aux_loss", 0.02]]})"},
    {"choice_sigmoid_groups_bias",
     R"({"num_experts": 8, "moe_router_topk": 3, "score": "sigmoid", "method": "noaux_tc",
         "num_groups": 4, "group_topk": 2, "scaling": 2.5, "capacity": 0.75, "policy": "choice",
         "bias": [0.25, -0.125, 0, 0.5, -0.25, 0.0625, -0.5, 0.125], "device_groups": 4,
         "losses": [["device", 0.02], ["seq_aux_loss", 0.01], ["aux_loss", 0.01]]})"},
    {"global_jitter", R"({"num_experts": 8, "capacity": 0.6, "jitter": 0.2, "pre_softmax": true,
                          "losses": [["global_aux_loss", 0.05]],
                          "previous": [9, 0, 4, 1, 1, 7, 2, 40]})"},
};

// What a rank finds out about its own tokens, and what the group tells it.
struct Outcome {
  Routing routing;
  Tensor x_gradient;
  Tensor weight_gradient;
};

std::unique_ptr<TopKRouter> make_router(const char* json, const Layout& layout) {
  const auto settings = nlohmann::json::parse(json);
  TransformerConfig config = testing::config_of(settings);
  config.sequence_parallel = layout.sequence_parallel;
  auto router = testing::router_of_case(settings, config, layout.sequence_first);
  copy_values(normal(0, 0.7, {kHidden, kHidden}, kFloat32, RandomKey{4, 2, 0}),
              router->parameters().front().detach());
  return router;
}

Outcome route(TopKRouter& router, const GroupTokens& tokens) {
  random_context() = {.seed = 7, .step = 3, .sample_ids = {5, 6, 11}};
  const Tensor all = normal(0, 1, {kRows * kLength, kHidden}, kFloat32, RandomKey{4, 1, 0});
  const Tensor numbers = tensor(tokens.numbers, {std::ssize(tokens.numbers)});
  const Tensor x = index_select(all, 0, numbers).set_requires_grad();
  Outcome out = {router.forward(x, tokens), {}, {}};
  // Weights of gates that belong to tokens, not to places.
  const int64_t k = out.routing.gates.size(1);
  const Tensor probe = normal(0, 1, {kRows * kLength, k}, kFloat32, RandomKey{4, 3, 0});
  Tensor loss = sum(out.routing.gates * index_select(probe, 0, numbers));
  if (out.routing.aux_loss.defined()) {
    loss = loss + 50 * out.routing.aux_loss;
  }
  loss.backward();
  out.x_gradient = x.grad();
  out.weight_gradient = router.parameters().front().grad();
  return out;
}

// The rank's tokens of hidden states in the given layout.
GroupTokens own_tokens(const Layout& layout, const TransformerConfig& config) {
  const TensorParallelLayout tensor_layout = tensor_parallel_layout(config, layout.sequence_first);
  const ContextParallelLayout context = context_parallel_layout();
  const int64_t own = kLength / layout.context / (layout.sequence_parallel ? layout.tensor : 1);
  GroupTokens tokens = group_tokens(&get_tensor_and_context_parallel_group(),
                                    hidden_positions(context, tensor_layout, own), kRows, own,
                                    layout.sequence_first);
  if (layout.tensor == 1 || layout.sequence_parallel) {
    return tokens;
  }
  const int64_t share = std::ssize(tokens.numbers) / layout.tensor;
  return tokens.slice(tensor_layout.rank * share, (tensor_layout.rank + 1) * share);
}

void expect_same(const Outcome& found, const Outcome& whole, const GroupTokens& tokens) {
  const int64_t k = whole.routing.gates.size(1);
  const auto expect_rows_close = [&](const Tensor& own, const Tensor& all) {
    const Tensor numbers = tensor(tokens.numbers, {std::ssize(tokens.numbers)});
    if (own.numel() > 0) {
      EXPECT_LT(max(abs(own.detach() - index_select(all.detach(), 0, numbers))).item(), 1e-6);
    }
  };
  expect_rows_close(found.routing.logits, whole.routing.logits);
  expect_rows_close(found.routing.gates, whole.routing.gates);
  expect_rows_close(found.x_gradient, whole.x_gradient);
  ASSERT_EQ(found.routing.kept.empty(), whole.routing.kept.empty() || tokens.numbers.empty());
  for (size_t t = 0; t < tokens.numbers.size(); ++t) {
    for (int64_t j = 0; j < k; ++j) {
      const auto own = t * static_cast<size_t>(k) + static_cast<size_t>(j);
      const auto all = static_cast<size_t>(tokens.numbers[t] * k + j);
      EXPECT_EQ(found.routing.experts[own], whole.routing.experts[all]);
      if (!whole.routing.kept.empty()) {
        EXPECT_EQ(found.routing.kept[own], whole.routing.kept[all]) << tokens.numbers[t];
      }
    }
  }
  EXPECT_EQ(found.routing.tokens_per_expert, whole.routing.tokens_per_expert);
  EXPECT_EQ(found.routing.dropped_per_expert, whole.routing.dropped_per_expert);
  EXPECT_EQ(found.routing.balance_counts, whole.routing.balance_counts);
  EXPECT_NEAR(found.routing.smallest_router_gap, whole.routing.smallest_router_gap, 1e-6);
  EXPECT_NEAR(found.routing.smallest_group_gap, whole.routing.smallest_group_gap, 1e-6);
  EXPECT_NEAR(found.routing.smallest_capacity_gap, whole.routing.smallest_capacity_gap, 1e-6);

  ProcessGroup& group = *tokens.group;
  const Tensor weight_gradient = found.weight_gradient.detach().to(kFloat64);
  group.all_reduce(weight_gradient);
  EXPECT_LT(max(abs(weight_gradient - whole.weight_gradient)).item(), 1e-5);
  ASSERT_EQ(found.routing.aux_loss.defined(), whole.routing.aux_loss.defined());
  if (whole.routing.aux_loss.defined()) {
    const Tensor sum = found.routing.aux_loss.detach().to(kFloat64).reshape({1});
    group.all_reduce(sum);
    EXPECT_NEAR(sum.item(), whole.routing.aux_loss.item(), 1e-6 * sum.item());
  }
}

class RouterLayouts : public ::testing::TestWithParam<std::tuple<Layout, Settings>> {};

TEST_P(RouterLayouts, DecideAndLearnAsOneRank) {
  const auto& [layout, settings] = GetParam();
  const Outcome whole = route(*make_router(settings.json, {}), testing::all_tokens(kRows, kLength));
  // Otherwise rounding, which layouts change, could change decisions.
  ASSERT_GT(std::min(whole.routing.smallest_router_gap, whole.routing.smallest_group_gap), 1e-4);
  ASSERT_GT(whole.routing.smallest_capacity_gap, 1e-5);
  run_parallel(
      layout.ranks,
      {.tensor_model_parallel_size = layout.tensor, .context_parallel_size = layout.context},
      [&, &layout = layout, &settings = settings] {
        const auto router = make_router(settings.json, layout);
        const bool is_partial = router->named_parameters().front().parameter->flags().tp ==
                                nn::TensorParallel::kPartial;
        EXPECT_EQ(is_partial, layout.tensor > 1);
        TransformerConfig config;
        config.sequence_parallel = layout.sequence_parallel;
        const GroupTokens tokens = own_tokens(layout, config);
        expect_same(route(*router, tokens), whole, tokens);
      });
}

std::string layout_and_settings(
    const ::testing::TestParamInfo<std::tuple<Layout, Settings>>& info) {
  return std::get<0>(info.param).name + "_" + std::get<1>(info.param).name;
}

INSTANTIATE_TEST_SUITE_P(All,
                         RouterLayouts,
                         ::testing::Combine(::testing::ValuesIn(kLayouts),
                                            ::testing::ValuesIn(kSettings)),
                         layout_and_settings);

// Ranks may have any tokens in any order, also none.
TEST(RouterGroup, TokensMayBeSpreadUnevenly) {
  for (const Settings& settings : kSettings) {
    const GroupTokens all = testing::all_tokens(kRows, kLength);
    const Outcome whole = route(*make_router(settings.json, {}), all);
    run_parallel(4, {.tensor_model_parallel_size = 4}, [&] {
      const std::vector<int64_t> ends = {0, 30, 30, 47, 48};
      const auto rank = static_cast<size_t>(get_tensor_model_parallel_rank());
      GroupTokens own = all.slice(ends[rank], ends[rank + 1]);
      std::reverse(own.numbers.begin(), own.numbers.end());
      own.group = &get_tensor_and_context_parallel_group();
      expect_same(route(*make_router(settings.json, {}), own), whole, own);
    });
  }
}

TEST(RouterGroup, TokensThatAreMissingOrTwiceThereAreRefused) {
  const auto refused = [&](int64_t begin, int64_t end, const char* why) {
    run_parallel(2, {.tensor_model_parallel_size = 2}, [&] {
      const bool is_first = get_tensor_model_parallel_rank() == 0;
      GroupTokens own =
          testing::all_tokens(kRows, kLength).slice(is_first ? 0 : begin, is_first ? 24 : end);
      own.group = &get_tensor_and_context_parallel_group();
      const auto router = make_router(kSettings[1].json, {});
      try {
        route(*router, own);
        ADD_FAILURE() << "was not refused";
      } catch (const ValueError& error) {
        EXPECT_THAT(error.what(), Says(why));
      }
    });
  };
  refused(25, 48, "48 ... but its ranks have ... 47");
  refused(23, 47, "two tokens have number 23");
}

}  // namespace
}  // namespace tapestry
