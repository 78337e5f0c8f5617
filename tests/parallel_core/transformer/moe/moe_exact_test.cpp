// Mixtures in exact mode: the same bits on any layout, for any division into micro-batches.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "autograd/kernels/machine/cpu.h"
#include "autograd/kernels/machine/exact.h"
#include "autograd/ops/ops.h"
#include "parallel_core/transformer/moe/aux_loss.h"
#include "parallel_core/transformer/moe/moe_layer.h"
#include "parallel_core/transformer/moe/token_leaves.h"
#include "tests/parallel_core/parallel_testing.h"
#include "tests/parallel_core/transformer/moe/mixture_testing.h"

namespace tapestry::moe_exact_test {
namespace {

using testing::joined;
using testing::mixture_config;
using testing::Overrides;
using testing::run_parallel;

constexpr int64_t kSamples = 4;
constexpr int64_t kHidden = 32;

struct ExactLayout {
  std::string name;
  int ranks = 1;
  ModelParallelSizes sizes = {};
  Overrides overrides = {};
  int64_t rows = kSamples;  // of a micro-batch
  int64_t tokens = 32;      // of a sample
  bool shared_expert = false;
};
std::ostream& operator<<(std::ostream& out, const ExactLayout& layout) {
  return out << layout.name;
}

std::vector<ExactLayout> exact_layouts() {
  using Sizes = ModelParallelSizes;
  const Overrides sequence = {"parallel_config.sequence_parallel=True"};
  return {
      {"micro_batches_of_2", 1, {}, {}, 2},
      {"micro_batches_of_1", 1, {}, {}, 1},
      {"dp2_ep2", 2, Sizes{.expert_model_parallel_size = 2}, {}, 2},
      {"dp4_ep4", 4, Sizes{.expert_model_parallel_size = 4}, {}, 1},
      {"dp4_ep2", 4, Sizes{.expert_model_parallel_size = 2}, {}, 1},
      {"dp2_etp2", 2, Sizes{.expert_tensor_parallel_size = 2}, {}, 1},
      {"dp4_ep2_etp2",
       4,
       Sizes{.expert_model_parallel_size = 2, .expert_tensor_parallel_size = 2},
       {},
       1},
      {"dp4_etp4", 4, Sizes{.expert_tensor_parallel_size = 4}, {}, 1},
      {"tp2", 2, Sizes{.tensor_model_parallel_size = 2}, {}, 4},
      {"tp2_etp1_ep2",
       2,
       Sizes{.tensor_model_parallel_size = 2,
             .expert_model_parallel_size = 2,
             .expert_tensor_parallel_size = 1},
       {},
       1},
      {"tp4_sp_etp1", 4, Sizes{.tensor_model_parallel_size = 4, .expert_tensor_parallel_size = 1},
       sequence, 2},
      {"cp2_tp2_sp_ep2", 4,
       Sizes{.tensor_model_parallel_size = 2,
             .context_parallel_size = 2,
             .expert_model_parallel_size = 2},
       sequence, 4},
      // Each token is a leaf where a sequence has no sixteen equal runs.
      {"ep2_of_24_tokens", 2, Sizes{.expert_model_parallel_size = 2}, {}, 2, 24},
      {"tp2_sp_etp1_of_24_tokens", 2,
       Sizes{.tensor_model_parallel_size = 2, .expert_tensor_parallel_size = 1}, sequence, 1, 24},
  };
}

AllConfig exact_config(const ExactLayout& layout, const Overrides& more) {
  const Overrides parallel = {
      concat("model_config.seq_length=", layout.tokens), "model_config.hidden_act=swiglu",
      concat("parallel_config.tensor_model_parallel_size=",
             layout.sizes.tensor_model_parallel_size),
      concat("parallel_config.context_parallel_size=", layout.sizes.context_parallel_size)};
  return mixture_config(joined({parallel, layout.overrides, more}), [&](MoEConfig& moe) {
    moe.balance_losses = {{"seq_aux_loss", 0.02}};
    moe.moe_z_loss_coeff = 0.01;
    moe.moe_ffn_hidden_size = 20;  // leaves of two and three
    moe.moe_router_has_bias = true;
    if (layout.shared_expert) {
      moe.moe_shared_expert_intermediate_size = 24;
      moe.use_shared_expert_gating = true;
    }
  });
}

// What a step of the layer gives, all ranks together.
struct ExactResult {
  std::map<int64_t, float> y;  // by place in [samples, tokens, hidden]
  std::map<int64_t, float> dx;
  std::map<std::string, std::vector<double>> gradients;  // in units
  double aux_loss = 0;
  std::mutex mutex;

  void add_gradient(const nn::LogicalTensor& logical, const Tensor& sums) {
    const Tensor part = dense_copy(logical.view_of(sums));
    const Shape& slice = logical.slice_shape.size() > 0 ? logical.slice_shape : logical.shape;
    auto& all = gradients[logical.name];
    all.resize(static_cast<size_t>(logical.shape.numel()), 0);
    const int64_t columns = slice.size() > 1 ? slice[1] : 1;
    const int64_t all_columns = slice.size() > 1 ? logical.shape[1] : 1;
    const int64_t row = logical.offset.size() > 0 ? logical.offset[0] : 0;
    const int64_t column = logical.offset.size() > 1 ? logical.offset[1] : 0;
    for (int64_t i = 0; i < part.numel(); ++i) {
      const int64_t place = (row + i / columns) * all_columns + column + i % columns;
      all[static_cast<size_t>(place)] += part.data<double>()[i];
    }
  }
};

// The positions that this rank has of each sample.
std::vector<int64_t> own_positions(const AllConfig& config, int64_t tokens) {
  const TensorParallelLayout tensor = tensor_parallel_layout(config.model_config, false);
  const ContextParallelLayout context = context_parallel_layout();
  const int64_t pieces = context.size * (tensor.sequence_axis ? tensor.size : 1);
  const int64_t own = tokens / pieces;
  return group_tokens(nullptr, hidden_positions(context, tensor, own), 1, own, false).numbers;
}

// Runs this rank's micro-batches, and adds what they give to `out`.
void run_step(const ExactLayout& layout, const Overrides& more, ExactResult& out) {
  const ExactScope scope;
  random_context().seed = 7;
  const AllConfig config = exact_config(layout, more);
  MoELayer layer(config.model_config, 1, false);
  for (const auto& entry : layer.named_parameters()) {
    entry.parameter->set_main_grad(zeros(entry.parameter->shape(), kFloat64));
  }
  const bool is_parallel = model_parallel_is_initialized();
  const int64_t ranks = is_parallel ? get_data_parallel_world_size() : 1;
  const int64_t rank = is_parallel ? get_data_parallel_rank() : 0;
  const std::vector<int64_t> positions = own_positions(config, layout.tokens);
  const auto own = static_cast<int64_t>(positions.size());
  const Tensor places = tensor(positions, {own});
  const Shape whole = {kSamples, layout.tokens, kHidden};
  const Tensor x = normal(0, 1, whole, kFloat32, RandomKey{5, 1, 0});
  const Tensor dy = normal(0, 0.1, whole, kFloat32, RandomKey{6, 1, 0});
  const int64_t passes = kSamples / layout.rows;
  aux_loss_parts() = {.loss_scale = 1, .micro_batches = static_cast<double>(passes)};
  for (int64_t pass = rank; pass < passes; pass += ranks) {
    const int64_t first = pass * layout.rows;
    Tensor in = dense_copy(index_select(x.slice(0, first, first + layout.rows), 1, places))
                    .to(precision_of(config.model_config).activation)
                    .detach();
    in.set_requires_grad();
    const Tensor slope = index_select(dy.slice(0, first, first + layout.rows), 1, places);
    const Tensor y = layer(in, LayerPass{}).output;
    sum(y.to(kFloat32) * slope).backward();
    const Tensor values = dense_copy(y.detach().to(kFloat32));
    const Tensor gradient = dense_copy(in.grad().to(kFloat32));
    const std::scoped_lock lock(out.mutex);
    for (int64_t i = 0; i < values.numel(); ++i) {
      const int64_t token = i / kHidden;
      const int64_t place =
          (first + token / own) * layout.tokens + positions[static_cast<size_t>(token % own)];
      const int64_t at = place * kHidden + i % kHidden;
      out.y[at] = values.data<float>()[i];
      out.dx[at] = gradient.data<float>()[i];
    }
  }
  const std::scoped_lock lock(out.mutex);
  out.aux_loss += layer.counts().aux_loss;
  for (const auto& entry : layer.named_parameters()) {
    const nn::ParameterFlags& flags = entry.parameter->flags();
    const bool is_copy = !flags.expert && flags.tp == nn::TensorParallel::kReplicated;
    if (is_copy && is_parallel && get_tensor_model_parallel_rank() > 0) {
      continue;  // the same as rank 0's
    }
    for (const nn::LogicalTensor& logical : entry.parameter->logical()) {
      out.add_gradient(logical, entry.parameter->main_grad());
    }
  }
}

ExactResult& run_alone(const ExactLayout& of, const Overrides& more) {
  static auto& known = *new std::map<std::string, ExactResult>;  // NOLINT(*-owning-memory)
  std::string key = concat(of.tokens, of.shared_expert);
  for (const std::string& text : more) {
    key += text;
  }
  if (known.count(key) == 0) {
    run_step({.name = "one", .tokens = of.tokens, .shared_expert = of.shared_expert}, more,
             known[key]);
  }
  return known[key];
}

void expect_same_bits(const ExactResult& found, const ExactResult& expected) {
  EXPECT_EQ(found.aux_loss, expected.aux_loss);
  EXPECT_TRUE(found.y == expected.y);
  EXPECT_TRUE(found.dx == expected.dx);
  EXPECT_TRUE(
      std::any_of(found.dx.begin(), found.dx.end(), [](const auto& x) { return x.second != 0; }));
  ASSERT_EQ(found.gradients.size(), expected.gradients.size());
  for (const auto& [name, sums] : expected.gradients) {
    EXPECT_TRUE(found.gradients.at(name) == sums) << name;
    double largest = 0;
    for (const double units : sums) {
      largest = std::max(largest, std::abs(units));
    }
    EXPECT_GT(largest, 0) << name;
  }
}

class ExactMixtures : public ::testing::TestWithParam<ExactLayout> {};
INSTANTIATE_TEST_SUITE_P(All,
                         ExactMixtures,
                         ::testing::ValuesIn(exact_layouts()),
                         [](const auto& info) { return info.param.name; });

void expect_layout_changes_nothing(const ExactLayout& layout, const Overrides& more) {
  ExactResult found;
  if (layout.ranks == 1) {
    run_step(layout, more, found);
  } else {
    run_parallel(layout.ranks, layout.sizes, [&] { run_step(layout, more, found); });
  }
  expect_same_bits(found, run_alone(layout, more));
}

TEST_P(ExactMixtures, SameBitsInFloat32) { expect_layout_changes_nothing(GetParam(), {}); }

TEST_P(ExactMixtures, SameBitsInBFloat16) {
  expect_layout_changes_nothing(GetParam(), {"model_config.compute_dtype=bfloat16"});
}

TEST_P(ExactMixtures, SameBitsWithBiases) {
  expect_layout_changes_nothing(GetParam(), {"model_config.mlp_has_bias=True"});
}

TEST_P(ExactMixtures, SameBitsWithASharedExpert) {
  ExactLayout layout = GetParam();
  layout.shared_expert = true;
  expect_layout_changes_nothing(layout, {"model_config.compute_dtype=bfloat16"});
}

TEST(ExactMixture, LeavesAreRunsOfASequence) {
  GroupTokens tokens = {.total = 64, .rows = 2, .seq_length = 32, .numbers = {34, 35, 0, 1}};
  const TokenLeaves leaves = token_leaves(tokens);
  EXPECT_EQ(leaves.count, 2);
  EXPECT_EQ(leaves.of_token, (std::vector<int32_t>{0, 0, 1, 1}));
  EXPECT_EQ(experts_and_leaves(std::vector<int32_t>{3, 0, 1, 2}, 1, leaves),
            (std::vector<int32_t>{6, 0, 3, 5}));
  tokens.numbers = {34, 35, 0};
  EXPECT_THROW(token_leaves(tokens), ValueError);
  tokens = {.total = 24, .rows = 1, .seq_length = 24, .numbers = {0, 1}};
  EXPECT_EQ(token_leaves(tokens).count, 0);
}

TEST(ExactMixture, ProductsCheckTheirRows) {
  const ExactScope scope;
  const Tensor x = ones({4, 6});
  const Tensor weight = ones({2, 5, 6});
  EXPECT_EQ(expert_product(x, weight, {{1, 4}, {1, 4}}, {}).shape(), (Shape{4, 5}));
  EXPECT_THROW(expert_product(ones({4, 5}), weight, {{1, 4}}, {}), ValueError);
  EXPECT_THROW(expert_product(x, weight, {{1, 3}}, {}), ValueError);
  EXPECT_THROW(expert_product(x, weight, {{1, 4}, {1, 3}}, {}), ValueError);
  EXPECT_THROW(add_expert_bias(x, ones({2, 5}), {0, 0, 1, 1}), ValueError);
  EXPECT_THROW(add_expert_bias(x, ones({2, 6}), {0, 1, 1}), ValueError);
}

TEST(ExactMixture, SameBitsAtLevelsWithFusedMultiplyAdd) {
  if (cpu_level() < CpuLevel::kAvx512) {
    GTEST_SKIP() << "the processor has no AVX-512";
  }
  const CpuLevel before = cpu_level();
  std::vector<ExactResult> results(2);
  set_cpu_level(CpuLevel::kAvx2);
  run_step({"one"}, {}, results[0]);
  set_cpu_level(CpuLevel::kAvx512);
  run_step({"one"}, {}, results[1]);
  set_cpu_level(before);
  expect_same_bits(results[1], results[0]);
}

}  // namespace
}  // namespace tapestry::moe_exact_test
