// The optimizer alone: gradients of three steps are given, updates are compared.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "autograd/tensor/error.h"
#include "optim/grad_clip.h"
#include "parallel_core/training/step/given_state.h"
#include "tests/diagnosis/verify/injection/injection_testing.h"

namespace tapestry {
namespace {

using ::testing::Gt;
using ::testing::HasSubstr;
using testing::InjectionLayout;
using testing::kLlama;
using ::testing::Lt;
using testing::Overrides;
using testing::State;
using testing::Trainer;

constexpr int64_t kSteps = 3;
constexpr double kClip = 1.0;
const Overrides kOptimizer = {"optimizer_config.learning_rate=0.01",
                              "optimizer_config.betas=[0.9, 0.95]", "optimizer_config.eps=1e-8",
                              "optimizer_config.weight_decay=0.1",
                              "optimizer_config.clip_grad=1.0"};

// Elements of either sign from 1e-12 up to a size that gives the step's norm.
std::vector<State> made_gradients(const State& weights) {
  const std::array<double, kSteps> norms = {0.5, 4.0, 0.9};  // either side of the clip
  std::vector<State> steps;
  for (int64_t step = 0; step < kSteps; ++step) {
    State state;
    double squares = 0;
    for (const auto& [name, weight] : weights) {
      const Tensor gradient = zeros(weight.shape());
      auto* values = gradient.data<float>();
      const uint64_t stream = combine(stream_of(name), static_cast<uint64_t>(step));
      for (int64_t i = 0; i < gradient.numel(); ++i) {
        const uint64_t chance = combine(stream, static_cast<uint64_t>(i));
        const double exponent = -12 + 12 * static_cast<double>(chance % 4096) / 4096;
        values[i] = static_cast<float>(((chance >> 20U) & 1U) != 0 ? std::pow(10, exponent)
                                                                   : -std::pow(10, exponent));
        squares += static_cast<double>(values[i]) * values[i];
      }
      state.emplace(name, gradient);
    }
    const auto factor = static_cast<float>(norms[static_cast<size_t>(step)] / std::sqrt(squares));
    for (const auto& [name, gradient] : state) {
      auto* values = gradient.data<float>();
      for (int64_t i = 0; i < gradient.numel(); ++i) {
        if (std::abs(values[i]) > 1e-9) {  // the small ones stay small
          values[i] *= factor;
        }
      }
    }
    steps.push_back(std::move(state));
  }
  return steps;
}

TrainOneStepCell::GradientSource source_of(const std::vector<State>& gradients) {
  return [&gradients](int64_t step) -> std::optional<LogicalState> {
    return step <= std::ssize(gradients) ? std::optional(gradients[static_cast<size_t>(step - 1)])
                                         : std::nullopt;
  };
}

// What AdamW does by its formulas (Loshchilov, Hutter 2019, algorithm 2), in double precision.
std::vector<std::map<std::string, std::vector<double>>> expected_updates(
    const State& start, const std::vector<State>& gradients) {
  std::map<std::string, std::vector<double>> w;
  std::map<std::string, std::vector<double>> m;
  std::map<std::string, std::vector<double>> v;
  for (const auto& [name, tensor] : start) {
    w[name] = tensor.to_vector<double>();
    m[name].resize(w[name].size());
    v[name].resize(w[name].size());
  }
  std::vector<std::map<std::string, std::vector<double>>> updates;
  for (int64_t step = 1; step <= std::ssize(gradients); ++step) {
    const State& of_step = gradients[static_cast<size_t>(step - 1)];
    double squares = 0;
    for (const auto& [name, gradient] : of_step) {
      for (const double g : gradient.to_vector<double>()) {
        squares += g * g;
      }
    }
    const double norm = std::sqrt(squares);
    const double clip = norm > kClip ? kClip / (norm + 1e-6) : 1;
    auto& out = updates.emplace_back();
    for (const auto& [name, gradient] : of_step) {
      const std::vector<double> g = gradient.to_vector<double>();
      const double decay = gradient.dim() >= 2 ? 0.1 : 0;
      std::vector<double>& update = out[name];
      for (size_t i = 0; i < g.size(); ++i) {
        const double own = g[i] * clip;
        m[name][i] = 0.9 * m[name][i] + 0.1 * own;
        v[name][i] = 0.95 * v[name][i] + 0.05 * own * own;
        const double mean = m[name][i] / (1 - std::pow(0.9, step));
        const double square = v[name][i] / (1 - std::pow(0.95, step));
        update.push_back(-0.01 * (mean / (std::sqrt(square) + 1e-8) + decay * w[name][i]));
        w[name][i] += update.back();
      }
    }
  }
  return updates;
}

// Largest difference of an element's update from the expected one over what is allowed: a ten
// thousandth of it and two units in the last place of a weight of size one.
double worst_share(const std::string& folder,
                   int64_t step,
                   const std::vector<std::map<std::string, std::vector<double>>>& expected) {
  double worst = 0;
  int64_t compared = 0;
  const auto found = testing::dumped(folder, "Parameter", step - 1);
  for (const auto& [name, updates] : expected[static_cast<size_t>(step - 1)]) {
    const auto own = found.find("Updates/" + name);
    if (own == found.end()) {
      ADD_FAILURE() << "Updates/" << name << " was not dumped";
      continue;
    }
    const std::vector<double> values = own->second.front().to_vector<double>();
    for (size_t i = 0; i < updates.size(); ++i) {
      const double allowed = 1e-4 * std::abs(updates[i]) + 2.4e-7;
      worst = std::max(worst, std::abs(values[i] - updates[i]) / allowed);
      ++compared;
    }
  }
  EXPECT_GT(compared, 1000);
  return worst;
}

struct GivenGradients {
  State start = testing::moved_weights(kLlama);
  std::vector<State> gradients = made_gradients(start);
  std::vector<std::map<std::string, std::vector<double>>> updates =
      expected_updates(start, gradients);
};
const GivenGradients& given() {
  static const auto& made = *new GivenGradients;  // its tensors would outlive the allocator
  return made;
}

// Shares of the allowed difference after each step, of a run whose optimizer is set up otherwise.
std::vector<double> shares_of(const Overrides& other,
                              const std::function<void(TrainOneStepCell&)>& started = {}) {
  const testing::OneProcess groups;
  const std::string folder = dump::fresh_folder("optimizer");
  Trainer trainer(testing::small_config(testing::joined({kLlama, kOptimizer, other})),
                  given().start);
  testing::run_steps(trainer, {.steps = kSteps,
                               .dump = folder + "/dump",
                               .gradients = source_of(given().gradients),
                               .started = started});
  std::vector<double> shares;
  for (int64_t step = 1; step <= kSteps; ++step) {
    shares.push_back(worst_share(folder + "/dump", step, given().updates));
  }
  return shares;
}

TEST(InjectedGradients, UpdatesAreThoseOfTheFormulas) {
  for (const double share : shares_of({})) {
    EXPECT_LT(share, 1);
  }
}

// Each wrong setting is seen, betas from the second step on only: what bias correction hides.
TEST(InjectedGradients, AWrongOptimizerShowsInTheUpdates) {
  constexpr double kSeen = 10;
  const std::vector<double> beta1 = shares_of({"optimizer_config.betas=[0.8, 0.95]"});
  EXPECT_THAT(beta1[0], Lt(1));
  EXPECT_THAT(beta1[2], Gt(kSeen));
  const std::vector<double> beta2 = shares_of({"optimizer_config.betas=[0.9, 0.999]"});
  EXPECT_THAT(beta2[0], Lt(1));
  EXPECT_THAT(beta2[2], Gt(kSeen));
  EXPECT_THAT(shares_of({"optimizer_config.eps=1e-7"})[0], Gt(kSeen));
  EXPECT_THAT(shares_of({"optimizer_config.weight_decay=0.01"})[0], Gt(kSeen));
  EXPECT_THAT(shares_of({"optimizer_config.learning_rate=0.0101"})[0], Gt(kSeen));
  // Clipping changes nothing where the norm is below it: hence the second step.
  const std::vector<double> clip = shares_of({"optimizer_config.clip_grad=2.0"});
  EXPECT_THAT(clip[0], Lt(1));
  EXPECT_THAT(clip[1], Gt(kSeen));
  const std::vector<double> unclipped = shares_of({"optimizer_config.clip_grad=0.0"});
  EXPECT_THAT(unclipped[0], Lt(1));
  EXPECT_THAT(unclipped[1], Gt(kSeen));
}

TEST(InjectedGradients, DecayOfGainsAndBiasesShows) {
  const std::vector<double> shares = shares_of({}, [](TrainOneStepCell& cell) {
    for (optim::ParamGroup& group : cell.optimizer().param_groups()) {
      group.wd_mult = 1;
    }
  });
  EXPECT_THAT(shares[0], Gt(10));
}

class InjectedGradientsIn : public ::testing::TestWithParam<InjectionLayout> {};

TEST_P(InjectedGradientsIn, GiveTheSameUpdates) {
  const InjectionLayout& layout = GetParam();
  const std::string folder = dump::fresh_folder();
  testing::run_parallel(layout.ranks, layout.sizes, [&] {
    Trainer trainer(testing::small_config(testing::joined({kLlama, kOptimizer, layout.overrides})),
                    given().start);
    const auto run = testing::run_steps(
        trainer,
        {.steps = kSteps, .dump = folder + "/dump", .gradients = source_of(given().gradients)});
    EXPECT_NEAR(run.results[0].grad_norm, 0.5, 1e-3);
    EXPECT_NEAR(run.results[1].grad_norm, 4.0, 1e-2);
  });
  for (int64_t step = 1; step <= kSteps; ++step) {
    EXPECT_LT(worst_share(folder + "/dump", step, given().updates), 1) << "step " << step;
  }
}

// The weights of a run are put in place before its first step, whatever it has begun with.
TEST_P(InjectedGradientsIn, StartFromGivenWeights) {
  const InjectionLayout& layout = GetParam();
  State other = given().start;
  for (auto& [name, weight] : other) {
    weight = weight * 1.25;
  }
  testing::run_parallel(layout.ranks, layout.sizes, [&] {
    Trainer trainer(testing::small_config(testing::joined(kLlama, layout.overrides)), {});
    set_weights(*trainer.model, *trainer.optimizer, other, "a reference");
    if (trainer.data_parallel != nullptr) {
      trainer.data_parallel->parameters_changed();
    }
    const LogicalState found = gather_over_pipeline(get_logical_state(*trainer.model));
    if (!found.empty()) {
      testing::expect_states_equal(found, other);
    }
    State with_more = other;
    with_more["layers.7.nothing"] = zeros({2});
    EXPECT_THROW(set_weights(*trainer.model, *trainer.optimizer, with_more, "a reference"),
                 ValueError);
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts,
                         InjectedGradientsIn,
                         ::testing::ValuesIn(testing::injection_layouts()),
                         [](const auto& info) { return info.param.name; });

TEST(InjectedGradients, ObserversSeeWhatWasComputed) {
  Trainer trainer(testing::small_config(testing::joined(kLlama, kOptimizer)), given().start);
  double largest = 0;
  trainer.cell.set_gradient_observer([&](int64_t) {
    for (const auto& [name, gradient] : logical_gradients(*trainer.model)) {
      largest = std::max(largest, testing::largest(gradient - given().gradients[0].at(name)));
    }
  });
  testing::run_steps(trainer, {.gradients = source_of(given().gradients)});
  EXPECT_GT(largest, 1e-4);
}

TEST(InjectedGradients, WhatDoesNotFitIsRefused) {
  State gradients = given().gradients[0];
  gradients["layers.7.nothing"] = zeros({2});
  gradients.erase("final_norm.weight");
  Trainer trainer(testing::small_config(kLlama), given().start);
  trainer.cell.set_gradient_source([&](int64_t) { return std::optional(gradients); },
                                   "folder_of_gradients");
  try {
    testing::run_steps(trainer, {});
    FAIL() << "gradients of another model were taken";
  } catch (const ValueError& error) {
    EXPECT_THAT(error.what(), HasSubstr("folder_of_gradients: the gradients do not fit"));
    EXPECT_THAT(error.what(), HasSubstr("layers.7.nothing"));
    EXPECT_THAT(error.what(), HasSubstr("final_norm.weight"));
  }
}

}  // namespace
}  // namespace tapestry
