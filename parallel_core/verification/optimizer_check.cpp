#include "parallel_core/verification/optimizer_check.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <utility>

#include "autograd/ops/map.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/error.h"
#include "optim/grad_clip.h"
#include "parallel_core/optimizer/get_optimizer.h"

namespace tapestry {

namespace {

using Values = std::vector<double>;

Values values_of(const Tensor& t) {
  const Tensor dense64 = dense(t.to(kFloat64));
  return {dense64.data<double>(), dense64.data<double>() + dense64.numel()};
}

// Adam's moments in float64, and how far those of a float32 optimizer may be from the first one:
// where gradients of opposite signs cancel in it, little of it is left.
struct Moments {
  Values first;
  Values second;
  Values first_rounding;
};

struct Deviation {
  int64_t step = 0;
  std::string tensor;
  double share = 0;  // of what is allowed
};

struct NumericEntry {
  Values gradient, before, after;
  double lr = 0;
  double weight_decay = 0;
  bool decays = true;
};
struct NumericUpdate {
  int64_t step = 0;
  std::map<std::string, NumericEntry> entries;
};

double norm_of(const NumericUpdate& update) {
  double squares = 0;
  for (const auto& [name, entry] : update.entries) {
    for (const double g : entry.gradient) {
      squares += g * g;
    }
  }
  return std::sqrt(squares);
}

// What float32 can tell of a weight of that size, twice: it is read and written.
double told_of(double weight) { return 0x1p-22 * std::abs(weight); }

constexpr double kTolerance = 1e-4;
constexpr double kMomentRounding = 0x1p-22;
constexpr double kSmallestNormal = 0x1p-126;

// Not std::max: a NaN has to stay.
double larger(double a, double b) { return std::isnan(a) || a >= b ? a : b; }

struct Deviations {
  std::optional<Deviation> first;  // the largest of the first update that does not follow the rule
  std::set<std::string> tensors;   // of all updates
  double largest_share = 0;        // of what is allowed
};

// Where updates do not follow the rule; of `tensors` alone, unless there are none.
Deviations deviations(const AdamRule& rule,
                      const std::vector<NumericUpdate>& updates,
                      const std::set<std::string>& tensors = {}) {
  std::map<std::string, Moments> state;
  Deviations found;
  int64_t t = 0;
  for (const NumericUpdate& update : updates) {
    ++t;
    const double scale = rule.clip == AdamRule::Clip::kByNorm
                             ? optim::clip_coefficient(norm_of(update), rule.clip_value)
                             : 1.0;
    std::optional<Deviation> worst;
    for (const auto& [name, entry] : update.entries) {
      if (!tensors.empty() && !tensors.contains(name)) {
        continue;
      }
      Moments& m = state[name];
      m.first.resize(entry.gradient.size());
      m.second.resize(entry.gradient.size());
      m.first_rounding.resize(entry.gradient.size());
      const bool decays = rule.decay == AdamRule::Decay::kAll ||
                          (rule.decay == AdamRule::Decay::kByFlag && entry.decays);
      const double decay = decays ? entry.weight_decay : 0.0;
      const double lr = entry.lr * rule.lr_factor;
      const double correction1 = rule.corrects_bias ? 1 - std::pow(rule.beta1, t) : 1.0;
      const double correction2 = rule.corrects_bias ? 1 - std::pow(rule.beta2, t) : 1.0;
      double share = 0;
      for (size_t i = 0; i < entry.gradient.size(); ++i) {
        double g = entry.gradient[i] * scale;
        if (rule.clip == AdamRule::Clip::kByValue) {
          g = std::clamp(g, -rule.clip_value, rule.clip_value);
        }
        if (!rule.decoupled) {
          g += decay * entry.before[i];
        }
        m.first_rounding[i] =
            rule.beta1 * m.first_rounding[i] +
            kMomentRounding * (std::abs(rule.beta1 * m.first[i]) + std::abs((1 - rule.beta1) * g));
        m.first[i] = rule.beta1 * m.first[i] + (1 - rule.beta1) * g;
        m.second[i] = rule.beta2 * m.second[i] + (1 - rule.beta2) * g * g;
        const double root = std::sqrt(m.second[i] / correction2) + rule.eps;
        // A second moment that float32 cannot hold is 0 there.
        const double least_root =
            std::sqrt(std::max(m.second[i] - kSmallestNormal, 0.0) / correction2) + rule.eps;
        const double step = lr * (m.first[i] / correction1) / root;
        const double decayed = rule.decoupled ? lr * decay * entry.before[i] : 0.0;
        const double due = -step - decayed;
        const double done = entry.after[i] - entry.before[i];
        const double rounded =
            std::abs(lr) / correction1 *
            (m.first_rounding[i] / least_root + std::abs(m.first[i]) * (1 / least_root - 1 / root));
        const double allowed = kTolerance * (std::abs(step) + std::abs(decayed)) + rounded +
                               told_of(entry.before[i]) + told_of(entry.after[i]);
        const double difference = std::abs(done - due);
        share = larger(share, difference == 0 ? 0 : difference / allowed);
      }
      found.largest_share = larger(found.largest_share, share);
      if (!(share <= 1)) {
        found.tensors.insert(name);
        if (!worst || share > worst->share) {
          worst = {update.step, name, share};
        }
      }
    }
    if (worst && !found.first) {
      found.first = worst;
    }
  }
  return found;
}

// "a, b and 3 more"
std::string list_of(const std::set<std::string>& names) {
  constexpr size_t kShown = 3;
  std::string out;
  size_t shown = 0;
  for (const std::string& name : names) {
    if (shown == kShown) {
      return out + concat(" and ", names.size() - shown, " more");
    }
    out += (shown++ == 0 ? "" : ", ") + name;
  }
  return out;
}

struct Hypothesis {
  std::string text;
  AdamRule rule;
  bool is_clipping = false;
  bool is_learning_rate = false;
};

// Rules that programs are known to follow in place of the one that was meant.
std::vector<Hypothesis> hypotheses(const AdamRule& meant) {
  std::vector<Hypothesis> all;
  const auto add = [&](std::string text, const std::function<void(AdamRule&)>& change,
                       bool is_clipping = false, bool is_learning_rate = false) {
    AdamRule rule = meant;
    change(rule);
    all.push_back({std::move(text), rule, is_clipping, is_learning_rate});
  };
  using Clip = AdamRule::Clip;
  using Decay = AdamRule::Decay;
  if (meant.clip != Clip::kOff) {
    add(
        "as if clipping were off", [](AdamRule& r) { r.clip = Clip::kOff; }, true);
    for (const double value : {0.1, 0.5, 1.0, 2.0, 5.0, 10.0}) {
      if (value != meant.clip_value) {
        add(
            concat("as if gradients were clipped at ", value),
            [&](AdamRule& r) { r.clip_value = value; }, true);
      }
    }
    add(
        meant.clip == Clip::kByNorm ? "as if each element were clipped, not the norm"
                                    : "as if the norm were clipped, not each element",
        [](AdamRule& r) { r.clip = r.clip == Clip::kByNorm ? Clip::kByValue : Clip::kByNorm; },
        true);
  } else {
    add(
        "as if gradients were clipped at norm 1",
        [](AdamRule& r) {
          r.clip = Clip::kByNorm;
          r.clip_value = 1;
        },
        true);
  }
  for (const double beta : {0.0, 0.5, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9999}) {
    add(concat("as if beta1 were ", beta), [&](AdamRule& r) { r.beta1 = beta; });
    add(concat("as if beta2 were ", beta), [&](AdamRule& r) { r.beta2 = beta; });
  }
  add("as if the betas were swapped", [](AdamRule& r) { std::swap(r.beta1, r.beta2); });
  for (const double eps : {0.0, 1e-15, 1e-12, 1e-10, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3}) {
    add(concat("as if eps were ", eps), [&](AdamRule& r) { r.eps = eps; });
  }
  add("as if every tensor decayed", [](AdamRule& r) { r.decay = Decay::kAll; });
  add("as if no tensor decayed", [](AdamRule& r) { r.decay = Decay::kNone; });
  add(meant.decoupled ? "as if the decay were added to the gradient (Adam, not AdamW)"
                      : "as if the decay were decoupled (AdamW, not Adam)",
      [](AdamRule& r) { r.decoupled = !r.decoupled; });
  add("as if the moments' bias were not corrected", [](AdamRule& r) { r.corrects_bias = false; });
  for (const double factor : {0.0, 0.1, 0.5, 2.0, 10.0, -1.0}) {
    add(
        concat("as if the learning rate were ", factor, " times what it says"),
        [&](AdamRule& r) { r.lr_factor = factor; }, false, true);
  }
  return all;
}

std::vector<NumericUpdate> numbers_of(const std::vector<ObservedUpdate>& updates) {
  const NoGradGuard guard;
  std::vector<NumericUpdate> out;
  for (const ObservedUpdate& update : updates) {
    NumericUpdate& numbers = out.emplace_back();
    numbers.step = update.step;
    for (const auto& [name, entry] : update.entries) {
      numbers.entries[name] = {values_of(entry.gradient), values_of(entry.before),
                               values_of(entry.after),    entry.lr,
                               entry.weight_decay,        entry.decays};
    }
  }
  return out;
}

}  // namespace

std::optional<AdamRule> adam_rule(const AllConfig& config) {
  const OptimizerConfig& o = config.optimizer_config;
  const bool is_adamw = o.optimizer_type == "AdamW";
  if ((!is_adamw && o.optimizer_type != "Adam") || o.optimizer_in_backward ||
      o.exp_avg_dtype != kFloat32 || o.exp_avg_sq_dtype != kFloat32) {
    return std::nullopt;
  }
  AdamRule rule{.decoupled = is_adamw, .beta1 = o.betas[0], .beta2 = o.betas[1], .eps = o.eps};
  if (const auto clip = gradient_clipping(config)) {
    rule.clip = clip->grad_clip_type == "ClipGlobalNorm" ? AdamRule::Clip::kByNorm
                                                         : AdamRule::Clip::kByValue;
    rule.clip_value = clip->clip_value;
  }
  return rule;
}

double largest_update_share(const AdamRule& rule, const std::vector<ObservedUpdate>& updates) {
  return deviations(rule, numbers_of(updates)).largest_share;
}

std::optional<OptimizerFault> find_optimizer_fault(const AdamRule& rule,
                                                   const std::vector<ObservedUpdate>& updates) {
  const std::vector<NumericUpdate> numbers = numbers_of(updates);
  const Deviations found = deviations(rule, numbers);
  if (!found.first) {
    return std::nullopt;
  }
  OptimizerFault fault{
      .step = found.first->step, .tensor = found.first->tensor, .share = found.first->share};
  for (const bool all : {true, false}) {
    for (const Hypothesis& hypothesis : hypotheses(rule)) {
      if (deviations(hypothesis.rule, numbers, all ? std::set<std::string>() : found.tensors)
              .first) {
        continue;
      }
      fault.explanation =
          hypothesis.text + (all ? "" : ", of " + list_of(found.tensors) + " alone");
      fault.is_clipping = hypothesis.is_clipping;
      fault.is_learning_rate = hypothesis.is_learning_rate;
      return fault;
    }
  }
  return fault;
}

}  // namespace tapestry
