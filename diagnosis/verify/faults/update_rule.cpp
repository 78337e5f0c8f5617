#include "diagnosis/verify/faults/update_rule.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "autograd/ops/map.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/factory.h"
#include "optim/grad_clip.h"
#include "parallel_core/optimizer/get_optimizer.h"

namespace tapestry {

namespace {

std::vector<double> values_of(const Tensor& t) {
  const Tensor dense64 = dense(t.to(kFloat64));
  return {dense64.data<double>(), dense64.data<double>() + dense64.numel()};
}

double squares_of(const NumericEntry& entry) {
  double squares = 0;
  for (const double g : entry.gradient) {
    squares += g * g;
  }
  return squares;
}

constexpr double kTolerance = 1e-4;
constexpr double kMomentRounding = 0x1p-22;
constexpr double kSmallestNormal = 0x1p-126;

bool decays_by(const UpdateRule& rule, const std::string& name, bool flag) {
  using Decay = UpdateRule::Decay;
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

// Programs that hold queries, keys and values in one matrix clip them as one.
std::string clipped_with(const std::string& name, UpdateRule::Clip clip) {
  if (clip == UpdateRule::Clip::kEachFused) {
    for (const char* part : {".wq.", ".wk.", ".wv."}) {
      if (const size_t at = name.find(part); at != std::string::npos) {
        return name.substr(0, at) + ".wqkv." + name.substr(at + 4);
      }
    }
  }
  return name;
}

}  // namespace

std::optional<UpdateRule> update_rule(const AllConfig& config) {
  const OptimizerConfig& o = config.optimizer_config;
  const bool is_adam = o.optimizer_type == "AdamW" || o.optimizer_type == "Adam";
  if ((!is_adam && o.optimizer_type != "SGD" && o.optimizer_type != "Lion") ||
      o.optimizer_in_backward || o.exp_avg_dtype != kFloat32 || o.exp_avg_sq_dtype != kFloat32) {
    return std::nullopt;
  }
  UpdateRule rule{.decoupled = o.optimizer_type != "Adam" && o.optimizer_type != "SGD",
                  .beta1 = o.betas[0],
                  .beta2 = o.betas[1],
                  .eps = o.eps};
  if (o.optimizer_type == "SGD") {
    rule.kind = UpdateRule::Kind::kSgd;
    rule.momentum = o.momentum;
    rule.dampening = o.dampening;
    rule.nesterov = o.nesterov;
  } else if (o.optimizer_type == "Lion") {
    rule.kind = UpdateRule::Kind::kLion;
  }
  if (const auto clip = gradient_clipping(config)) {
    if (clip->grad_clip_type != "ClipGlobalNorm" && clip->grad_clip_type != "GradClipByValue") {
      return std::nullopt;  // the program's own
    }
    rule.clip = clip->grad_clip_type == "ClipGlobalNorm" ? UpdateRule::Clip::kByNorm
                                                         : UpdateRule::Clip::kByValue;
    rule.clip_value = clip->clip_value;
  }
  return rule;
}

NumericUpdate numbers_of(const ObservedUpdate& update) {
  const NoGradGuard guard;
  NumericUpdate numbers;
  numbers.step = update.step;
  for (const auto& [name, entry] : update.entries) {
    // What was not done yet has no weight after it.
    numbers.entries[name] = {values_of(entry.gradient),
                             values_of(entry.before),
                             entry.after.defined() ? values_of(entry.after) : std::vector<double>(),
                             entry.lr,
                             entry.weight_decay,
                             entry.decays};
  }
  return numbers;
}

void StatesByRule::next(const NumericUpdate& update) {
  using Clip = UpdateRule::Clip;
  ++t_;
  norms_.clear();
  double all = 0;
  std::map<std::string, double> squares;
  for (const auto& [name, entry] : update.entries) {
    const double own = squares_of(entry) * rule_.gradient_factor * rule_.gradient_factor;
    all += own;
    squares[clipped_with(name, rule_.clip)] += own;
  }
  scale_ =
      rule_.clip == Clip::kByNorm ? optim::clip_coefficient(std::sqrt(all), rule_.clip_value) : 1.0;
  for (const auto& [name, own] : squares) {
    norms_[name] = std::sqrt(own);
  }
}

double StatesByRule::clip_scale(const std::string& name) const {
  using Clip = UpdateRule::Clip;
  const bool each = rule_.clip == Clip::kEachTensor || rule_.clip == Clip::kEachFused;
  return each ? optim::clip_coefficient(norms_.at(clipped_with(name, rule_.clip)), rule_.clip_value)
              : scale_;
}

void StatesByRule::for_elements(const std::string& name,
                                const NumericEntry& entry,
                                const ForElement& f) {
  States& s = states_[name];
  for (auto* values : {&s.first, &s.second, &s.largest, &s.first_rounding}) {
    values->resize(entry.gradient.size());
  }
  Element e;
  if (decays_by(rule_, name, entry.decays)) {
    e.decay = rule_.weight_decay.value_or(entry.weight_decay) * rule_.decay_factor;
  }
  const size_t at = static_cast<size_t>(t_) - 1;
  e.lr = (at < rule_.rates.size() ? rule_.rates[at] : entry.lr) * rule_.lr_factor;
  if (rule_.part.holds && rule_.part.holds(name)) {
    e.lr *= rule_.part_lr_factor;
  }
  const double scale = clip_scale(name) * rule_.gradient_factor;
  for (size_t i = 0; i < entry.gradient.size(); ++i) {
    e.gradient = entry.gradient[i] * scale;
    if (rule_.clip == UpdateRule::Clip::kByValue) {
      e.gradient = std::clamp(e.gradient, -rule_.clip_value, rule_.clip_value);
    }
    e.before = entry.before[i];
    Move move;
    switch (rule_.kind) {
      case UpdateRule::Kind::kAdam:
        move = adam(s, i, e);
        break;
      case UpdateRule::Kind::kSgd:
        move = sgd(s, i, e);
        break;
      case UpdateRule::Kind::kLion:
        move = lion(s, i, e);
        break;
    }
    f(i, move.due, move.allowed);
  }
}

// The average of what was and of g, and what rounding may have made of it.
void StatesByRule::keep_first(
    States& s, size_t i, double old_share, double new_share, double g) const {
  s.first_rounding[i] =
      old_share * s.first_rounding[i] +
      kMomentRounding * (std::abs(old_share * s.first[i]) + std::abs(new_share * g));
  s.first[i] = old_share * s.first[i] + new_share * g;
}

StatesByRule::Move StatesByRule::adam(States& s, size_t i, const Element& e) const {
  const double g = e.gradient + (rule_.decoupled ? 0.0 : e.decay * e.before);
  const bool first = rule_.corrects_bias && rule_.corrects_first;
  const bool second = rule_.corrects_bias && rule_.corrects_second;
  const double correction1 = first ? 1 - std::pow(rule_.beta1, t_) : 1.0;
  const double correction2 = second ? 1 - std::pow(rule_.beta2, t_) : 1.0;
  keep_first(s, i, rule_.beta1, 1 - rule_.beta1, g);
  s.second[i] = rule_.beta2 * s.second[i] + (1 - rule_.beta2) * g * g;
  s.largest[i] = std::max(s.largest[i], s.second[i]);
  const double v = rule_.keeps_largest ? s.largest[i] : s.second[i];
  const double root = root_of(v, correction2);
  // A second moment that float32 cannot hold is 0 there.
  const double least_root = root_of(std::max(v - kSmallestNormal, 0.0), correction2);
  const double moment =
      rule_.nesterov ? rule_.beta1 * s.first[i] + (1 - rule_.beta1) * g : s.first[i];
  // 0 / 0 where a gradient is 0 and eps, too.
  const double step = moment == 0 ? 0.0 : e.lr * (moment / correction1) / root;
  const double decayed =
      rule_.decoupled ? (rule_.decay_times_lr ? e.lr : 1.0) * e.decay * e.before : 0.0;
  const double rounded = moment == 0 ? 0.0
                                     : std::abs(e.lr) / correction1 *
                                           (s.first_rounding[i] / least_root +
                                            std::abs(s.first[i]) * (1 / least_root - 1 / root));
  return {-step - decayed, kTolerance * (std::abs(step) + std::abs(decayed)) + rounded};
}

StatesByRule::Move StatesByRule::sgd(States& s, size_t i, const Element& e) const {
  const double g = e.gradient + (rule_.decoupled ? 0.0 : e.decay * e.before);
  const double new_share = t_ == 1 ? 1.0 : 1 - rule_.dampening;
  keep_first(s, i, t_ == 1 ? 0.0 : rule_.momentum, new_share, g);
  const double moved = rule_.nesterov ? g + rule_.momentum * s.first[i] : s.first[i];
  const double decayed =
      rule_.decoupled ? (rule_.decay_times_lr ? e.lr : 1.0) * e.decay * e.before : 0.0;
  return {-e.lr * moved - decayed,
          kTolerance * (std::abs(e.lr * moved) + std::abs(decayed)) +
              std::abs(e.lr) * (s.first_rounding[i] + kMomentRounding * std::abs(g))};
}

StatesByRule::Move StatesByRule::lion(States& s, size_t i, const Element& e) const {
  const double g = e.gradient;
  const double looked_at = rule_.beta1 * s.first[i] + (1 - rule_.beta1) * g;
  // Where the two cancel, float32 may see the other sign.
  const double rounding =
      rule_.beta1 * s.first_rounding[i] +
      kMomentRounding * (std::abs(rule_.beta1 * s.first[i]) + std::abs((1 - rule_.beta1) * g));
  const double sign = looked_at > 0 ? 1.0 : (looked_at < 0 ? -1.0 : 0.0);
  keep_first(s, i, rule_.beta2, 1 - rule_.beta2, g);
  const double decayed = e.lr * e.decay * e.before;
  return {-e.lr * sign - decayed, kTolerance * (std::abs(e.lr) + std::abs(decayed)) +
                                      (std::abs(looked_at) <= rounding ? 2 * std::abs(e.lr) : 0.0)};
}

double StatesByRule::root_of(double v, double correction) const {
  switch (rule_.eps_place) {
    case UpdateRule::Eps::kInRoot:
      return std::sqrt(v / correction + rule_.eps);
    case UpdateRule::Eps::kBeforeCorrection:
      return (std::sqrt(v) + rule_.eps) / std::sqrt(correction);
    case UpdateRule::Eps::kOutside:
      break;
  }
  return std::sqrt(v / correction) + rule_.eps;
}

RuleFollower follow_rule(const UpdateRule& rule) {
  const auto states = std::make_shared<StatesByRule>(rule);
  return [states](const ObservedUpdate& update) {
    const NumericUpdate numbers = numbers_of(update);
    const NoGradGuard guard;
    states->next(numbers);
    std::map<std::string, Tensor> out;
    for (const auto& [name, entry] : numbers.entries) {
      Tensor after = empty(update.entries.at(name).before.shape(), kFloat32);
      auto* values = after.data<float>();
      const std::vector<double>& before = entry.before;
      states->for_elements(name, entry, [&](size_t i, double due, double /*allowed*/) {
        values[i] = static_cast<float>(before[i] + due);
      });
      out.emplace(name, std::move(after));
    }
    return out;
  };
}

}  // namespace tapestry
