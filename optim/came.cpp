#include "optim/came.h"

#include <cmath>

#include "autograd/tensor/error.h"
#include "optim/check_settings.h"

namespace tapestry::optim {

Came::Came(const TensorList& params, CameOptions options) : Came(single_group(params), options) {}

Came::Came(std::vector<ParamGroup> groups, CameOptions options)
    : FactoredOptimizer(std::move(groups), {options.lr, options.weight_decay}), options_(options) {
  check_not_negative("Came", {{"lr", options.lr},
                              {"eps2", options.eps2},
                              {"decay_rate", options.decay_rate},
                              {"weight_decay", options.weight_decay}});
  check_above_0("Came", {{"beta1", options.beta1},
                         {"eps1", options.eps1},
                         {"eps3", options.eps3},
                         {"clip_threshold", options.clip_threshold}});
  check_betas("Came", {options.beta1, options.beta3});
  check_betas("Came", {options.beta1, options.beta2.value_or(0)});
  for (const ParamGroup& group : param_groups()) {
    Came::check_group(group);
  }
}

void Came::check_group(const ParamGroup& group) const {
  check<ValueError>(!group.betas.has_value(), "Came: a group has betas, which are Adam's");
}

std::vector<StateKind> Came::state_kinds(const ParamGroup& /*group*/, bool is_matrix) const {
  if (!is_matrix) {
    return {{"exp_avg"}, {"exp_avg_sq"}};
  }
  return {{"exp_avg"},
          {"exp_avg_sq_row", StateExtent::kRow},
          {"exp_avg_sq_col", StateExtent::kColumn},
          {"exp_avg_res_row", StateExtent::kRow},
          {"exp_avg_res_col", StateExtent::kColumn}};
}

void Came::update(std::span<const Update> updates, const GradTransform& transform) {
  std::vector<FactoredStep::Parameter> parameters = parameters_of(updates);
  for (size_t i = 0; i < updates.size(); ++i) {
    const auto step = static_cast<double>(updates[i].state->step);
    parameters[i].beta2 = options_.beta2.value_or(1.0 - std::pow(step, -options_.decay_rate));
  }
  FactoredStep factored(std::move(parameters), {.eps1 = options_.eps1,
                                                .eps2 = options_.eps2,
                                                .eps3 = options_.eps3,
                                                .clip_threshold = options_.clip_threshold,
                                                .beta1 = options_.beta1,
                                                .scale_parameter = options_.scale_parameter,
                                                .transform = transform,
                                                .cut_in_pieces = updates_pieces()});
  factored.find_directions();
  factored.apply_with_confidence(options_.beta3);
}

}  // namespace tapestry::optim
