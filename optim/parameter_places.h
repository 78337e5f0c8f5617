// Which part of its parameters an optimizer updates, and what shapes their states have.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "autograd/tensor/tensor.h"
#include "nn/parameter.h"
#include "optim/param_groups.h"
#include "optim/parameter_layout.h"
#include "optim/parameter_shards.h"

namespace tapestry::optim {

/// What a state has entries for. A logical tensor with two or more axes is a matrix [rows, columns]
/// or a stack of them; a parameter by itself is one logical tensor.
enum class StateExtent : uint8_t {
  kElement,  ///< the elements of the parameter
  kRow,      ///< the rows of each of its logical tensors, so of shape [..., rows]
  kColumn,   ///< the columns of each of them, [..., columns]
};
struct StateKind {
  std::string name;  ///< in the literature: "exp_avg", ...
  StateExtent extent = StateExtent::kElement;
};

/// The elements [first, first + count), in order, of a parameter of this shape that this rank
/// updates: all of them, or where the parameters are pieces its piece.
struct OwnPart {
  Shape shape;
  int64_t first = 0;
  int64_t count = 0;
};

/// One tensor of a parameter's state, whether or not there has been a step.
struct StateEntry {
  std::string key;   ///< the kind's name; of the second of several logical tensors "NAME.1"
  std::string name;  ///< the kind's
  StateExtent extent = StateExtent::kElement;
  size_t logical = 0;  ///< number of the logical tensor that rows and columns are of
  /// The parameter's shape, or that of the statistics of the whole logical tensor, which every
  /// rank has that updates a part of it.
  Shape shape;
};

/// Finds parameters by name, those of the groups and those that are never updated, with their place
/// in the tensors of the model.
class ParameterPlaces {
 public:
  /// `groups` outlive the object; errors begin with the optimizer's name.
  ParameterPlaces(const ParamGroups& groups, std::function<std::string()> optimizer)
      : groups_(groups), optimizer_(std::move(optimizer)) {}

  /// See the functions of Optimizer with the same names.
  void set_shards(std::shared_ptr<const ParameterShards> shards) { shards_ = std::move(shards); }
  void set_layout(std::shared_ptr<const ParameterLayout> layout) { layout_ = std::move(layout); }
  void set_fixed(std::map<std::string, Tensor> parameters);
  bool has_pieces() const { return shards_ != nullptr; }
  bool is_fixed(const std::string& name) const { return fixed_.contains(name); }
  /// Of a fixed parameter all of it.
  Tensor fixed_value(const std::string& name) const { return fixed_.at(name).detach(); }

  /// ValueError for an unknown name.
  const ParamGroups::Slot& slot_of(const std::string& name) const;
  /// What this rank has of a parameter, a fixed one too. The same error.
  Tensor parameter_of(const std::string& name) const;
  OwnPart own_part(const std::string& name) const;
  /// What the parameter is made of.
  const std::vector<nn::LogicalTensor>& logical_of(const std::string& name) const;
  /// The states of these kinds.
  std::vector<StateEntry> entries(const std::string& name,
                                  const std::vector<StateKind>& kinds) const;

  /// The tensor whose piece is this rank's, and the other way round; of parameters that are no
  /// pieces, and of statistics, the same.
  Tensor whole_of(const std::string& name, const Tensor& own, StateExtent extent) const;
  Tensor piece_of(const std::string& name, const Tensor& whole, StateExtent extent) const;

  int64_t first_element(const std::string& name) const {
    return shards_ != nullptr ? shards_->first_element(name) : 0;
  }
  const RankGroup* slices_of(const std::string& name) const {
    return layout_ != nullptr ? layout_->slices_of(name) : nullptr;
  }
  const RankGroup* copies_of(const std::string& name) const {
    return layout_ != nullptr ? layout_->copies_of(name) : nullptr;
  }

 private:
  const ParamGroups& groups_;
  std::function<std::string()> optimizer_;
  std::map<std::string, Tensor> fixed_;
  std::shared_ptr<const ParameterShards> shards_;
  std::shared_ptr<const ParameterLayout> layout_;
  mutable std::map<std::string, std::vector<nn::LogicalTensor>> logical_;  // as they are asked for
};

}  // namespace tapestry::optim
