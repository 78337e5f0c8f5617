// A layer with a mixture of experts, on one process, against the plain sum over its experts.
#include "parallel_core/transformer/moe/moe_layer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "autograd/ops/ops.h"
#include "autograd/tape/engine.h"
#include "parallel_core/transformer/activation_recorder.h"
#include "parallel_core/transformer/moe/aux_loss.h"
#include "tests/parallel_core/transformer/moe/mixture_testing.h"

namespace tapestry {
namespace {

using testing::distance;
using testing::jitter;
using testing::largest_distance;
using testing::mixture_config;
using testing::Overrides;
using testing::State;

constexpr int64_t kBatchRows = 2;
constexpr int64_t kSequence = 8;  // of each row

struct MixtureCase {
  std::string name;
  Overrides overrides = {};
  std::function<void(MoEConfig&)> change = nullptr;
};
std::ostream& operator<<(std::ostream& out, const MixtureCase& c) { return out << c.name; }

// The model's first layer alone: its mixture, moved off its start values.
std::unique_ptr<MoELayer> make_layer(const AllConfig& config, bool sequence_first = false) {
  auto layer = std::make_unique<MoELayer>(config.model_config, 1, sequence_first);
  jitter(*layer, 0.2);
  return layer;
}

Tensor mixture_input(const AllConfig& config, uint64_t seed = 5) {
  return normal(0, 1, {kBatchRows, kSequence, config.model_config.hidden_size}, kFloat32,
                RandomKey{seed, 1, 0});
}

// The layer's logical tensors as leaves of a graph of their own, in float64.
State leaves_of(const nn::Module& layer) {
  State out;
  for (const auto& entry : layer.named_parameters()) {
    for (const nn::LogicalTensor& logical : entry.parameter->logical()) {
      const std::string name = logical.name.substr(std::string("layers.0.moe.").size());
      Tensor leaf = dense_copy(logical.view_of(entry.parameter->detach()).to(kFloat64))
                        .view(logical.shape)
                        .detach();
      leaf.set_requires_grad();
      out.emplace(name, leaf);
    }
  }
  return out;
}

Tensor plain_mlp(const State& w,
                 const std::string& prefix,
                 const std::string& act,
                 const Tensor& x) {
  const auto product = [&](const std::string& name, const Tensor& in) {
    const Tensor y = matmul(in, w.at(prefix + name + ".weight").transpose(0, 1));
    const auto bias = w.find(prefix + name + ".bias");
    return bias == w.end() ? y : y + bias->second;
  };
  const Tensor up = product("w_up", x);
  const Tensor inner =
      act == "swiglu" ? composed_silu(product("w_gate", x)) * up : composed_gelu(up);
  return product("w_down", inner);
}

// Gates [T, E] as the layer is to have them: every number is computed in float64 from x, and only
// the choice of the k largest logits is made outside of the graph.
Tensor plain_gates(const State& w, const MoEConfig& moe, const Tensor& x) {
  const Tensor logits = matmul(x, w.at("router.weight").transpose(0, 1));
  const std::vector<double> values = logits.to_vector<double>();
  const int64_t experts = moe.num_experts;
  Tensor chosen = zeros({x.size(0), experts}, kFloat64);
  for (int64_t t = 0; t < x.size(0); ++t) {
    std::vector<int64_t> order(static_cast<size_t>(experts));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return values[static_cast<size_t>(t * experts + a)] >
             values[static_cast<size_t>(t * experts + b)];
    });
    for (int64_t j = 0; j < moe.moe_router_topk; ++j) {
      chosen.data<double>()[t * experts + order[static_cast<size_t>(j)]] = 1;
    }
  }
  const Tensor e = exp(logits) * chosen;
  Tensor gates = e / sum(e, {-1}, /*keepdim=*/true);
  if (!moe.moe_expert_capacity_factor) {
    return gates;
  }
  // Each expert keeps its largest gates.
  const auto tokens = static_cast<double>(x.size(0));
  const auto capacity = static_cast<int64_t>(
      std::min(tokens, std::ceil(tokens * static_cast<double>(moe.moe_router_topk) /
                                 static_cast<double>(experts) * *moe.moe_expert_capacity_factor)));
  const std::vector<double> g = gates.to_vector<double>();
  Tensor kept = zeros({x.size(0), experts}, kFloat64);
  for (int64_t i = 0; i < experts; ++i) {
    std::vector<int64_t> order(static_cast<size_t>(x.size(0)));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return g[static_cast<size_t>(a * experts + i)] > g[static_cast<size_t>(b * experts + i)];
    });
    for (int64_t j = 0; j < capacity; ++j) {
      kept.data<double>()[order[static_cast<size_t>(j)] * experts + i] = 1;
    }
  }
  return gates * kept;
}

Tensor plain_mixture(const State& w, const TransformerConfig& config, const Tensor& x) {
  const Tensor gates = plain_gates(w, config.moe, x);
  Tensor out = zeros(x.shape(), kFloat64);
  for (int64_t e = 0; e < config.moe.num_experts; ++e) {
    const std::string prefix = concat("experts.", e, ".");
    out = out + gates.slice(1, e, e + 1) * plain_mlp(w, prefix, config.hidden_act, x);
  }
  if (config.moe.moe_shared_expert_intermediate_size) {
    const Tensor shared = plain_mlp(w, "shared_expert.", config.hidden_act, x);
    out =
        out + (config.moe.use_shared_expert_gating
                   ? sigmoid(matmul(x, w.at("shared_expert_gate.weight").transpose(0, 1))) * shared
                   : shared);
  }
  return out;
}

const Overrides kSwiglu = {"model_config.hidden_act=swiglu", "model_config.add_bias_linear=False"};

std::vector<MixtureCase> mixture_cases() {
  const auto shared = [](MoEConfig& moe) { moe.moe_shared_expert_intermediate_size = 20; };
  return {
      {"gelu_with_biases"},
      {"swiglu", kSwiglu},
      {"elementary_kernels", testing::joined(kSwiglu, {"model_config.use_fused_kernels=False"})},
      {"all_experts", kSwiglu, [](MoEConfig& moe) { moe.moe_router_topk = 4; }},
      {"capacity", kSwiglu, [](MoEConfig& moe) { moe.moe_expert_capacity_factor = 0.75; }},
      {"shared_expert", {}, shared},
      {"gated_shared_expert", kSwiglu,
       [=](MoEConfig& moe) {
         shared(moe);
         moe.use_shared_expert_gating = true;
       }},
      {"overlapped_shared_expert", kSwiglu,
       [=](MoEConfig& moe) {
         shared(moe);
         moe.use_shared_expert_gating = true;
         moe.moe_shared_expert_overlap = true;
       }},
  };
}

class MixtureCases : public ::testing::TestWithParam<MixtureCase> {};
INSTANTIATE_TEST_SUITE_P(All,
                         MixtureCases,
                         ::testing::ValuesIn(mixture_cases()),
                         [](const auto& info) { return info.param.name; });

TEST_P(MixtureCases, IsTheSumOverTheExperts) {
  const AllConfig config = mixture_config(GetParam().overrides, GetParam().change);
  const auto layer = make_layer(config);
  Tensor x = mixture_input(config);
  x.set_requires_grad();
  const Tensor dy = mixture_input(config, 6);
  const OutputAndBias found = layer->forward(x);
  EXPECT_FALSE(found.bias.defined());
  backward(std::array{found.output}, std::array{dy});

  State leaves = leaves_of(*layer);
  Tensor rows = x.detach().to(kFloat64).reshape({kBatchRows * kSequence, x.size(2)});
  rows.set_requires_grad();
  const Tensor expected = plain_mixture(leaves, config.model_config, rows);
  backward(std::array{expected}, std::array{dy.to(kFloat64).reshape(rows.shape())});

  EXPECT_LE(distance(found.output, expected.reshape(x.shape())), 1e-6);
  EXPECT_LE(distance(x.grad(), rows.grad().reshape(x.shape())), 2e-6);
  State gradients;
  State plain;
  for (const auto& entry : layer->named_parameters()) {
    for (const nn::LogicalTensor& logical : entry.parameter->logical()) {
      ASSERT_TRUE(entry.parameter->grad().defined()) << entry.name;
      gradients.emplace(logical.name,
                        dense(logical.view_of(entry.parameter->grad())).view(logical.shape));
      const Tensor& leaf = leaves.at(logical.name.substr(std::string("layers.0.moe.").size()));
      plain.emplace(logical.name, leaf.grad().defined() ? leaf.grad() : zeros(logical.shape));
    }
  }
  testing::expect_states_close(gradients, plain, 1e-5);
}

TEST_P(MixtureCases, SequenceFirstIsTheSame) {
  const AllConfig config = mixture_config(GetParam().overrides, GetParam().change);
  const auto layer = make_layer(config);
  const auto sequence_first = make_layer(config, true);
  const Tensor x = mixture_input(config);
  const Tensor y = layer->forward(x).output;
  const Tensor z = sequence_first->forward(dense(x.transpose(0, 1))).output;
  EXPECT_LE(distance(dense(z.transpose(0, 1)), y), 1e-6);
}

TEST(MoELayer, IdleExpertsHaveZeroGradients) {
  const AllConfig config = mixture_config(kSwiglu);
  const auto layer = make_layer(config);
  // The first expert is never, the second and third are always chosen.
  for (const auto& entry : layer->named_parameters()) {
    if (entry.name == "router.weight") {
      copy_values(zeros(entry.parameter->shape()), *entry.parameter);
      auto* w = entry.parameter->data<float>();
      const int64_t h = entry.parameter->size(1);
      w[0] = -1;
      w[h] = 1;
      w[2 * h] = 0.5F;
      w[3 * h] = -0.5F;
    }
  }
  Tensor x = mixture_input(config);
  for (int64_t i = 0; i < kBatchRows * kSequence; ++i) {
    x.data<float>()[i * x.size(2)] = 1;
  }
  const Tensor y = layer->forward(x).output;
  backward(std::array{y}, std::array{x});
  for (const auto& entry : layer->named_parameters()) {
    if (!entry.name.starts_with("experts.")) {
      continue;
    }
    const Tensor gradient = entry.parameter->grad();
    ASSERT_TRUE(gradient.defined()) << entry.name;
    EXPECT_EQ(testing::largest(dense(gradient.select(0, 0))), 0) << entry.name;
    EXPECT_GT(testing::largest(dense(gradient.select(0, 1))), 0) << entry.name;
    EXPECT_EQ(testing::largest(dense(gradient.select(0, 3))), 0) << entry.name;
  }
}

TEST(MoELayer, OneTokenIsEnough) {
  const AllConfig config = mixture_config(kSwiglu);
  const auto layer = make_layer(config);
  Tensor x = dense_copy(mixture_input(config).slice(0, 0, 1).slice(1, 0, 1));
  const Tensor y = layer->forward(x).output;
  const State leaves = leaves_of(*layer);
  const Tensor expected =
      plain_mixture(leaves, config.model_config, x.to(kFloat64).reshape({1, x.size(2)}));
  EXPECT_LE(distance(y, expected.reshape(x.shape())), 1e-6);
}

TEST(MoELayer, CountsWhatItTrainsOn) {
  const AllConfig config =
      mixture_config(kSwiglu, [](MoEConfig& moe) { moe.moe_expert_capacity_factor = 0.5; });
  const auto layer = make_layer(config);
  const Tensor x = mixture_input(config);
  layer->eval();
  layer->forward(x);
  EXPECT_THAT(layer->counts().tokens_per_expert, ::testing::IsEmpty());
  layer->train();
  layer->forward(x);
  const MoECounts once = layer->counts();
  EXPECT_EQ(
      std::accumulate(once.tokens_per_expert.begin(), once.tokens_per_expert.end(), int64_t{0}),
      2 * kBatchRows * kSequence);
  for (size_t e = 0; e < once.tokens_per_expert.size(); ++e) {
    EXPECT_EQ(once.dropped_per_expert[e], std::max<int64_t>(once.tokens_per_expert[e] - 4, 0));
  }
  layer->forward(x);
  for (size_t e = 0; e < once.tokens_per_expert.size(); ++e) {
    EXPECT_EQ(layer->counts().tokens_per_expert[e], 2 * once.tokens_per_expert[e]);
  }
}

TEST(MoELayer, InjectsItsBalanceLoss) {
  const AllConfig config = mixture_config(kSwiglu, [](MoEConfig& moe) {
    moe.balance_losses = {{"aux_loss", 0.1}};
  });
  const auto layer = make_layer(config);
  Tensor x = mixture_input(config);
  aux_loss_scale() = 8;
  const Tensor y = layer->forward(x).output;
  aux_loss_scale() = 1;
  backward(std::array{y}, std::array{zeros(y.shape())});
  // 8 * 0.1 * E * sum_e f_e P_e, in float64.
  State leaves = leaves_of(*layer);
  const Tensor rows = x.to(kFloat64).reshape({kBatchRows * kSequence, x.size(2)});
  const Tensor scores = softmax(matmul(rows, leaves.at("router.weight").transpose(0, 1)), -1);
  Tensor share = zeros({4}, kFloat64);
  for (int64_t e = 0; e < 4; ++e) {
    share.data<double>()[e] =
        static_cast<double>(layer->counts().tokens_per_expert[static_cast<size_t>(e)]) /
        (2 * kBatchRows * kSequence);
  }
  const Tensor loss = 0.1 * 4 * sum(share * mean(scores, {0}));
  EXPECT_NEAR(layer->counts().aux_loss, loss.item(), 1e-7);
  backward(std::array{loss}, std::array{scalar(8, kFloat64)});
  for (const auto& entry : layer->named_parameters()) {
    if (entry.name == "router.weight") {
      EXPECT_LE(distance(entry.parameter->grad(), leaves.at("router.weight").grad()), 1e-5);
    } else {
      EXPECT_EQ(testing::largest(entry.parameter->grad()), 0) << entry.name;
    }
  }
}

TEST(MoELayer, ReportsLogitsAndGates) {
  const AllConfig config =
      mixture_config(kSwiglu, [](MoEConfig& moe) { moe.moe_expert_capacity_factor = 0.75; });
  const auto layer = make_layer(config);
  const Tensor x = mixture_input(config);
  ActivationRecorder recorder;
  layer->forward(x);
  const State leaves = leaves_of(*layer);
  const Tensor rows = x.to(kFloat64).reshape({kBatchRows * kSequence, x.size(2)});
  const Tensor gates = plain_gates(leaves, config.model_config.moe, rows).slice(0, 0, kSequence);
  const Tensor found = recorder.values().at("layers.0.moe.gates");
  ASSERT_EQ(found.shape(), (Shape{1, kSequence, 4}));
  EXPECT_LE(distance(found, dense(gates).reshape(found.shape())), 1e-6);
  const Tensor logits =
      matmul(rows, leaves.at("router.weight").transpose(0, 1)).slice(0, 0, kSequence);
  EXPECT_LE(distance(recorder.values().at("layers.0.moe.router_logits"),
                     dense(logits).reshape(found.shape())),
            1e-6);
}

}  // namespace
}  // namespace tapestry
