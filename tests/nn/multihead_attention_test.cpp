#include "nn/layers/multihead_attention.h"

#include <cmath>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/index.h"
#include "autograd/ops/indexing.h"
#include "autograd/ops/matmul.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/engine.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tape/gradcheck.h"
#include "autograd/tensor/rank_context.h"
#include "tests/autograd/ops/expect_close.h"
#include "tests/nn/nn_test_util.h"

namespace tapestry::nn {
namespace {

using indexing::Slice;

// sin(0), sin(k), sin(2 k), ..: numbers that are the same in PyTorch.
Tensor wave(const Shape& shape, double k) {
  return sin(arange(0.0, static_cast<double>(shape.numel()), 1, kFloat64) * k).reshape(shape);
}

void expect_values(const Tensor& actual, const std::vector<double>& expected) {
  expect_close(actual, tensor(expected, actual.shape()), 1e-13);
}

// The layer, the inputs and the masks of a run of PyTorch 1.13, whose results the tests hold.
class MultiheadAttentionTest : public ::testing::Test {
 protected:
  MultiheadAttentionTest() {
    layer.load_state_dict({{"in_proj_weight", wave({12, 4}, 1)},
                           {"in_proj_bias", wave({12}, 2)},
                           {"out_proj.weight", wave({4, 4}, 3)},
                           {"out_proj.bias", wave({4}, 0.5)}});
    padding.index_put_({0, 4}, 1.0);
    padding.index_put_({1, Slice(3)}, 1.0);
    pairs.index_put_({0, 1}, 1.0);
    pairs.index_put_({2, 0}, 1.0);
    per_head.index_put_({1, 0, 0}, 1.0);
    per_head.index_put_({2, 1, 2}, 1.0);
  }

  MultiheadAttention layer{4, 2, {.dtype = kFloat64}};
  Tensor q = wave({2, 3, 4}, 0.7);
  Tensor k = wave({2, 5, 4}, 0.9);
  Tensor v = wave({2, 5, 4}, 1.1);
  Tensor padding = zeros({2, 5}, kBool);
  Tensor pairs = zeros({3, 5}, kBool);
  Tensor per_head = zeros({4, 3, 5}, kBool);
};

TEST_F(MultiheadAttentionTest, AgreesWithPyTorch) {
  AttentionMasks masks{.key_padding_mask = padding, .attn_mask = pairs};
  const std::vector<double> expected = {
      -1.53491440685766,  -4.46643746474977,  -5.97078675779209,  -5.55374333804011,
      0.163292989242934,  0.246955875544428,  0.285837104648562,  0.292216950907132,
      -0.772059553015785, -1.36503207254787,  -1.49937517594622,  -1.1087120013161,
      -0.5720657145697,   -0.35060595382023,  0.0126859778676042, 0.428779460939084,
      -0.808959083473287, -2.35224444494374,  -3.12860178260062,  -2.87115827231547,
      0.312055504478185,  -0.262022609569219, -0.721932429732324, -0.899625186133844};
  // Fused, and with the weights in memory.
  q.set_requires_grad();
  for (const bool need_weights : {false, true}) {
    masks.need_weights = need_weights;
    const auto [output, weights] = layer(q, k, v, masks);
    expect_values(output, expected);
    expect_values(
        grad(sum(output * wave({2, 3, 4}, 1)), {q})[0],
        {-0.923835612744476, -3.10344515556067,    -2.429761534625,    0.477833635825477,
         -0.341493154865324, -0.00416876909242769, 0.336988363758783,  0.368319949071632,
         -0.414395117251221, -2.02973123360985,    -1.77894181437275,  0.107398504988151,
         -0.925920957510174, 0.352985761514016,    1.30735899927946,   1.0597524023023,
         -0.185678524183249, 1.66201075208974,     1.98165500764671,   0.479374788043581,
         0.162393304354738,  0.171945605895143,    0.0234119103433426, -0.146646587608571});
    EXPECT_EQ(weights.defined(), need_weights);
    if (need_weights) {
      expect_values(weights, {0.069213405551141,
                              0,
                              0.56917335120305,
                              0.361613243245809,
                              0,
                              0.559510113736887,
                              0.00823101160791359,
                              0.361039999792391,
                              0.0712188748628089,
                              0,
                              0,
                              0.299796284850306,
                              0.689623119523632,
                              0.0105805956260621,
                              0,
                              0.680271837010179,
                              0,
                              0.319728162989821,
                              0,
                              0,
                              0.00605594986936768,
                              0.694877794042282,
                              0.29906625608835,
                              0,
                              0,
                              0,
                              0.451286181707241,
                              0.548713818292759,
                              0,
                              0});
    }
  }
  expect_values(layer(q, k, v, {.attn_mask = wave({3, 5}, 0.3)}).output,
                {0.614717198446952,  2.39963469091503,   3.46750597590465,   3.50926588030731,
                 0.252946021140799,  0.638257535706742,  0.856586982723828,  0.864174378864617,
                 0.556828307255618,  2.19946257729341,   3.18756280608108,   3.23697568977745,
                 -0.422161936823616, -0.260842764858845, 0.0142762448285541, 0.341700178118577,
                 -1.06450673342937,  -3.31889422862549,  -4.50447662598005,  -4.22658335524608,
                 -0.665143514510453, -0.325768636960382, 0.147681914121309,  0.631775854520212});
  const auto [output, weights] =
      layer(q, k, v, {.attn_mask = per_head, .need_weights = true, .average_attn_weights = false});
  expect_values(output,
                {0.606879612728655,  2.545296126967,    3.72117752051717,   3.79172791853347,
                 0.254167125483054,  0.750097270045002, 1.04411868351144,   1.06883338072128,
                 0.631732621418094,  2.52351413937823,  3.65956287891605,   3.70952238766025,
                 -0.640945080961926, -0.74246549730918, -0.579779109820685, -0.179269014885078,
                 -1.11841038576536,  -3.50561209118181, -4.76569818861249,  -4.48073119215711,
                 -0.456033042022449, 0.321036957217058, 1.03019036398721,   1.47438675841121});
  expect_values(layer(q, k, v, {.attn_mask = per_head}).output,
                {0.606879612728655,  2.545296126967,    3.72117752051717,   3.79172791853347,
                 0.254167125483054,  0.750097270045002, 1.04411868351144,   1.06883338072128,
                 0.631732621418094,  2.52351413937823,  3.65956287891605,   3.70952238766025,
                 -0.640945080961926, -0.74246549730918, -0.579779109820685, -0.179269014885078,
                 -1.11841038576536,  -3.50561209118181, -4.76569818861249,  -4.48073119215711,
                 -0.456033042022449, 0.321036957217058, 1.03019036398721,   1.47438675841121});
  expect_values(weights.index({1, Slice(), 1}),
                {0.00100853979227247, 0.0332399421911553, 0, 0.000723849255479303,
                 0.965027668761093, 0.000178955630972792, 0.850770191150477, 0.00196959589175153,
                 0.0220804291263356, 0.125000828200463});
  expect_values(layer(q, q, q).output,
                {-1.51222577609377,  -3.44116119435646, -4.26310850942422, -3.69695750818023,
                 0.709582800235578,  1.92147127098788,  2.56564018446283,  2.46534326352729,
                 -1.5456363278885,   -3.61282936170919, -4.51942368284739, -3.9578744883802,
                 -0.132607519794555, 0.485783170184389, 0.984808329756658, 1.2330489269623,
                 -1.05588575033596,  -3.68628351261856, -5.13314341246036, -4.92019998424309,
                 0.0159411130510719, 1.73220052805763,  2.93984814025949,  3.28616773623393});
}

TEST_F(MultiheadAttentionTest, CausalAndUnbatchedForms) {
  const Tensor future = logical_not(tril(ones({3, 3}, kBool)));
  const Tensor expected = layer(q, q, q, {.attn_mask = future}).output;
  expect_close(layer(q, q, q, {.is_causal = true}).output, expected, 1e-13);
  expect_close(layer(q, q, q, {.is_causal = true, .need_weights = true}).output, expected, 1e-13);
  const Tensor first = q.select(0, 0);
  const auto [output, weights] =
      layer(first, first, first, {.is_causal = true, .need_weights = true});
  expect_close(output, expected.select(0, 0), 1e-13);
  EXPECT_EQ(weights.shape(), (Shape{3, 3}));
}

TEST_F(MultiheadAttentionTest, AQueryThatSeesNoKeyGetsNothing) {
  const Tensor nobody = ones({2, 5}, kBool);
  k.set_requires_grad();
  for (const bool need_weights : {false, true}) {
    const Tensor output =
        layer(q, k, v, {.key_padding_mask = nobody, .need_weights = need_weights}).output;
    expect_close(output, wave({4}, 0.5).expand({2, 3, 4}), 1e-15);  // the bias alone
    EXPECT_EQ(max(abs(grad(sum(output), {k})[0])).item(), 0);
  }
}

TEST_F(MultiheadAttentionTest, HasDerivativesOfBothOrders) {
  for (const Tensor& t : {q, k, v}) {
    t.set_requires_grad();
  }
  const auto function = [&](const TensorList& in) {
    const AttentionMasks masks{.key_padding_mask = padding, .attn_mask = wave({3, 5}, 0.3)};
    return TensorList{layer(in[0], in[1], in[2], masks).output,
                      layer(in[0], in[1], in[2], {.attn_mask = pairs}).output};
  };
  EXPECT_TRUE(gradcheck(function, {q, k, v})) << gradcheck(function, {q, k, v}).message;
  EXPECT_TRUE(gradgradcheck(function, {q, k, v})) << gradgradcheck(function, {q, k, v}).message;
}

TEST_F(MultiheadAttentionTest, DropoutFallsOnTheWeightsInTraining) {
  MultiheadAttention dropping(4, 2, {.dropout = 0.5, .dtype = kFloat64});
  dropping.load_state_dict(layer.state_dict());
  dropping.eval();
  expect_close(dropping(q, k, v).output, layer(q, k, v).output, 1e-15);
  dropping.train();
  manual_seed(3);
  const Tensor weights =
      dropping(q, k, v, {.need_weights = true, .average_attn_weights = false}).weights;
  const Tensor all_weights =
      layer(q, k, v, {.need_weights = true, .average_attn_weights = false}).weights;
  // Each is 0 or twice what it was.
  const Tensor kept = ne(weights, 0.0);
  expect_close(weights, all_weights * 2 * kept.to(kFloat64), 1e-14);
  EXPECT_NE(all(kept).item(), 1);
  EXPECT_NE(any(kept).item(), 0);
}

// Keys and values of other sizes, against the joined layer that is given them projected.
TEST_F(MultiheadAttentionTest, KeysAndValuesMayHaveSizesOfTheirOwn) {
  MultiheadAttention other(4, 2, {.dtype = kFloat64, .kdim = 3, .vdim = 5});
  const StateDict state = {{"q_proj_weight", wave({4, 4}, 1)},   {"k_proj_weight", wave({4, 3}, 2)},
                           {"v_proj_weight", wave({4, 5}, 1.5)}, {"in_proj_bias", wave({12}, 2)},
                           {"out_proj.weight", wave({4, 4}, 3)}, {"out_proj.bias", wave({4}, 0.5)}};
  other.load_state_dict(state);
  const Tensor same = eye(4, 4, kFloat64);
  layer.load_state_dict({{"in_proj_weight", cat({wave({4, 4}, 1), same, same}, 0)},
                         {"in_proj_bias", wave({12}, 2)},
                         {"out_proj.weight", wave({4, 4}, 3)},
                         {"out_proj.bias", wave({4}, 0.5)}});
  const Tensor keys = wave({2, 5, 3}, 0.9).set_requires_grad();
  const Tensor values = wave({2, 5, 5}, 1.1).set_requires_grad();
  const Tensor key_weight = state.at("k_proj_weight").clone().set_requires_grad();
  const Tensor value_weight = state.at("v_proj_weight").clone().set_requires_grad();
  const auto parameters = other.named_parameters();
  const auto named = [&](const std::string& name) -> Tensor {
    for (const auto& [other_name, parameter] : parameters) {
      if (other_name == name) {
        return *parameter;
      }
    }
    return {};
  };
  for (const bool need_weights : {false, true}) {
    const AttentionMasks masks{
        .key_padding_mask = padding, .attn_mask = pairs, .need_weights = need_weights};
    const Tensor actual = other(q, keys, values, masks).output;
    const Tensor expected =
        layer(q, linear(keys, key_weight), linear(values, value_weight), masks).output;
    expect_close(actual, expected, 1e-13);
    const TensorList gradients =
        grad(sum(actual * wave({2, 3, 4}, 1)),
             {keys, values, named("k_proj_weight"), named("v_proj_weight")});
    const TensorList wanted =
        grad(sum(expected * wave({2, 3, 4}, 1)), {keys, values, key_weight, value_weight});
    for (size_t i = 0; i < wanted.size(); ++i) {
      expect_close(gradients[i], wanted[i], 1e-12);
    }
  }
  expect_close(other(q.select(0, 1), keys.select(0, 1), values.select(0, 1)).output,
               other(q, keys, values).output.select(0, 1), 1e-13);
  const auto function = [&](const TensorList& in) {
    return TensorList{other(in[0], in[1], in[2]).output};
  };
  const TensorList inputs = {wave({1, 2, 4}, 0.7).set_requires_grad(),
                             wave({1, 3, 3}, 0.9).set_requires_grad(),
                             wave({1, 3, 5}, 1.1).set_requires_grad()};
  EXPECT_TRUE(gradcheck(function, inputs)) << gradcheck(function, inputs).message;
  expect_throws<ValueError>([&] { other(q, k, values); },
                            {"key [B, S, 3]", "value [B, S, 5]", "[2, 5, 4]"});
  expect_throws<ValueError>([&] { other(q, keys, values.slice(1, 0, 4)); }, {"[2, 4, 5]"});
  expect_throws<ValueError>([] { MultiheadAttention(4, 2, {.vdim = -1}); }, {"vdim", "-1"});
}

TEST(MultiheadAttention, KeysOfAnotherSizeHaveProjectionsOfTheirOwn) {
  const MultiheadAttention layer(8, 2, {.kdim = 6});
  std::vector<std::string> names;
  for (const auto& [name, parameter] : layer.named_parameters()) {
    names.push_back(concat(name, " ", parameter->shape()));
  }
  EXPECT_THAT(names, ::testing::ElementsAre("q_proj_weight [8, 8]", "k_proj_weight [8, 6]",
                                            "v_proj_weight [8, 8]", "in_proj_bias [24]",
                                            "out_proj.weight [8, 8]", "out_proj.bias [8]"));
  const double bound = std::sqrt(6.0 / 14);
  const double largest = max(abs(layer.state_dict().at("k_proj_weight"))).item();
  EXPECT_LE(largest, bound);
  EXPECT_GT(largest, 0.8 * bound);
  EXPECT_EQ(printed(layer).substr(0, 52), "MultiheadAttention(8, heads=2, kdim=6, vdim=8, bias)");
}

TEST(MultiheadAttention, StartsAsPyTorchDoes) {
  const MultiheadAttention layer(8, 2);
  std::vector<std::string> names;
  for (const auto& [name, parameter] : layer.named_parameters()) {
    names.push_back(
        concat(name, " ", parameter->shape(), parameter->flags().decay ? "" : " no decay"));
  }
  EXPECT_THAT(names,
              ::testing::ElementsAre("in_proj_weight [24, 8]", "in_proj_bias [24] no decay",
                                     "out_proj.weight [8, 8]", "out_proj.bias [8] no decay"));
  EXPECT_EQ(max(abs(layer.state_dict().at("in_proj_bias"))).item(), 0);
  EXPECT_EQ(max(abs(layer.state_dict().at("out_proj.bias"))).item(), 0);
  const double bound = std::sqrt(6.0 / 32);
  const double largest = max(abs(layer.state_dict().at("in_proj_weight"))).item();
  EXPECT_LE(largest, bound);
  EXPECT_GT(largest, 0.8 * bound);
  EXPECT_EQ(MultiheadAttention(8, 2, {.bias = false}).parameters().size(), 2U);
  EXPECT_EQ(printed(layer),
            "MultiheadAttention(8, heads=2, bias)\n  (out_proj): Linear(in=8, out=8, bias)\n");
}

TEST_F(MultiheadAttentionTest, MistakesAreNamed) {
  expect_throws<ValueError>([] { MultiheadAttention(6, 4); }, {"embed_dim 6", "num_heads 4"});
  expect_throws<ValueError>([] { MultiheadAttention(4, 2, {.dropout = 1}); }, {"dropout", "1"});
  expect_throws<ValueError>([&] { layer(q, k, q); }, {"[2, 3, 4]", "[2, 5, 4]"});
  expect_throws<ValueError>(
      [&] {
        layer(q, k, v, {.key_padding_mask = zeros({2, 3}, kBool)});
      },
      {"key_padding_mask must have the shape [2, 5]"});
  expect_throws<ValueError>(
      [&] {
        layer(q, k, v, {.attn_mask = zeros({2, 3, 5}, kBool)});
      },
      {"attn_mask must have the shape [4, 3, 5]"});
  expect_throws<TypeError>(
      [&] {
        layer(q, k, v, {.attn_mask = zeros({3, 5}, kInt64)});
      },
      {"attn_mask must be bool or floating"});
}

}  // namespace
}  // namespace tapestry::nn
