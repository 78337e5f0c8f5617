// Masters of 16-bit parameters, and states that are stored in fewer bytes.
#include <cmath>
#include <memory>

#include "autograd/ops/ops.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tape/leaf_state.h"
#include "optim/adam.h"
#include "optim/sgd.h"
#include "tests/nn/nn_test_util.h"

namespace tapestry::optim {
namespace {

constexpr int64_t kSize = 5000;

Tensor start_values() { return normal(0, 1, {kSize}, kFloat32, RandomKey{1, 2, 0}); }
Tensor gradient(int step) {
  return normal(0, 1, {kSize}, kFloat32, RandomKey{3, static_cast<uint64_t>(step), 0});
}

void step(Optimizer& optimizer, const Tensor& parameter, int number) {
  parameter.set_main_grad(gradient(number));
  optimizer.step();
}

AdamOptions adam_options(const StateStorage& storage = {}) {
  return {.lr = 0.01, .weight_decay = 0.1, .storage = storage};
}

std::vector<float> rounded(const Tensor& x, DType dtype) { return values(x.to(dtype)); }

TEST(Master, TrainsA16BitParameterAsAFloat32One) {
  for (const DType dtype : {kBFloat16, kFloat16}) {
    for (const bool adam : {true, false}) {
      const auto make = [&](const Tensor& p) -> std::unique_ptr<Optimizer> {
        if (adam) {
          return std::make_unique<AdamW>(TensorList{p}, adam_options());
        }
        return std::make_unique<SGD>(TensorList{p}, SGDOptions{.lr = 0.01, .momentum = 0.9});
      };
      const Tensor narrow = start_values().to(dtype).set_requires_grad();
      const Tensor whole = narrow.detach().to(kFloat32).set_requires_grad();
      const auto a = make(narrow);
      const auto b = make(whole);
      for (int i = 0; i < 3; ++i) {
        const uint32_t version = narrow.version();
        step(*a, narrow, i);
        step(*b, whole, i);
        EXPECT_GT(narrow.version(), version);
        EXPECT_EQ(values(a->main_param("0.0")), values(whole));
        EXPECT_EQ(values(narrow), rounded(whole, dtype));
      }
      EXPECT_EQ(narrow.dtype(), dtype);
      EXPECT_EQ(a->main_param("0.0").dtype(), kFloat32);
      EXPECT_EQ(b->main_param("0.0").raw(), whole.raw());
    }
  }
}

class Remainders : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Moments,
                         Remainders,
                         ::testing::Values(kFloat32, kBFloat16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST_P(Remainders, TrainAsAFloat32Parameter) {
  const StateStorage moments = {.exp_avg_dtype = GetParam(), .exp_avg_sq_dtype = GetParam()};
  StateStorage split = moments;
  split.store_param_remainders = true;
  const Tensor whole = start_values().set_requires_grad();
  const Tensor held = start_values().set_requires_grad();
  const Tensor handle = held;  // NOLINT(performance-unnecessary-copy-initialization): it follows
  AdamW a({whole}, adam_options(moments));
  AdamW b({held}, adam_options(split));
  b.store_parameter_as("0.0", kBFloat16);
  EXPECT_EQ(handle.dtype(), kBFloat16);
  EXPECT_EQ(values(b.main_param("0.0")), values(whole));  // nothing was lost
  nn::StateDict saved;
  Tensor saved_weight;
  for (int i = 0; i < 6; ++i) {
    step(a, whole, i);
    step(b, held, i);
    EXPECT_EQ(values(b.main_param("0.0")), values(whole));
    EXPECT_EQ(values(held), rounded(whole, kBFloat16));
    for (const char* name : {"exp_avg", "exp_avg_sq"}) {
      EXPECT_EQ(b.state("0.0").at(name).dtype(), kFloat32);
      EXPECT_EQ(values(b.state("0.0").at(name)), values(a.state("0.0").at(name))) << name;
    }
    if (i == 2) {
      for (const auto& [name, tensor] : b.state_dict()) {
        saved.emplace(name, tensor.clone());
      }
      saved_weight = b.main_param("0.0").clone();
    }
  }
  // A resumed run, in this storage and in the plain one.
  for (const bool remainders : {true, false}) {
    const Tensor again = zeros({kSize}).set_requires_grad();
    AdamW c({again}, adam_options(remainders ? split : moments));
    if (remainders) {
      c.store_parameter_as("0.0", kBFloat16);
    }
    c.set_main_param("0.0", saved_weight);
    c.load_state_dict(saved);
    EXPECT_EQ(values(c.main_param("0.0")), values(saved_weight));
    for (int i = 3; i < 6; ++i) {
      step(c, again, i);
    }
    EXPECT_EQ(values(c.main_param("0.0")), values(whole)) << remainders;
  }
}

TEST_P(Remainders, SurviveAStateThatIsTakenAway) {
  const Tensor held = start_values().set_requires_grad();
  AdamW b({held}, adam_options({.exp_avg_sq_dtype = GetParam(), .store_param_remainders = true}));
  b.store_parameter_as("0.0", kBFloat16);
  step(b, held, 0);
  const std::vector<float> before = values(b.main_param("0.0"));
  b.load_state_dict({});
  EXPECT_EQ(b.steps_done("0.0"), 0);
  EXPECT_TRUE(b.state("0.0").empty());
  EXPECT_TRUE(b.state_dict().empty());
  EXPECT_EQ(values(b.main_param("0.0")), before);
}

TEST(Remainders, TakeHalfTheBytesOfAMaster) {
  const auto bytes = [](bool remainders) {
    const int64_t before = memory_stats().current_bytes;
    const Tensor p = zeros({1 << 20}, kBFloat16).set_requires_grad();
    AdamW adam({p}, adam_options({.exp_avg_dtype = kBFloat16,
                                  .exp_avg_sq_dtype = kBFloat16,
                                  .store_param_remainders = remainders}));
    p.set_grad(zeros({1 << 20}, kBFloat16));
    adam.step();
    p.set_grad({});
    return (memory_stats().current_bytes - before) >> 20;
  };
  EXPECT_EQ(bytes(true), 2 + 2 + 2 + 2);
  EXPECT_EQ(bytes(false), 2 + 4 + 2 + 2);
}

TEST(Master, KeepsTheValuesOfAFloat32ParameterThatIsStoredIn16Bits) {
  const Tensor p = start_values().set_requires_grad();
  SGD sgd({p}, {.lr = 0.1});
  sgd.store_parameter_as("0.0", kFloat16);
  EXPECT_EQ(p.dtype(), kFloat16);
  EXPECT_EQ(values(p), rounded(start_values(), kFloat16));
  EXPECT_EQ(values(sgd.main_param("0.0")), values(start_values()));
  sgd.set_main_param("0.0", full({kSize}, 1.0 / 3));
  EXPECT_EQ(sgd.main_param("0.0").at({7}), static_cast<double>(1.0F / 3));
  EXPECT_EQ(values(p), rounded(full({kSize}, 1.0 / 3), kFloat16));
}

TEST(Master, RefusesWhatDoesNotFit) {
  const Tensor p = tensor({1, 2}).set_requires_grad();
  AdamW adam({p}, adam_options());
  expect_throws<ValueError>([&] { adam.main_param("x"); }, {"AdamW", "'x'"});
  expect_throws<ValueError>([&] { adam.step_parameter("x"); }, {"'x'"});
  expect_throws<ValueError>([&] { adam.store_parameter_as("x", kBFloat16); }, {"'x'"});
  expect_throws<ValueError>([&] { adam.set_main_param("0.0", zeros({3})); }, {"[3]", "[2]"});
  expect_throws<TypeError>([&] { adam.store_parameter_as("0.0", kFloat64); }, {"float64"});
  adam.store_parameter_as("0.0", kBFloat16);
  expect_throws<TypeError>([&] { adam.store_parameter_as("0.0", kBFloat16); }, {"bfloat16 [2]"});
}

TEST(ComputeCopy, IsWrittenInTheSamePass) {
  const Tensor p = start_values().set_requires_grad();
  AdamW adam({p}, adam_options());
  const Tensor copy = zeros({kSize}, kBFloat16);
  set_compute_copy(p, copy);
  step(adam, p, 0);
  EXPECT_EQ(values(copy), rounded(p, kBFloat16));
  EXPECT_EQ(leaf_state(p)->compute_copy_version, p.version());
}

TEST(StepParameter, UpdatesOneAlone) {
  const Tensor a = tensor({1.0F}).set_requires_grad();
  const Tensor b = tensor({1.0F}).set_requires_grad();
  SGD sgd({a, b}, {.lr = 1});
  a.set_grad(tensor({4.0F}));
  b.set_grad(tensor({4.0F}));
  sgd.step_parameter("0.1", {.scale = 0.5, .limit = 1.5});
  EXPECT_EQ(a.item(), 1);
  EXPECT_EQ(b.item(), 1 - 1.5);
  EXPECT_EQ(sgd.steps_done("0.0"), 0);
}

TEST(BFloat16Moments, AreFloat32InTheState) {
  const Tensor p = start_values().set_requires_grad();
  AdamW adam({p}, adam_options({.exp_avg_dtype = kBFloat16, .exp_avg_sq_dtype = kBFloat16}));
  for (int i = 0; i < 3; ++i) {
    step(adam, p, i);
  }
  const auto state = adam.state_dict();
  for (const char* name : {"0.0.exp_avg", "0.0.exp_avg_sq"}) {
    EXPECT_EQ(state.at(name).dtype(), kFloat32);
    EXPECT_EQ(values(state.at(name)), rounded(state.at(name), kBFloat16));
  }
}

// A quadratic whose curvatures differ: how far each storage gets.
TEST(BFloat16Moments, DescendAsFloat32Ones) {
  const Tensor curvature = exp(normal(0, 1, {kSize}, kFloat32, RandomKey{5, 6, 0}));
  const auto loss_after = [&](const StateStorage& storage) {
    const Tensor p = start_values().set_requires_grad();
    AdamW adam({p}, {.lr = 0.02, .beta2 = 0.99, .storage = storage});
    double loss = 0;
    for (int i = 0; i < 150; ++i) {
      const NoGradGuard guard;
      const Tensor noise = normal(0, 0.3, {kSize}, kFloat32, RandomKey{8, 9, 0});
      p.set_grad(p * curvature + noise);
      adam.step();
      loss = sum(square(p) * curvature).item() / kSize;
    }
    return loss;
  };
  const double expected = loss_after({});
  EXPECT_NEAR(loss_after({.exp_avg_dtype = kBFloat16, .exp_avg_sq_dtype = kBFloat16}), expected,
              0.02 * expected);
}

}  // namespace
}  // namespace tapestry::optim
