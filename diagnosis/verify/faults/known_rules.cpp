#include "diagnosis/verify/faults/known_rules.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <set>
#include <utility>

#include "autograd/tensor/error.h"

namespace tapestry {

namespace {

using Clip = UpdateRule::Clip;
using RuleKind = UpdateRule::Kind;

class Rules {
 public:
  explicit Rules(const UpdateRule& meant) : meant_(meant) {}

  void add(std::string text, const std::function<void(UpdateRule&)>& change) {
    UpdateRule rule = meant_;
    change(rule);
    all.push_back({std::move(text), std::move(rule), false, false});
  }
  void add_clipping(std::string text, const std::function<void(UpdateRule&)>& change) {
    add(std::move(text), change);
    all.back().is_clipping = true;
  }
  void add_learning_rate(std::string text, const std::function<void(UpdateRule&)>& change) {
    add(std::move(text), change);
    all.back().is_learning_rate = true;
  }

  std::vector<KnownRule> all;

 private:
  const UpdateRule& meant_;
};

void add_clippings(const UpdateRule& meant, Rules& rules) {
  if (meant.clip == Clip::kOff) {
    rules.add_clipping("as if gradients were clipped at norm 1", [](UpdateRule& r) {
      r.clip = Clip::kByNorm;
      r.clip_value = 1;
    });
    return;
  }
  rules.add_clipping("as if clipping were off", [](UpdateRule& r) { r.clip = Clip::kOff; });
  for (const double value : {0.1, 0.5, 1.0, 2.0, 5.0, 10.0}) {
    if (value != meant.clip_value) {
      rules.add_clipping(concat("as if gradients were clipped at ", value),
                         [&](UpdateRule& r) { r.clip_value = value; });
    }
  }
  rules.add_clipping(
      meant.clip == Clip::kByNorm ? "as if each element were clipped, not the norm"
                                  : "as if the norm were clipped, not each element",
      [](UpdateRule& r) { r.clip = r.clip == Clip::kByNorm ? Clip::kByValue : Clip::kByNorm; });
  rules.add_clipping("as if each tensor's norm were clipped, not that of all",
                     [](UpdateRule& r) { r.clip = Clip::kEachTensor; });
  rules.add_clipping(
      "as if each tensor's norm were clipped, not that of all (queries, keys and values as one)",
      [](UpdateRule& r) { r.clip = Clip::kEachFused; });
}

void add_adam(const UpdateRule& meant, Rules& rules) {
  for (const double beta : {0.0, 0.5, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9999}) {
    rules.add(concat("as if beta1 were ", beta), [&](UpdateRule& r) { r.beta1 = beta; });
    rules.add(concat("as if beta2 were ", beta), [&](UpdateRule& r) { r.beta2 = beta; });
  }
  rules.add("as if the betas were swapped", [](UpdateRule& r) { std::swap(r.beta1, r.beta2); });
  for (const double eps : {0.0, 1e-15, 1e-12, 1e-10, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3}) {
    rules.add(concat("as if eps were ", eps), [&](UpdateRule& r) { r.eps = eps; });
  }
  using Eps = UpdateRule::Eps;
  rules.add("as if eps were added under the root",
            [](UpdateRule& r) { r.eps_place = Eps::kInRoot; });
  rules.add("as if eps were added before the second moment's bias is corrected",
            [](UpdateRule& r) { r.eps_place = Eps::kBeforeCorrection; });
  rules.add(meant.decoupled ? "as if the decay were added to the gradient (Adam, not AdamW)"
                            : "as if the decay were decoupled (AdamW, not Adam)",
            [](UpdateRule& r) { r.decoupled = !r.decoupled; });
  rules.add("as if the moments' bias were not corrected",
            [](UpdateRule& r) { r.corrects_bias = false; });
  rules.add("as if the bias of the first moment were not corrected",
            [](UpdateRule& r) { r.corrects_first = false; });
  rules.add("as if the bias of the second moment were not corrected",
            [](UpdateRule& r) { r.corrects_second = false; });
  rules.add("as if the largest second moment so far counted (AMSGrad)",
            [](UpdateRule& r) { r.keeps_largest = true; });
  rules.add("as if the first moment were one step on (Nesterov)",
            [](UpdateRule& r) { r.nesterov = true; });
}

void add_sgd(const UpdateRule& meant, Rules& rules) {
  for (const double momentum : {0.0, 0.5, 0.8, 0.9, 0.95, 0.99}) {
    if (momentum != meant.momentum) {
      rules.add(concat("as if momentum were ", momentum),
                [&](UpdateRule& r) { r.momentum = momentum; });
    }
  }
  rules.add(meant.nesterov ? "as if the momentum were not Nesterov's"
                           : "as if the momentum were Nesterov's",
            [](UpdateRule& r) { r.nesterov = !r.nesterov; });
  rules.add("as if new gradients were damped as the old are kept (dampening = momentum)",
            [](UpdateRule& r) { r.dampening = r.momentum; });
  rules.add("as if the decay were decoupled from the momentum",
            [](UpdateRule& r) { r.decoupled = true; });
}

void add_lion(Rules& rules) {
  for (const double beta : {0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999}) {
    rules.add(concat("as if beta1 were ", beta), [&](UpdateRule& r) { r.beta1 = beta; });
    rules.add(concat("as if beta2 were ", beta), [&](UpdateRule& r) { r.beta2 = beta; });
  }
  rules.add("as if the betas were swapped", [](UpdateRule& r) { std::swap(r.beta1, r.beta2); });
}

// With the settings that these have where nothing is said, or that are at hand.
void add_other_optimizers(const UpdateRule& meant, Rules& rules) {
  if (meant.kind != RuleKind::kSgd) {
    for (const double momentum : {0.0, 0.9}) {
      rules.add(concat("as if the optimizer were SGD with momentum ", momentum),
                [&](UpdateRule& r) {
                  r.kind = RuleKind::kSgd;
                  r.momentum = momentum;
                  r.decoupled = false;
                });
    }
  }
  const auto add_pairs = [&](RuleKind kind, const char* text, bool decoupled, double usual_beta2) {
    std::set<std::pair<double, double>> pairs = {{0.9, usual_beta2}, {0.9, 0.95}};
    if (meant.kind != RuleKind::kSgd) {
      pairs.emplace(meant.beta1, meant.beta2);
    }
    for (const auto& [beta1, beta2] : pairs) {
      rules.add(concat("as if the optimizer were ", text, " with betas ", beta1, " and ", beta2),
                [&](UpdateRule& r) {
                  r.kind = kind;
                  r.decoupled = decoupled;
                  r.beta1 = beta1;
                  r.beta2 = beta2;
                  r.nesterov = false;
                });
    }
  };
  if (meant.kind != RuleKind::kAdam) {
    add_pairs(RuleKind::kAdam, "AdamW", true, 0.999);
    add_pairs(RuleKind::kAdam, "Adam", false, 0.999);
  }
  if (meant.kind != RuleKind::kLion) {
    add_pairs(RuleKind::kLion, "Lion", true, 0.99);
  }
}

void add_decays(const UpdateRule& meant, Rules& rules) {
  using Decay = UpdateRule::Decay;
  rules.add("as if every tensor decayed", [](UpdateRule& r) { r.decay = Decay::kAll; });
  rules.add("as if no tensor decayed", [](UpdateRule& r) { r.decay = Decay::kNone; });
  rules.add("as if norms decayed, too", [](UpdateRule& r) { r.decay = Decay::kNormsToo; });
  rules.add("as if biases decayed, too", [](UpdateRule& r) { r.decay = Decay::kBiasesToo; });
  rules.add("as if embeddings did not decay",
            [](UpdateRule& r) { r.decay = Decay::kNotEmbeddings; });
  if (meant.decoupled) {
    rules.add("as if the decay were not multiplied by the learning rate",
              [](UpdateRule& r) { r.decay_times_lr = false; });
  }
  for (const double factor : {0.1, 0.5, 2.0, 10.0}) {
    rules.add(concat("as if weight_decay were ", factor, " times what it says"),
              [&](UpdateRule& r) { r.decay_factor = factor; });
  }
}

// Nothing for a part that is none or all of the tensors.
std::vector<ModelPart> parts_of(const std::vector<std::string>& tensors) {
  const auto holding = [](const std::string& text) {
    return [text](const std::string& name) { return name.find(text) != std::string::npos; };
  };
  std::vector<ModelPart> candidates = {
      {"embeddings", holding("embeddings")},
      {"tok_embeddings", holding("tok_embeddings")},
      {"pos_embeddings", holding("pos_embeddings")},
      {"lm_head", holding("lm_head")},
      {"norms", holding("norm")},
      {"biases", [](const auto& n) { return n.ends_with("bias"); }},
      {"final_norm", holding("final_norm")},
      {"attention blocks", holding(".attention.")},
      {"MLPs", holding(".feed_forward.")},
      {"experts", holding(".moe.experts.")},
      {"routers", holding(".moe.router")}};
  std::set<std::string> layers;
  for (const std::string& name : tensors) {
    if (name.starts_with("layers.")) {
      layers.insert(name.substr(0, name.find('.', 7) + 1));
    }
  }
  if (!layers.empty()) {
    candidates.push_back({"all layers", [](const auto& n) { return n.starts_with("layers."); }});
  }
  for (const std::string& layer : layers) {
    candidates.push_back({layer.substr(0, layer.size() - 1),
                          [layer](const std::string& name) { return name.starts_with(layer); }});
  }
  std::vector<ModelPart> parts;
  std::set<std::vector<bool>> seen;
  for (ModelPart& part : candidates) {
    std::vector<bool> held;
    for (const std::string& name : tensors) {
      held.push_back(part.holds(name));
    }
    const auto count = std::count(held.begin(), held.end(), true);
    if (count > 0 && count < std::ssize(tensors) && seen.insert(held).second) {
      parts.push_back(std::move(part));
    }
  }
  return parts;
}

}  // namespace

std::string short_text(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.6g", value);
  return text.data();
}

double rounded_to(double value, int digits) {
  const int place = static_cast<int>(std::floor(std::log10(value))) + 1 - digits;
  const double unit = std::pow(10.0, std::abs(place));
  return place < 0 ? std::round(value * unit) / unit : std::round(value / unit) * unit;
}

std::vector<KnownRule> known_rules(const UpdateRule& meant, int64_t micro_batches) {
  Rules rules(meant);
  add_clippings(meant, rules);
  switch (meant.kind) {
    case RuleKind::kAdam:
      add_adam(meant, rules);
      break;
    case RuleKind::kSgd:
      add_sgd(meant, rules);
      break;
    case RuleKind::kLion:
      add_lion(rules);
      break;
  }
  add_decays(meant, rules);
  add_other_optimizers(meant, rules);
  for (const double factor : {0.0, 0.1, 0.5, 2.0, 10.0, -1.0}) {
    rules.add_learning_rate(concat("as if the learning rate were ", factor, " times what it says"),
                            [&](UpdateRule& r) { r.lr_factor = factor; });
  }
  if (micro_batches > 1) {
    const auto number = static_cast<double>(micro_batches);
    rules.add(concat("as if gradients were summed over the ", micro_batches,
                     " micro-batches, not averaged"),
              [&](UpdateRule& r) { r.gradient_factor = number; });
    rules.add(concat("as if gradients were divided twice by the number of micro-batches, ",
                     micro_batches),
              [&](UpdateRule& r) { r.gradient_factor = 1 / number; });
  }
  return rules.all;
}

std::vector<RuleFamily> rule_families(const UpdateRule& meant) {
  std::vector<RuleFamily> all;
  const auto add = [&](const std::function<std::string(const std::string&)>& text,
                       const std::function<void(UpdateRule&, double)>& change,
                       std::vector<double> starts, bool is_below_one = false,
                       bool is_clipping = false) {
    all.push_back({[meant, text, change, is_clipping](double value) {
                     UpdateRule rule = meant;
                     change(rule, value);
                     return KnownRule{text(short_text(value)), rule, is_clipping, false};
                   },
                   std::move(starts), is_below_one});
  };
  const auto add_named = [&](const std::string& name,
                             const std::function<void(UpdateRule&, double)>& change,
                             std::vector<double> starts, bool is_below_one = false) {
    add([name](const std::string& value) { return concat("as if ", name, " were ", value); },
        change, std::move(starts), is_below_one);
  };
  add([](const std::string& value) { return "as if gradients were clipped at norm " + value; },
      [](UpdateRule& r, double value) {
        r.clip = Clip::kByNorm;
        r.clip_value = value;
      },
      {10.0, 3.0, 1.0, 0.3, 0.1, 0.03}, false, true);
  add(
      [](const std::string& value) {
        return "as if each element were clipped, not the norm, at " + value;
      },
      [](UpdateRule& r, double value) {
        r.clip = Clip::kByValue;
        r.clip_value = value;
      },
      {1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001}, false, true);
  all.back().has_kinks = true;
  add_named("weight_decay", [](UpdateRule& r, double value) { r.weight_decay = value; },
            {0.01, 0.1, 1.0});
  if (meant.kind != RuleKind::kSgd) {
    add_named(
        "beta1", [](UpdateRule& r, double value) { r.beta1 = value; }, {0.9, 0.6}, true);
    add_named(
        "beta2", [](UpdateRule& r, double value) { r.beta2 = value; }, {0.97, 0.999, 0.8}, true);
  }
  if (meant.kind == RuleKind::kAdam) {
    add_named("eps", [](UpdateRule& r, double value) { r.eps = value; },
              {1e-10, 1e-8, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2});
  }
  if (meant.kind == RuleKind::kSgd) {
    add_named(
        "momentum", [](UpdateRule& r, double value) { r.momentum = value; }, {0.9, 0.6}, true);
  }
  add(
      [](const std::string& value) {
        return "as if gradients were " + value + " times what they are (a loss scale, or a mean)";
      },
      [](UpdateRule& r, double value) { r.gradient_factor = value; }, {2.0, 0.25});
  return all;
}

std::vector<RuleFamily> part_families(const UpdateRule& meant,
                                      const std::vector<std::string>& tensors) {
  std::vector<RuleFamily> all;
  for (const ModelPart& part : parts_of(tensors)) {
    all.push_back({[meant, part](double value) {
                     UpdateRule rule = meant;
                     rule.part = part;
                     rule.part_lr_factor = value;
                     return KnownRule{concat("as if the learning rate of ", part.text, " were ",
                                             short_text(value), " times what it says"),
                                      rule, false, true};
                   },
                   {0.5, 3.0}});
  }
  return all;
}

std::vector<KnownRule> rules_without_a_part(const UpdateRule& meant,
                                            const std::vector<std::string>& tensors) {
  std::vector<KnownRule> all;
  for (const ModelPart& part : parts_of(tensors)) {
    UpdateRule rule = meant;
    rule.part = part;
    rule.part_lr_factor = 0;
    all.push_back({concat("as if ", part.text, " were left out of the optimizer (or frozen)"), rule,
                   false, false});
  }
  return all;
}

}  // namespace tapestry
