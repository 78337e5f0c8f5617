#include "parallel_core/verification/optimizer_check.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <utility>

#include "autograd/ops/map.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
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
  Values largest;  // second moment so far
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

double squares_of(const NumericEntry& entry) {
  double squares = 0;
  for (const double g : entry.gradient) {
    squares += g * g;
  }
  return squares;
}
double norm_of(const NumericEntry& entry) { return std::sqrt(squares_of(entry)); }
double norm_of(const NumericUpdate& update) {
  double squares = 0;
  for (const auto& [name, entry] : update.entries) {
    squares += squares_of(entry);
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

bool decays_by(const AdamRule& rule, const std::string& name, bool flag) {
  using Decay = AdamRule::Decay;
  switch (rule.decay) {
    case Decay::kAll:
      return true;
    case Decay::kNone:
      return false;
    case Decay::kNormsToo:
      return flag || name.find("norm") != std::string::npos;
    case Decay::kBiasesToo:
      return flag || name.ends_with("bias");
    case Decay::kNotEmbeddings:
      return flag && name.find("embeddings") == std::string::npos;
    case Decay::kByFlag:
      break;
  }
  return flag;
}

// Moments of tensors that follow a rule from zero on.
class MomentsByRule {
 public:
  explicit MomentsByRule(AdamRule rule) : rule_(std::move(rule)) {}

  // To be called before the tensors of the next update.
  void next(const NumericUpdate& update) {
    ++t_;
    scale_ = rule_.clip == AdamRule::Clip::kByNorm
                 ? optim::clip_coefficient(norm_of(update), rule_.clip_value)
                 : 1.0;
  }

  // Calls f(i, due, allowed) with what the rule asks element i to move by, and how far from it a
  // float32 optimizer may be.
  template <class F>
  void for_elements(const std::string& name, const NumericEntry& entry, const F& f) {
    Moments& m = state_[name];
    m.first.resize(entry.gradient.size());
    m.second.resize(entry.gradient.size());
    m.largest.resize(entry.gradient.size());
    m.first_rounding.resize(entry.gradient.size());
    const double decay =
        decays_by(rule_, name, entry.decays) ? entry.weight_decay * rule_.decay_factor : 0.0;
    const size_t at = static_cast<size_t>(t_) - 1;
    const double lr = (at < rule_.rates.size() ? rule_.rates[at] : entry.lr) * rule_.lr_factor;
    const bool first = rule_.corrects_bias && rule_.corrects_first;
    const bool second = rule_.corrects_bias && rule_.corrects_second;
    const double correction1 = first ? 1 - std::pow(rule_.beta1, t_) : 1.0;
    const double correction2 = second ? 1 - std::pow(rule_.beta2, t_) : 1.0;
    const double scale = rule_.clip == AdamRule::Clip::kEachTensor
                             ? optim::clip_coefficient(norm_of(entry), rule_.clip_value)
                             : scale_;
    for (size_t i = 0; i < entry.gradient.size(); ++i) {
      double g = entry.gradient[i] * scale;
      if (rule_.clip == AdamRule::Clip::kByValue) {
        g = std::clamp(g, -rule_.clip_value, rule_.clip_value);
      }
      if (!rule_.decoupled) {
        g += decay * entry.before[i];
      }
      m.first_rounding[i] =
          rule_.beta1 * m.first_rounding[i] +
          kMomentRounding * (std::abs(rule_.beta1 * m.first[i]) + std::abs((1 - rule_.beta1) * g));
      m.first[i] = rule_.beta1 * m.first[i] + (1 - rule_.beta1) * g;
      m.second[i] = rule_.beta2 * m.second[i] + (1 - rule_.beta2) * g * g;
      m.largest[i] = std::max(m.largest[i], m.second[i]);
      const double v = rule_.keeps_largest ? m.largest[i] : m.second[i];
      const double root = root_of(v, correction2);
      // A second moment that float32 cannot hold is 0 there.
      const double least_root = root_of(std::max(v - kSmallestNormal, 0.0), correction2);
      const double moment =
          rule_.nesterov ? rule_.beta1 * m.first[i] + (1 - rule_.beta1) * g : m.first[i];
      const double step = lr * (moment / correction1) / root;
      const double decayed =
          rule_.decoupled ? (rule_.decay_times_lr ? lr : 1.0) * decay * entry.before[i] : 0.0;
      const double rounded =
          std::abs(lr) / correction1 *
          (m.first_rounding[i] / least_root + std::abs(m.first[i]) * (1 / least_root - 1 / root));
      f(i, -step - decayed, kTolerance * (std::abs(step) + std::abs(decayed)) + rounded);
    }
  }

 private:
  double root_of(double v, double correction) const {
    switch (rule_.eps_place) {
      case AdamRule::Eps::kInRoot:
        return std::sqrt(v / correction + rule_.eps);
      case AdamRule::Eps::kBeforeCorrection:
        return (std::sqrt(v) + rule_.eps) / std::sqrt(correction);
      case AdamRule::Eps::kOutside:
        break;
    }
    return std::sqrt(v / correction) + rule_.eps;
  }

  AdamRule rule_;
  std::map<std::string, Moments> state_;
  int64_t t_ = 0;
  double scale_ = 1;
};

// Where updates do not follow the rule; of `tensors` alone, unless there are none.
Deviations deviations(const AdamRule& rule,
                      const std::vector<NumericUpdate>& updates,
                      const std::set<std::string>& tensors = {}) {
  MomentsByRule moments(rule);
  Deviations found;
  for (const NumericUpdate& update : updates) {
    moments.next(update);
    std::optional<Deviation> worst;
    for (const auto& [name, entry] : update.entries) {
      if (!tensors.empty() && !tensors.contains(name)) {
        continue;
      }
      double share = 0;
      moments.for_elements(name, entry, [&](size_t i, double due, double allowed) {
        const double difference = std::abs(entry.after[i] - entry.before[i] - due);
        const double told = told_of(entry.before[i]) + told_of(entry.after[i]);
        share = larger(share, difference == 0 ? 0 : difference / (allowed + told));
      });
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

void add_schedules(const AdamRule& meant,
                   const RateOfStep& rate,
                   int64_t updates,
                   std::vector<KnownRule>& all) {
  const auto add = [&](std::string text, const std::function<double(int64_t)>& of_step) {
    KnownRule known{.text = std::move(text), .rule = meant, .is_learning_rate = true};
    bool other = false;
    for (int64_t step = 1; step <= updates; ++step) {
      known.rule.rates.push_back(of_step(step));
      other = other || known.rule.rates.back() != rate(step);
    }
    if (other) {
      all.push_back(std::move(known));
    }
  };
  constexpr int64_t kLongestWarmup = 100'000;
  int64_t top = 1;
  while (top < kLongestWarmup && rate(top + 1) > rate(top)) {
    ++top;
  }
  add("as if the schedule were one step ahead", [&](int64_t step) { return rate(step + 1); });
  add("as if the schedule were one step behind",
      [&](int64_t step) { return rate(std::max<int64_t>(step - 1, 1)); });
  add("as if there were no warm-up", [&](int64_t step) { return rate(std::max(step, top)); });
  add("as if the learning rate were its largest in every step",
      [&](int64_t /*step*/) { return rate(top); });
  add("as if the learning rate stayed that of the first step",
      [&](int64_t /*step*/) { return rate(1); });
}

NumericUpdate numbers_of(const ObservedUpdate& update) {
  const NoGradGuard guard;
  NumericUpdate numbers;
  numbers.step = update.step;
  for (const auto& [name, entry] : update.entries) {
    // What was not done yet has no weight after it.
    numbers.entries[name] = {values_of(entry.gradient),
                             values_of(entry.before),
                             entry.after.defined() ? values_of(entry.after) : Values(),
                             entry.lr,
                             entry.weight_decay,
                             entry.decays};
  }
  return numbers;
}

std::vector<NumericUpdate> numbers_of(const std::vector<ObservedUpdate>& updates) {
  std::vector<NumericUpdate> out;
  for (const ObservedUpdate& update : updates) {
    out.push_back(numbers_of(update));
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

std::vector<KnownRule> known_rules(const AdamRule& meant, const RateOfStep& rate, int64_t updates) {
  std::vector<KnownRule> all;
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
    add(
        "as if each tensor's norm were clipped, not that of all",
        [](AdamRule& r) { r.clip = Clip::kEachTensor; }, true);
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
  using Eps = AdamRule::Eps;
  add("as if eps were added under the root", [](AdamRule& r) { r.eps_place = Eps::kInRoot; });
  add("as if eps were added before the second moment's bias is corrected",
      [](AdamRule& r) { r.eps_place = Eps::kBeforeCorrection; });
  add("as if every tensor decayed", [](AdamRule& r) { r.decay = Decay::kAll; });
  add("as if no tensor decayed", [](AdamRule& r) { r.decay = Decay::kNone; });
  add("as if norms decayed, too", [](AdamRule& r) { r.decay = Decay::kNormsToo; });
  add("as if biases decayed, too", [](AdamRule& r) { r.decay = Decay::kBiasesToo; });
  add("as if embeddings did not decay", [](AdamRule& r) { r.decay = Decay::kNotEmbeddings; });
  add(meant.decoupled ? "as if the decay were added to the gradient (Adam, not AdamW)"
                      : "as if the decay were decoupled (AdamW, not Adam)",
      [](AdamRule& r) { r.decoupled = !r.decoupled; });
  add("as if the moments' bias were not corrected", [](AdamRule& r) { r.corrects_bias = false; });
  add("as if the bias of the first moment were not corrected",
      [](AdamRule& r) { r.corrects_first = false; });
  add("as if the bias of the second moment were not corrected",
      [](AdamRule& r) { r.corrects_second = false; });
  if (meant.decoupled) {
    add("as if the decay were not multiplied by the learning rate",
        [](AdamRule& r) { r.decay_times_lr = false; });
  }
  for (const double factor : {0.1, 0.5, 2.0, 10.0}) {
    add(concat("as if weight_decay were ", factor, " times what it says"),
        [&](AdamRule& r) { r.decay_factor = factor; });
  }
  add("as if the largest second moment so far counted (AMSGrad)",
      [](AdamRule& r) { r.keeps_largest = true; });
  add("as if the first moment were one step on (Nesterov)", [](AdamRule& r) { r.nesterov = true; });
  for (const double factor : {0.0, 0.1, 0.5, 2.0, 10.0, -1.0}) {
    add(
        concat("as if the learning rate were ", factor, " times what it says"),
        [&](AdamRule& r) { r.lr_factor = factor; }, false, true);
  }
  if (rate) {
    add_schedules(meant, rate, updates, all);
  }
  return all;
}

RuleFollower follow_rule(const AdamRule& rule) {
  return [moments = MomentsByRule(rule)](const ObservedUpdate& update) mutable {
    const NumericUpdate numbers = numbers_of(update);
    const NoGradGuard guard;
    moments.next(numbers);
    std::map<std::string, Tensor> out;
    for (const auto& [name, entry] : numbers.entries) {
      Tensor after = empty(update.entries.at(name).before.shape(), kFloat32);
      auto* values = after.data<float>();
      moments.for_elements(name, entry, [&](size_t i, double due, double /*allowed*/) {
        values[i] = static_cast<float>(entry.before[i] + due);
      });
      out.emplace(name, std::move(after));
    }
    return out;
  };
}

double largest_update_share(const AdamRule& rule, const std::vector<ObservedUpdate>& updates) {
  return deviations(rule, numbers_of(updates)).largest_share;
}

std::optional<OptimizerFault> find_optimizer_fault(const AdamRule& rule,
                                                   const std::vector<ObservedUpdate>& updates,
                                                   const RateOfStep& rate) {
  const std::vector<NumericUpdate> numbers = numbers_of(updates);
  const Deviations found = deviations(rule, numbers);
  if (!found.first) {
    return std::nullopt;
  }
  OptimizerFault fault{
      .step = found.first->step, .tensor = found.first->tensor, .share = found.first->share};
  const std::vector<KnownRule> known = known_rules(rule, rate, std::ssize(updates));
  for (const bool all : {true, false}) {
    for (const KnownRule& hypothesis : known) {
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
