#include "diagnosis/verify/faults/step_comparison.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "autograd/ops/shape_ops.h"
#include "autograd/tensor/error.h"
#include "diagnosis/verify/layout_comparison.h"

namespace tapestry {

namespace {

double relative_difference(double found, double expected) {
  const double difference = std::abs(found - expected);
  return difference == 0 ? 0 : difference / std::abs(expected);
}

double excess_of(double found, double expected) {
  return found == expected || expected == 0 ? 0 : (found - expected) / std::abs(expected);
}

// The reference's [1, S, heads * D] as ours, [1, heads, S, D], if that is so.
Tensor in_shape_of(const Tensor& value, const Tensor& expected) {
  const bool by_heads = value.dim() == 4 && expected.dim() == 3 && value.size(0) == 1 &&
                        expected.size(0) == 1 && expected.size(1) == value.size(2);
  return by_heads
             ? transpose(expected.reshape({1, value.size(2), value.size(1), value.size(3)}), 1, 2)
             : expected.reshape(value.shape());
}

constexpr double kScheduleBound = 1e-6;

// "a.b" of "a.b.c" and "a.b.d.e".
std::string common_parent(const std::string& a, const std::string& b) {
  size_t end = 0;
  for (size_t i = 0; i <= std::min(a.size(), b.size()); ++i) {
    const bool a_ends = i == a.size() || a[i] == '.';
    const bool b_ends = i == b.size() || b[i] == '.';
    if (a_ends && b_ends) {
      end = i;
    }
    if (i < std::min(a.size(), b.size()) && a[i] != b[i]) {
      break;
    }
  }
  return a.substr(0, end);
}

// True of a block in a layer, "...layers.3.mlp", and what lies in it.
bool is_inside_a_layer(const std::string& path) {
  const size_t layers = path.find("layers.");
  return layers != std::string::npos && path.find('.', layers + 7) != std::string::npos;
}

}  // namespace

std::string module_of_value(const OwnRun& run, const std::string& value) {
  static const std::map<std::string, std::string> kPaths = {
      {"attention_norm", "input_norm"},
      {"attention.query", "attention.qkv_proj"},
      {"attention.key", "attention.qkv_proj"},
      {"attention.value", "attention.qkv_proj"},
      {"attention.q", "attention"},
      {"attention.k", "attention"},
      {"attention.v", "attention.qkv_proj"},
      {"attention.context", "attention"},
      {"attention", "attention.out_proj"},
      {"ffn_norm", "post_attention_norm"},
      {"mlp.gate", "mlp.mapping"},
      {"mlp.up", "mlp.mapping"},
      {"mlp.active", "mlp"},
      {"mlp", "mlp"},
      {"moe.router_logits", "mlp.router"},
      {"moe.gates", "mlp.router"},
      {"attention_residual", ""},
      {"output", ""}};
  std::string path;
  if (value.starts_with("layers.")) {
    const size_t end = value.find('.', 7);
    const auto inside = kPaths.find(end == std::string::npos ? "" : value.substr(end + 1));
    if (inside != kPaths.end()) {
      path = "language_model.encoder." + value.substr(0, end) +
             (inside->second.empty() ? "" : "." + inside->second);
    }
  } else if (value == "embedding") {
    path = "language_model.embedding";
  } else if (value == "final_norm") {
    path = "language_model.encoder.final_norm";
  } else if (value == "logits") {
    path = "parallel_lm_logits";
  }
  return run.types.contains(path) ? path : maker_of_activation(value);
}

BackwardPlace place_in_backward(const std::vector<const ComparedQuantity*>& gradients,
                                size_t first) {
  const ComparedQuantity& wrong = *gradients.at(first);
  const bool alone = std::none_of(gradients.begin(), gradients.end(), [&](const auto* each) {
    return !each->finding.agrees() && each->module != wrong.module;
  });
  if (alone) {
    return {wrong.module, concat("no other module's gradients differ: what ", wrong.module,
                                 " computes for its own parameters is wrong")};
  }
  if (first == 0) {
    return {wrong.module, "the gradient that arrives at the last of the parameters is wrong"};
  }
  const ComparedQuantity& before = *gradients.at(first - 1);
  const std::string both = common_parent(before.module, wrong.module);
  return {is_inside_a_layer(both) ? both : before.module,
          concat("that of ", before.finding.name,
                 ", which is computed before, agrees: what is handed on between ", before.module,
                 " and ", wrong.module, " is wrong")};
}

double StepComparison::distance_of(const Tensor& found, const Tensor& expected) const {
  return config_.model_config.compute_dtype != kFloat32
             ? norm_distance(found, expected, euclidean_norm(expected))
             : element_distance(found, expected, largest_element(expected));
}

ZeroGradient StepComparison::zero(const std::string& tensor) const {
  return has_zero_gradient(config_.model_config, tensor);
}

double StepComparison::gradient_distance(const std::string& tensor,
                                         const Tensor& found,
                                         const Tensor& expected,
                                         double norm) const {
  return zero(tensor) == ZeroGradient::kAll ? norm_distance(found, expected, norm)
                                            : distance_of(found, expected);
}

void StepComparison::measure(const OwnRun& moved) {
  for (size_t i = 0; i < own_.steps.size(); ++i) {
    const OwnStep& a = own_.steps[i];
    const OwnStep& b = moved.steps[i];
    const auto add_distance = [&](Compared what, double distance,
                                  ZeroGradient zero_gradient = ZeroGradient::kNone) {
      spread_.add({.what = what,
                   .step = static_cast<int64_t>(i) + 1,
                   .distance = distance,
                   .zero_gradient = zero_gradient});
    };
    for (const auto& [name, value] : a.values) {
      add_distance(Compared::kActivation, distance_of(b.values.at(name), value));
    }
    for (const auto& [name, gradient] : a.gradients) {
      add_distance(Compared::kGradient,
                   gradient_distance(name, b.gradients.at(name), gradient, a.result.grad_norm),
                   zero(name));
    }
    for (const auto& [name, entry] : a.update.entries) {
      add_distance(
          Compared::kWeights,
          norm_distance(b.update.entries.at(name).after, entry.after, euclidean_norm(entry.after)),
          zero(name));
    }
    add_distance(Compared::kLoss, relative_difference(b.result.loss, a.result.loss));
    add_distance(Compared::kGradNorm, relative_difference(b.result.grad_norm, a.result.grad_norm));
  }
}

void StepComparison::add(std::vector<ComparedQuantity>& all, ComparedQuantity entry) const {
  entry.finding.bound = spread_.bound_of(entry.finding);
  all.push_back(std::move(entry));
}

std::vector<ComparedQuantity> StepComparison::compare(int64_t step) const {
  const OwnStep& own = own_.steps.at(static_cast<size_t>(step - 1));
  const ReferenceStep& theirs = reference_.step(step);
  std::vector<ComparedQuantity> all;
  if (theirs.loss_tokens) {
    all.push_back({.finding = {.what = Compared::kTokens,
                               .step = step,
                               .name = "loss_tokens",
                               .distance = std::abs(own.result.loss_tokens - *theirs.loss_tokens)},
                   .stage = "loss"});
  }
  add_values(step, all);
  if (theirs.loss) {
    // Where a step has no values, the loss tells of the whole forward pass.
    const bool values_known = std::any_of(all.begin(), all.end(), [](const auto& each) {
      return each.finding.what == Compared::kActivation;
    });
    add(all, {.finding = {.what = Compared::kLoss,
                          .step = step,
                          .name = "loss",
                          .made_by = "VocabParallelCrossEntropy",
                          .distance = relative_difference(own.result.loss, *theirs.loss),
                          .detail = concat(own.result.loss, " against ", *theirs.loss)},
              .stage = values_known ? "loss" : "forward",
              .pass = "forward",
              .module = "loss",
              .excess = excess_of(own.result.loss, *theirs.loss)});
  }
  add_gradients(step, all);
  if (theirs.grad_norm) {
    add(all, {.finding = {.what = Compared::kGradNorm,
                          .step = step,
                          .name = "grad_norm",
                          .distance = relative_difference(own.result.grad_norm, *theirs.grad_norm),
                          .detail = concat(own.result.grad_norm, " against ", *theirs.grad_norm)},
              .stage = "reduction",
              .pass = "backward",
              .excess = excess_of(own.result.grad_norm, *theirs.grad_norm)});
  }
  add_learning_rates(step, all);
  add_weights(step, all);
  return all;
}

void StepComparison::add_values(int64_t step, std::vector<ComparedQuantity>& all) const {
  const auto stored = reference_.activations(step);
  if (!stored) {
    return;
  }
  const OwnStep& own = own_.steps.at(static_cast<size_t>(step - 1));
  std::vector<std::string> names;
  for (const auto& [name, value] : own.values) {
    if (stored->contains(name)) {
      names.push_back(name);
    }
  }
  std::sort(names.begin(), names.end(), [&](const std::string& a, const std::string& b) {
    return own_.value_order.at(a) < own_.value_order.at(b);
  });
  for (const std::string& name : names) {
    const Tensor& value = own.values.at(name);
    const Tensor expected = stored->at(name);
    const bool same_size = expected.numel() == value.numel();
    add(all, {.finding = {.what = Compared::kActivation,
                          .step = step,
                          .name = name,
                          .made_by = maker_of_activation(name),
                          .distance = same_size ? distance_of(value, in_shape_of(value, expected))
                                                : std::numeric_limits<double>::infinity()},
              .stage = "forward",
              .pass = "forward",
              .module = module_of_value(own_, name)});
  }
}

void StepComparison::add_gradients(int64_t step, std::vector<ComparedQuantity>& all) const {
  const OwnStep& own = own_.steps.at(static_cast<size_t>(step - 1));
  const ReferenceStep& theirs = reference_.step(step);
  const auto stored = reference_.gradients(step);
  for (auto name = own_.tensors.rbegin(); name != own_.tensors.rend(); ++name) {
    const auto gradient = own.gradients.find(*name);
    if (gradient == own.gradients.end()) {
      continue;
    }
    ComparedQuantity entry{.finding = {.what = Compared::kGradient,
                                       .step = step,
                                       .name = *name,
                                       .made_by = "backward of " + own_.maker(*name),
                                       .zero_gradient = zero(*name)},
                           .stage = "backward",
                           .pass = "backward",
                           .module = own_.paths.at(*name)};
    if (stored && stored->contains(*name)) {
      entry.finding.distance = gradient_distance(
          *name, gradient->second, stored->at(*name).reshape(gradient->second.shape()),
          own.result.grad_norm);
      if (zero(*name) == ZeroGradient::kNone) {
        entry.excess =
            excess_of(euclidean_norm(gradient->second), euclidean_norm(stored->at(*name)));
      }
      add(all, std::move(entry));
    } else if (const auto norm = theirs.grad_norms.find(*name);
               norm != theirs.grad_norms.end() && zero(*name) == ZeroGradient::kNone) {
      entry.finding.distance = relative_difference(euclidean_norm(gradient->second), norm->second);
      entry.excess = excess_of(euclidean_norm(gradient->second), norm->second);
      add(all, std::move(entry));
    }
  }
}

void StepComparison::add_learning_rates(int64_t step, std::vector<ComparedQuantity>& all) const {
  const OwnStep& own = own_.steps.at(static_cast<size_t>(step - 1));
  const std::vector<double>& theirs = reference_.step(step).lr;
  const auto add_rate = [&](const std::string& name, double ours, double other,
                            const std::string& module) {
    all.push_back({.finding = {.what = Compared::kSchedule,
                               .step = step,
                               .name = name,
                               .distance = relative_difference(ours, other),
                               .bound = kScheduleBound,
                               .detail = concat(ours, " against ", other)},
                   .stage = "schedule",
                   .module = module});
  };
  for (size_t i = 0; i < theirs.size() && i < own.result.lr.size(); ++i) {
    add_rate(concat("learning rate of group ", i), own.result.lr[i], theirs[i], "");
  }
  // Where the reference has one rate for all, so must every tensor here.
  const bool one_rate =
      !theirs.empty() && std::set<double>(theirs.begin(), theirs.end()).size() == 1;
  if (one_rate && update_rule(config_)) {
    for (const auto& [name, entry] : own.update.entries) {
      add_rate("learning rate of " + name, entry.lr, theirs.front(), own_.paths.at(name));
    }
  }
}

void StepComparison::add_weights(int64_t step, std::vector<ComparedQuantity>& all) const {
  const auto stored = reference_.weights(step);
  if (!stored) {
    return;
  }
  const OwnStep& own = own_.steps.at(static_cast<size_t>(step - 1));
  for (const std::string& name : own_.tensors) {
    const auto found = stored->find(name);
    if (found == stored->end() || !own.update.entries.contains(name) ||
        zero(name) == ZeroGradient::kAll) {
      continue;
    }
    add(all, {.finding = {.what = Compared::kWeights,
                          .step = step,
                          .name = name,
                          .distance = norm_distance(own.update.entries.at(name).after,
                                                    found->second, euclidean_norm(found->second)),
                          .zero_gradient = zero(name)},
              .stage = "optimizer",
              .module = own_.paths.at(name)});
  }
}

}  // namespace tapestry
