// Updates that follow another rule than the one that was meant: which one is found out.
#include "diagnosis/verify/faults/optimizer_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <ostream>

#include "autograd/tensor/factory.h"
#include "optim/grad_clip.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry {
namespace {

using Clip = UpdateRule::Clip;
using Decay = UpdateRule::Decay;

constexpr int64_t kElements = 12;

// Of both signs and many sizes, so small that eps counts too; norms above 1 in odd steps, below it
// in even ones.
double gradient_of(int64_t tensor, int64_t step, int64_t element) {
  const double size = element % 4 == 3 ? 1e-9 : (step % 2 == 1 ? 0.9 : 0.05);
  return size * std::sin(1.0 + 2.1 * static_cast<double>(element + 5 * tensor + 7 * step));
}

UpdateRule meant() { return {.beta2 = 0.95, .clip = Clip::kByNorm, .clip_value = 1}; }

// Three updates of tensors of which "bias" does not decay, by a rule; by another one those of
// `apart`.
std::vector<ObservedUpdate> updates_by(const UpdateRule& rule,
                                       const std::string& apart = "",
                                       const UpdateRule& other = {}) {
  const std::vector<std::string> names = {"bias", "head", "weight"};
  std::map<std::string, std::vector<double>> weight;
  std::map<std::string, std::vector<double>> first;
  std::map<std::string, std::vector<double>> second;
  for (size_t n = 0; n < names.size(); ++n) {
    for (int64_t i = 0; i < kElements; ++i) {
      weight[names[n]].push_back(0.3 * std::cos(static_cast<double>(i + 3) * (1.0 + n)));
    }
    first[names[n]].resize(kElements);
    second[names[n]].resize(kElements);
  }
  std::vector<ObservedUpdate> out;
  for (int64_t step = 1; step <= 3; ++step) {
    double squares = 0;
    for (int64_t n = 0; n < std::ssize(names); ++n) {
      for (int64_t i = 0; i < kElements; ++i) {
        squares += std::pow(gradient_of(n, step, i), 2);
      }
    }
    ObservedUpdate& update = out.emplace_back();
    update.step = step;
    for (int64_t n = 0; n < std::ssize(names); ++n) {
      const std::string& name = names[static_cast<size_t>(n)];
      const UpdateRule& r = name == apart ? other : rule;
      ObservedUpdate::Entry& entry = update.entries[name];
      entry.lr = 0.01;
      entry.weight_decay = 0.1;
      entry.decays = name != "bias";
      std::vector<double> gradients;
      const std::vector<double> before = weight[name];
      const bool decays = r.decay == Decay::kAll || (r.decay == Decay::kByFlag && entry.decays);
      const double lr = entry.lr * r.lr_factor;
      const double decay = decays ? entry.weight_decay : 0;
      for (int64_t i = 0; i < kElements; ++i) {
        const auto at = static_cast<size_t>(i);
        gradients.push_back(gradient_of(n, step, i));
        double g = gradients.back();
        if (r.clip == Clip::kByNorm) {
          g *= optim::clip_coefficient(std::sqrt(squares), r.clip_value);
        } else if (r.clip == Clip::kByValue) {
          g = std::clamp(g, -r.clip_value, r.clip_value);
        }
        double& w = weight[name][at];
        g += r.decoupled ? 0 : decay * w;
        double& m = first[name][at];
        double& v = second[name][at];
        m = r.beta1 * m + (1 - r.beta1) * g;
        v = r.beta2 * v + (1 - r.beta2) * g * g;
        const double m_hat = r.corrects_bias ? m / (1 - std::pow(r.beta1, step)) : m;
        const double v_hat = r.corrects_bias ? v / (1 - std::pow(r.beta2, step)) : v;
        w -= (r.decoupled ? lr * decay * w : 0) + lr * m_hat / (std::sqrt(v_hat) + r.eps);
      }
      entry.gradient = tensor(gradients, {kElements});
      entry.before = tensor(before, {kElements});
      entry.after = tensor(weight[name], {kElements});
    }
  }
  return out;
}

TEST(OptimizerCheck, FindsNothingInUpdatesByTheRule) {
  EXPECT_FALSE(find_optimizer_fault(meant(), updates_by(meant())));
  EXPECT_LT(largest_update_share(meant(), updates_by(meant())), 0.01);
}

struct OtherRule {
  std::string name;
  std::function<void(UpdateRule&)> change;
  std::string explanation;
  bool is_clipping = false;
  bool is_learning_rate = false;
  UpdateRule intended = meant();
};
std::ostream& operator<<(std::ostream& out, const OtherRule& rule) { return out << rule.name; }

UpdateRule without_clipping() {
  UpdateRule rule = meant();
  rule.clip = Clip::kOff;
  return rule;
}
UpdateRule clipping_elements() {
  UpdateRule rule = meant();
  rule.clip = Clip::kByValue;
  rule.clip_value = 0.1;
  return rule;
}
UpdateRule coupled() {
  UpdateRule rule = meant();
  rule.decoupled = false;
  return rule;
}

class OtherRules : public ::testing::TestWithParam<OtherRule> {};

TEST_P(OtherRules, AreNamed) {
  const OtherRule& other = GetParam();
  UpdateRule followed = other.intended;
  other.change(followed);
  const auto fault = find_optimizer_fault(other.intended, updates_by(followed));
  ASSERT_TRUE(fault);
  EXPECT_THAT(fault->explanation, ::testing::HasSubstr(other.explanation));
  EXPECT_EQ(fault->is_clipping, other.is_clipping);
  EXPECT_EQ(fault->is_learning_rate, other.is_learning_rate);
  EXPECT_GT(fault->share, 1);
}

INSTANTIATE_TEST_SUITE_P(
    Adam,
    OtherRules,
    ::testing::Values(
        OtherRule{"clip_off", [](UpdateRule& r) { r.clip = Clip::kOff; }, "as if clipping were off",
                  true},
        OtherRule{"clip_value", [](UpdateRule& r) { r.clip_value = 0.5; }, "clipped at 0.5", true},
        OtherRule{"clip_elements",
                  [](UpdateRule& r) {
                    r.clip = Clip::kByValue;
                    r.clip_value = 0.1;
                  },
                  "element were clipped", true, false,
                  [] {
                    UpdateRule rule = meant();
                    rule.clip_value = 0.1;
                    return rule;
                  }()},
        OtherRule{"clip_norm", [](UpdateRule& r) { r.clip = Clip::kByNorm; }, "norm were clipped",
                  true, false, clipping_elements()},
        OtherRule{"clip_unasked",
                  [](UpdateRule& r) {
                    r.clip = Clip::kByNorm;
                    r.clip_value = 1;
                  },
                  "clipped at norm 1", true, false, without_clipping()},
        OtherRule{"beta1", [](UpdateRule& r) { r.beta1 = 0.8; }, "as if beta1 were 0.8"},
        OtherRule{"beta2", [](UpdateRule& r) { r.beta2 = 0.999; }, "as if beta2 were 0.999"},
        OtherRule{"betas_swapped",
                  [](UpdateRule& r) {
                    r.beta1 = 0.95;
                    r.beta2 = 0.9;
                  },
                  "betas were swapped"},
        OtherRule{"eps", [](UpdateRule& r) { r.eps = 1e-6; }, "as if eps were 1e-06"},
        OtherRule{"clip_any", [](UpdateRule& r) { r.clip_value = 0.37; }, "clipped at norm 0.37",
                  true},
        OtherRule{"clip_elements_anywhere",
                  [](UpdateRule& r) {
                    r.clip = Clip::kByValue;
                    r.clip_value = 0.04;
                  },
                  "not the norm, at 0.04", true},
        OtherRule{"beta1_any", [](UpdateRule& r) { r.beta1 = 0.87; }, "as if beta1 were 0.87"},
        OtherRule{"beta2_any", [](UpdateRule& r) { r.beta2 = 0.93; }, "as if beta2 were 0.93"},
        OtherRule{"eps_any", [](UpdateRule& r) { r.eps = 3e-5; }, "as if eps were 3e-05"},
        OtherRule{"rate_any", [](UpdateRule& r) { r.lr_factor = 1.3; }, "rate were 1.3 times",
                  false, true},
        OtherRule{"all_decay", [](UpdateRule& r) { r.decay = Decay::kAll; },
                  "every tensor decayed"},
        OtherRule{"none_decays", [](UpdateRule& r) { r.decay = Decay::kNone; },
                  "as if no tensor decayed"},
        OtherRule{"coupled", [](UpdateRule& r) { r.decoupled = false; }, "(Adam, not AdamW)"},
        OtherRule{"decoupled", [](UpdateRule& r) { r.decoupled = true; }, "(AdamW, not Adam)",
                  false, false, coupled()},
        OtherRule{"bias", [](UpdateRule& r) { r.corrects_bias = false; },
                  "bias were not corrected"},
        OtherRule{"half_rate", [](UpdateRule& r) { r.lr_factor = 0.5; }, "rate were 0.5 times",
                  false, true},
        OtherRule{"upwards", [](UpdateRule& r) { r.lr_factor = -1; }, "rate were -1 times", false,
                  true}),
    [](const auto& info) { return info.param.name; });

TEST(OptimizerCheck, SaysOfWhichTensorsAlone) {
  UpdateRule still = meant();
  still.decay = Decay::kNone;
  const auto fault = find_optimizer_fault(meant(), updates_by(meant(), "head", still));
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->step, 1);
  EXPECT_EQ(fault->tensor, "head");
  EXPECT_EQ(fault->explanation, "as if no tensor decayed, of head alone");
}

TEST(OptimizerCheck, LeavesUnexplainedWhatFollowsNoRule) {
  std::vector<ObservedUpdate> updates = updates_by(meant());
  ObservedUpdate::Entry& entry = updates[1].entries["weight"];
  std::vector<double> after = entry.after.to_vector<double>();
  after[2] += 0.003;
  entry.after = tensor(after, {kElements});
  const auto fault = find_optimizer_fault(meant(), updates);
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->step, 2);
  EXPECT_EQ(fault->tensor, "weight");
  EXPECT_EQ(fault->explanation, "");
}

TEST(OptimizerCheck, FindsWhatIsNotANumber) {
  std::vector<ObservedUpdate> updates = updates_by(meant());
  ObservedUpdate::Entry& entry = updates[0].entries["bias"];
  std::vector<double> after = entry.after.to_vector<double>();
  after[0] = std::numeric_limits<double>::quiet_NaN();
  entry.after = tensor(after, {kElements});
  const auto fault = find_optimizer_fault(meant(), updates);
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->tensor, "bias");
}

TEST(OptimizerCheck, TakesItsRuleFromTheConfiguration) {
  const std::string o = "optimizer_config.";
  const auto rule = update_rule(
      testing::small_config({o + "betas=[0.8,0.9]", o + "eps=1e-6", o + "clip_grad=0.7"}));
  ASSERT_TRUE(rule);
  EXPECT_TRUE(rule->decoupled);
  EXPECT_EQ(rule->beta1, 0.8);
  EXPECT_EQ(rule->beta2, 0.9);
  EXPECT_EQ(rule->eps, 1e-6);
  EXPECT_EQ(rule->clip, Clip::kByNorm);
  EXPECT_EQ(rule->clip_value, 0.7);
  EXPECT_FALSE(update_rule(testing::small_config({o + "optimizer_type=Adam"}))->decoupled);
  EXPECT_EQ(update_rule(testing::small_config())->clip, Clip::kOff);
  const auto lion = update_rule(testing::small_config({o + "optimizer_type=Lion"}));
  ASSERT_TRUE(lion);
  EXPECT_EQ(lion->kind, UpdateRule::Kind::kLion);
  const auto sgd =
      update_rule(testing::small_config({o + "optimizer_type=SGD", o + "momentum=0.9"}));
  ASSERT_TRUE(sgd);
  EXPECT_EQ(sgd->momentum, 0.9);
  EXPECT_FALSE(sgd->decoupled);
  EXPECT_FALSE(update_rule(testing::small_config({o + "optimizer_type=Muon"})));
  EXPECT_FALSE(update_rule(testing::small_config({o + "exp_avg_dtype=bfloat16"})));
}

}  // namespace
}  // namespace tapestry
