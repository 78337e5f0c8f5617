#include "optim/adafactor.h"

#include <algorithm>
#include <cmath>

#include "autograd/tensor/error.h"
#include "optim/check_settings.h"

namespace tapestry::optim {

namespace {

double relative_step(int64_t step, bool warmup_init) {
  const auto t = static_cast<double>(step);
  return std::min(warmup_init ? 1e-6 * t : 1e-2, 1.0 / std::sqrt(t));
}

}  // namespace

Adafactor::Adafactor(const TensorList& params, AdafactorOptions options)
    : Adafactor(single_group(params), options) {}

Adafactor::Adafactor(std::vector<ParamGroup> groups, AdafactorOptions options)
    : FactoredOptimizer(std::move(groups), {options.lr.value_or(0), options.weight_decay}),
      options_(options) {
  check_not_negative("Adafactor", {{"lr", options.lr.value_or(0)},
                                   {"eps2", options.eps2},
                                   {"decay_rate", options.decay_rate},
                                   {"weight_decay", options.weight_decay}});
  check_above_0("Adafactor", {{"eps1", options.eps1}, {"clip_threshold", options.clip_threshold}});
  check_betas("Adafactor", {options.beta1.value_or(0), 0});
  check<ValueError>(!options.warmup_init || !options.lr,
                    "Adafactor: warmup_init is of the relative step, there is an lr ",
                    options.lr.value_or(0));
  for (const ParamGroup& group : param_groups()) {
    Adafactor::check_group(group);
  }
}

void Adafactor::check_group(const ParamGroup& group) const {
  check<ValueError>(!group.betas.has_value(), "Adafactor: a group has betas, which are Adam's");
}

std::vector<StateKind> Adafactor::state_kinds(const ParamGroup& /*group*/, bool is_matrix) const {
  std::vector<StateKind> kinds = {{"exp_avg_sq"}};
  if (is_matrix) {
    kinds = {{"exp_avg_sq_row", StateExtent::kRow}, {"exp_avg_sq_col", StateExtent::kColumn}};
  }
  if (options_.beta1) {
    kinds.push_back({"exp_avg"});
  }
  return kinds;
}

void Adafactor::update(std::span<const Update> updates, const GradTransform& transform) {
  std::vector<FactoredStep::Parameter> parameters = parameters_of(updates);
  for (size_t i = 0; i < updates.size(); ++i) {
    const int64_t step = updates[i].state->step;
    parameters[i].beta2 = 1.0 - std::pow(static_cast<double>(step), -options_.decay_rate);
    if (!options_.lr) {
      parameters[i].lr = relative_step(step, options_.warmup_init);
    }
  }
  FactoredStep factored(std::move(parameters), {.eps1 = options_.eps1,
                                                .eps2 = options_.eps2,
                                                .clip_threshold = options_.clip_threshold,
                                                .beta1 = options_.beta1.value_or(0),
                                                .scale_parameter = options_.scale_parameter,
                                                .transform = transform,
                                                .cut_in_pieces = updates_pieces()});
  factored.find_directions();
  factored.apply_directions();
}

}  // namespace tapestry::optim
