// Groups of parameters that are updated with the same settings.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "autograd/tensor/tensor.h"
#include "optim/group_value.h"

namespace tapestry::optim {

/// Parameters that are updated with the same settings.
struct ParamGroup {
  TensorList params;
  /// Their names in the state; "group.index" where left out.
  std::vector<std::string> names;
  /// Of the next step; schedules write both. What a group leaves out is the optimizer's, times the
  /// factor below. What it gives keeps its ratio to the optimizer's under a schedule: that becomes
  /// the factor, unless one was given too. So a 0 that is given stays 0. To an optimizer's 0 there
  /// is no ratio: schedules leave what is given then (keeps_lr, keeps_weight_decay).
  GroupValue lr = {};
  GroupValue weight_decay = {};
  double lr_mult = 1;  ///< factor that a schedule applies for this group
  double wd_mult = 1;  ///< the same for weight decay; 0 for a group without decay
  /// Adam's decay rates of the two moments, in place of the optimizer's.
  std::optional<std::array<double, 2>> betas = {};
  /// Muon: updates these with AdamW, whatever their shape.
  bool adamw = false;
  /// Without a parameter in any group there is nothing to train, which is an error unless others
  /// train: where a stage of a pipeline has none.
  bool may_be_empty = false;
  /// Schedules leave lr, or weight_decay, as it is.
  bool keeps_lr = false;
  bool keeps_weight_decay = false;
};

/// What groups have that say nothing else.
struct GroupDefaults {
  double lr = 0;
  double weight_decay = 0;
};

/// One group of all the given parameters.
std::vector<ParamGroup> single_group(const TensorList& params,
                                     std::optional<double> lr = std::nullopt,
                                     std::optional<double> weight_decay = std::nullopt);

/// The groups of an optimizer, and where in them a parameter is.
class ParamGroups {
 public:
  struct Slot {
    size_t group;
    size_t index;
  };

  /// ValueError if there are no parameters, one is not a contiguous leaf, or one or its name
  /// appears twice, or if names do not match parameters; TypeError unless all are floating.
  ParamGroups(std::vector<ParamGroup> groups, GroupDefaults defaults);

  /// A further group. Errors as above, and then nothing is changed.
  void add(ParamGroup group);

  std::vector<ParamGroup>& all() { return groups_; }
  const std::vector<ParamGroup>& all() const { return groups_; }
  /// Null for a name that no group has.
  const Slot* find(const std::string& name) const;
  /// All parameters, group by group.
  std::vector<Slot> slots() const;
  const ParamGroup& group(const Slot& slot) const { return groups_[slot.group]; }
  const Tensor& parameter(const Slot& slot) const { return group(slot).params[slot.index]; }
  const std::string& name(const Slot& slot) const { return group(slot).names[slot.index]; }

 private:
  void enter(size_t g);

  std::vector<ParamGroup> groups_;
  GroupDefaults defaults_;
  std::map<std::string, Slot> slots_;
};

}  // namespace tapestry::optim
