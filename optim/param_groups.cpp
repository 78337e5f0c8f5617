#include "optim/param_groups.h"

#include <algorithm>
#include <set>
#include <utility>

#include "autograd/tensor/dtype.h"
#include "autograd/tensor/error.h"
#include "optim/check_settings.h"

namespace tapestry::optim {

namespace {

// A group's own number keeps its ratio to the optimizer's as the factor for schedules, or itself
// where there is none.
void take_default(GroupValue& own, double& factor, bool& is_kept, double of_optimizer) {
  if (!own) {
    own = of_optimizer * factor;
  } else if (*own == 0) {
    factor = 0;
  } else if (factor == 1 && of_optimizer == 0) {
    is_kept = true;
  } else if (factor == 1) {
    factor = *own / of_optimizer;
  }
}

void give_names(ParamGroup& group, size_t g) {
  if (group.names.empty()) {
    for (size_t i = 0; i < group.params.size(); ++i) {
      group.names.push_back(std::to_string(g) + "." + std::to_string(i));
    }
  }
  check<ValueError>(group.names.size() == group.params.size(), "optimizer: group ", g, " has ",
                    group.params.size(), " parameters and ", group.names.size(), " names");
}

}  // namespace

ParamGroups::ParamGroups(std::vector<ParamGroup> groups, GroupDefaults defaults)
    : groups_(std::move(groups)), defaults_(defaults) {
  for (size_t g = 0; g < groups_.size(); ++g) {
    enter(g);
  }
  const bool may_be_empty = std::any_of(groups_.begin(), groups_.end(),
                                        [](const ParamGroup& group) { return group.may_be_empty; });
  check<ValueError>(may_be_empty || !slots_.empty(), "optimizer: no parameters");
}

void ParamGroups::add(ParamGroup group) {
  groups_.push_back(std::move(group));
  try {
    enter(groups_.size() - 1);
  } catch (...) {
    groups_.pop_back();
    throw;
  }
}

// Checks group g and gives its parameters their places.
void ParamGroups::enter(size_t g) {
  ParamGroup& group = groups_[g];
  std::set<const TensorImpl*> seen;
  for (const auto& [name, slot] : slots_) {
    seen.insert(parameter(slot).impl());
  }
  give_names(group, g);
  check_not_negative("optimizer", {{"lr of a group", group.lr.value_or(0)},
                                   {"weight_decay of a group", group.weight_decay.value_or(0)},
                                   {"lr_mult of a group", group.lr_mult},
                                   {"wd_mult of a group", group.wd_mult}});
  std::map<std::string, Slot> slots = slots_;
  for (size_t i = 0; i < group.params.size(); ++i) {
    const Tensor& p = group.params[i];
    check<ValueError>(p.defined() && p.is_contiguous() && p.is_leaf(), "optimizer: parameter '",
                      group.names[i], "' must be a contiguous leaf, got ", describe(p));
    check<TypeError>(is_floating(p.dtype()), "optimizer: parameter '", group.names[i], "' is ",
                     describe(p), "; only floating tensors are trained");
    check<ValueError>(seen.insert(p.impl()).second, "optimizer: parameter '", group.names[i],
                      "' appears twice");
    check<ValueError>(slots.emplace(group.names[i], Slot{g, i}).second, "optimizer: the name '",
                      group.names[i], "' appears twice");
  }
  slots_ = std::move(slots);
  take_default(group.lr, group.lr_mult, group.keeps_lr, defaults_.lr);
  take_default(group.weight_decay, group.wd_mult, group.keeps_weight_decay, defaults_.weight_decay);
}

const ParamGroups::Slot* ParamGroups::find(const std::string& name) const {
  const auto found = slots_.find(name);
  return found == slots_.end() ? nullptr : &found->second;
}

std::vector<ParamGroups::Slot> ParamGroups::slots() const {
  std::vector<Slot> out;
  for (size_t g = 0; g < groups_.size(); ++g) {
    for (size_t i = 0; i < groups_[g].params.size(); ++i) {
      out.push_back({g, i});
    }
  }
  return out;
}

std::vector<ParamGroup> single_group(const TensorList& params,
                                     std::optional<double> lr,
                                     std::optional<double> weight_decay) {
  ParamGroup group;
  group.params = params;
  group.lr = lr;
  group.weight_decay = weight_decay;
  return {group};
}

}  // namespace tapestry::optim
