// SGD, Adam and AdamW against their formulas in double precision.
#include <cmath>
#include <limits>
#include <vector>

#include "autograd/tensor/factory.h"
#include "optim/adam.h"
#include "optim/sgd.h"
#include "tests/nn/nn_test_util.h"

namespace tapestry::optim {
namespace {

const std::vector<double> kStart = {1.5, -0.25, 0.0, 3.0};
const std::vector<std::vector<double>> kGradients = {
    {0.5, -1.0, 0.25, 0.0}, {-0.125, 2.0, 0.25, 1e-4}, {1.0, 1.0, -4.0, 0.0}, {0.3, 0.2, 0.1, -7}};

/// Runs the optimizer that `make` makes and a formula p = rule(i, t, p, g) side by side.
template <class Make, class Rule>
void expect_follows(DType dtype, double bound, const Make& make, Rule rule) {
  const Tensor p = tensor(kStart, {4}).to(dtype);
  p.set_requires_grad();
  const auto optimizer = make(p);
  std::vector<double> expected = kStart;
  for (size_t t = 0; t < kGradients.size(); ++t) {
    p.set_grad(tensor(kGradients[t], {4}).to(dtype));
    optimizer->step();
    const std::vector<double> actual = p.to_vector<double>();
    for (size_t i = 0; i < expected.size(); ++i) {
      expected[i] = rule(i, static_cast<int>(t) + 1, expected[i], kGradients[t][i]);
      EXPECT_NEAR(actual[i], expected[i], bound) << "element " << i << ", step " << t + 1;
    }
  }
}

struct Precision {
  DType dtype;
  double bound;
};
const Precision kPrecisions[] = {{kFloat32, 2e-6}, {kFloat64, 1e-14}};

void check_sgd(SGDOptions o) {
  for (const auto& [dtype, bound] : kPrecisions) {
    std::vector<double> buffer(4);
    expect_follows(
        dtype, bound, [&](const Tensor& p) { return std::make_unique<SGD>(TensorList{p}, o); },
        [&](size_t i, int t, double p, double g) {
          g += o.weight_decay * p;
          buffer[i] = t == 1 ? g : o.momentum * buffer[i] + (1 - o.dampening) * g;
          return p - o.lr * (o.momentum == 0 ? g
                             : o.nesterov    ? g + o.momentum * buffer[i]
                                             : buffer[i]);
        });
  }
}

TEST(SGD, FollowsItsFormula) {
  check_sgd({.lr = 0.1});
  check_sgd({.lr = 0.1, .weight_decay = 0.3});
  check_sgd({.lr = 0.1, .momentum = 0.9});
  check_sgd({.lr = 0.1, .momentum = 0.9, .dampening = 0.5, .weight_decay = 0.01});
  check_sgd({.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true});
}

template <class Optimizer>
void check_adam(AdamOptions o, bool decoupled) {
  for (const auto& [dtype, bound] : kPrecisions) {
    std::vector<double> m(4);
    std::vector<double> v(4);
    expect_follows(
        dtype, bound,
        [&](const Tensor& p) { return std::make_unique<Optimizer>(TensorList{p}, o); },
        [&](size_t i, int t, double p, double g) {
          if (decoupled) {
            p *= 1 - o.lr * o.weight_decay;
          } else {
            g += o.weight_decay * p;
          }
          m[i] = o.beta1 * m[i] + (1 - o.beta1) * g;
          v[i] = o.beta2 * v[i] + (1 - o.beta2) * g * g;
          const double m_hat = m[i] / (1 - std::pow(o.beta1, t));
          const double v_hat = v[i] / (1 - std::pow(o.beta2, t));
          return p - o.lr * m_hat / (std::sqrt(v_hat) + o.eps);
        });
  }
}

TEST(Adam, FollowsItsFormula) {
  check_adam<Adam>({.lr = 0.1}, false);
  check_adam<Adam>({.lr = 0.1, .beta1 = 0.8, .beta2 = 0.95, .eps = 0.1, .weight_decay = 0.3},
                   false);
  check_adam<Adam>({.lr = 0.1, .beta1 = 0, .beta2 = 0}, false);
}

TEST(AdamW, FollowsItsFormula) {
  check_adam<AdamW>({.lr = 0.1}, true);
  check_adam<AdamW>({.lr = 0.1, .beta1 = 0.8, .beta2 = 0.95, .eps = 0.1, .weight_decay = 0.3},
                    true);
}

TEST(AdamW, ByHand) {
  // First step: m_hat = g, v_hat = g^2, so the update is lr sign(g) after the decay.
  const Tensor p = tensor({2, -1});
  p.set_requires_grad();
  AdamW adam({p}, {.lr = 0.5, .eps = 0, .weight_decay = 0.5});
  p.set_grad(tensor({4, 0.25}));
  adam.step();
  EXPECT_THAT(values(p), ::testing::Pointwise(::testing::FloatNear(1e-6F), {1.0F, -1.25F}));
  EXPECT_EQ(adam.type_name(), "AdamW");
}

TEST(SGD, ByHand) {
  const Tensor p = tensor({2});
  p.set_requires_grad();
  SGD sgd({p}, {.lr = 0.5, .momentum = 0.5, .nesterov = true});
  p.set_grad(tensor({1}));
  sgd.step();
  EXPECT_EQ(p.item(), 2 - 0.5 * (1 + 0.5 * 1));
  sgd.step();  // buffer 0.5 * 1 + 1 = 1.5
  EXPECT_EQ(p.item(), 1.25 - 0.5 * (1 + 0.5 * 1.5));
  EXPECT_EQ(sgd.state("0.0").at("momentum_buffer").item(), 1.5);
  EXPECT_TRUE(SGD({p}, {}).state_dict().empty());
}

TEST(SGD, RefusesBadSettings) {
  const TensorList p = {tensor({1})};
  const auto bad = [&](SGDOptions o, const std::string& key) {
    expect_throws<ValueError>([&] { SGD(p, o); }, {"SGD", key});
  };
  bad({.lr = -1}, "lr");
  bad({.momentum = -0.5}, "momentum");
  bad({.momentum = std::numeric_limits<double>::quiet_NaN()}, "momentum");
  bad({.dampening = -0.5}, "dampening");
  bad({.weight_decay = -0.5}, "weight_decay");
  bad({.nesterov = true}, "momentum 0");
  bad({.momentum = 0.9, .dampening = 0.1, .nesterov = true}, "dampening 0.1");
}

TEST(Adam, RefusesBadSettings) {
  const TensorList p = {tensor({1})};
  const auto bad = [&](AdamOptions o, const std::string& key) {
    expect_throws<ValueError>([&] { Adam(p, o); }, {"Adam", key});
    expect_throws<ValueError>([&] { AdamW(p, o); }, {"Adam", key});
  };
  bad({.lr = -1}, "lr");
  bad({.beta1 = 1}, "betas");
  bad({.beta1 = -0.1}, "betas");
  bad({.beta2 = 1.5}, "1.5");
  bad({.beta2 = std::numeric_limits<double>::quiet_NaN()}, "betas");
  bad({.eps = -1e-8}, "eps");
  bad({.weight_decay = -0.1}, "weight_decay");
}

}  // namespace
}  // namespace tapestry::optim
