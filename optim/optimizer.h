// What all optimizers share: a step over the groups (param_groups.h), with masters and states
// (master_weights.h) of what this rank has of each parameter (parameter_places.h).
#pragma once

#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "autograd/kernels/random_rows.h"
#include "autograd/tensor/tensor.h"
#include "nn/module.h"
#include "optim/master_weights.h"
#include "optim/param_groups.h"
#include "optim/parameter_layout.h"
#include "optim/parameter_places.h"
#include "optim/parameter_shards.h"

namespace tapestry::optim {

/// What happens to gradients as they are read.
struct GradTransform {
  double scale = 1;  ///< first multiplied by this: clipping, 1 / loss scale
  double limit = std::numeric_limits<double>::infinity();  ///< then clamped to +-limit
};

/// Base of optimizers. Reads a parameter's grad() (which is its main_grad where it has one) and
/// changes the parameter in place; a parameter without a gradient is left alone, moments included.
///
/// A 16-bit parameter has a float32 master that the update works on; the parameter is the master
/// rounded to nearest even. A float32 parameter with a compute copy (tape/leaf_state.h) has that
/// copy written in the same pass.
///
/// The parameters may be pieces of tensors that a group of ranks updates together (set_shards).
/// Then whatever speaks of one parameter's values or states, and saving and loading, speaks of the
/// whole tensor, which the pieces of all ranks make up.
class Optimizer {
 public:
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;
  virtual ~Optimizer();

  virtual std::string type_name() const = 0;

  /// One update of all parameters.
  void step(const GradTransform& transform = {});
  void step(double grad_scale) { step(GradTransform{.scale = grad_scale}); }
  /// The same for one parameter, in the middle of a backward pass for example. ValueError for an
  /// unknown name.
  void step_parameter(const std::string& parameter_name, const GradTransform& transform = {});
  /// Drops all gradients; a main_grad is filled with zeros instead.
  void zero_grad();

  /// Says that the parameters are pieces, each under the name of its whole. From then on the
  /// functions below that return whole tensors are collective.
  void set_shards(std::shared_ptr<const ParameterShards> shards) {
    places_.set_shards(std::move(shards));
  }
  bool updates_pieces() const { return places_.has_pieces(); }
  /// Says which logical tensors the parameters are made of, and who holds the rest of them; before
  /// the first step. Without, each parameter is one that this rank holds alone.
  void set_layout(std::shared_ptr<const ParameterLayout> layout) {
    places_.set_layout(std::move(layout));
  }

  /// Parameters of the model that are never updated. What is asked of their values below has an
  /// answer, they have no states, and this rank has each of them whole; where others are pieces
  /// their own part is one of all elements. The tensors outlive the optimizer. ValueError for a
  /// name that is updated.
  void set_fixed(std::map<std::string, Tensor> parameters) {
    places_.set_fixed(std::move(parameters));
  }
  bool is_fixed(const std::string& parameter_name) const {
    return places_.is_fixed(parameter_name);
  }

  /// A further group; its parameters have had no update. Errors as for the first groups, and then
  /// nothing is changed; RuntimeError where the parameters are pieces (set_shards).
  void add_param_group(ParamGroup group);
  std::vector<ParamGroup>& param_groups() { return groups_.all(); }
  const std::vector<ParamGroup>& param_groups() const { return groups_.all(); }

  /// The state tensors of one parameter by their keys (StateEntry), zero at first; empty before the
  /// parameter's first step. float32 (float64 parameters: float64), whatever they are stored in:
  /// then a copy.
  std::map<std::string, Tensor> state(const std::string& parameter_name) const;
  /// Updates that the parameter has had.
  int64_t steps_done(const std::string& parameter_name) const;

  /// The values that training goes by: the float32 master of a 16-bit parameter (a copy where it is
  /// stored as remainders), else the parameter itself. ValueError for an unknown name.
  Tensor main_param(const std::string& parameter_name) const;
  /// Sets master and parameter. ValueError for an unknown name or another shape.
  void set_main_param(const std::string& parameter_name, const Tensor& value);
  /// Turns a float32 parameter into a 16-bit one whose master has its values. All handles of the
  /// parameter change with it. The 16-bit values go to `place` where it is given: contiguous, of
  /// the parameter's shape. ValueError for an unknown name, TypeError for other dtypes, or if the
  /// parameter has a gradient (not a main_grad), which is float32: call zero_grad() before.
  void store_parameter_as(const std::string& parameter_name, DType dtype, const Tensor& place = {});

  using OwnPart = optim::OwnPart;
  using StateEntry = optim::StateEntry;
  /// What this rank updates of a parameter.
  OwnPart own_part(const std::string& parameter_name) const;
  /// The tensors of its state, whether or not there has been a step.
  std::vector<StateEntry> state_entries(const std::string& parameter_name) const;
  /// What a state of the parameter is stored in.
  DType own_state_dtype(const std::string& parameter_name, const std::string& state_name) const;
  /// main_param() and state(), of this rank's own part and without a word to other ranks: what has
  /// an entry for each element in the parameter's shape or [count]; in the dtype that they are
  /// stored in (a copy where they share their memory with other bits). States are empty before the
  /// first step.
  Tensor own_main_param(const std::string& parameter_name) const;
  std::map<std::string, Tensor> own_state(const std::string& parameter_name) const;
  /// set_main_param with this rank's own part alone: the parameter's shape or [count].
  void set_own_main_param(const std::string& parameter_name, const Tensor& value);
  /// Puts own_state() back, converting dtypes: `updates` is steps_done(). ValueError, and nothing
  /// changed, unless there is every state with its number of elements and no other, or for fewer
  /// than 0 updates.
  void set_own_state(const std::string& parameter_name,
                     int64_t updates,
                     const std::map<std::string, Tensor>& states);

  /// Every state as "<parameter>.<key>" (see state()) and "<parameter>.step" (int64). Masters are
  /// not in it: they are saved as the weights.
  nn::StateDict state_dict() const;
  /// Puts a saved state back, converting dtypes; a parameter without any entry is one that has had
  /// no update. ValueError, naming every missing, unexpected and mis-shaped entry, or a step that
  /// is negative, and then nothing is changed.
  void load_state_dict(const nn::StateDict& state);

 protected:
  using ParamState = optim::ParamState;

  /// One parameter's part of a step; tensors are contiguous.
  struct Update {
    const ParamGroup* group;
    Tensor values;  ///< to be changed: float32, float64, or the bfloat16 half beside low_bits
    Tensor grad;    ///< any floating dtype
    Tensor copy;    ///< gets the new values too, 16 bits; may be undefined
    ParamState* state;
    /// Random numbers that round its states in this step; empty where none is rounded.
    std::vector<kernels::RandomRows> rounding;
    int64_t first;  ///< number of the first element in the parameter, not 0 for a piece of it
    const std::vector<nn::LogicalTensor>* logical;  ///< what the parameter is made of
    bool is_matrix;                                 ///< so that these have two or more axes
    const RankGroup* slices;                        ///< ParameterLayout::slices_of, or null
    const RankGroup* copies;                        ///< ParameterLayout::copies_of, or null
  };

  /// ValueError if there are no parameters, one is not a contiguous leaf, or one or its name
  /// appears twice, or if names do not match parameters, or for storage that does not exist;
  /// TypeError unless all are floating.
  Optimizer(std::vector<ParamGroup> groups, GroupDefaults defaults, StateStorage storage = {});

  /// ValueError for settings of a group that this optimizer does not take. A constructor of a
  /// derived class calls it for the first groups.
  virtual void check_group(const ParamGroup& group) const = 0;
  /// The states of a parameter of this group. Rows and columns are for matrices.
  virtual std::vector<StateKind> state_kinds(const ParamGroup& group, bool is_matrix) const = 0;
  virtual void update(std::span<const Update> updates, const GradTransform& transform) = 0;

  const StateStorage& storage() const { return masters_.storage(); }

 private:
  ParamState* find_state(const std::string& name);
  const ParamState* find_state(const std::string& name) const;
  void begin_masters(size_t group);
  void add_states(const std::string& name, ParamState& state) const;
  std::vector<kernels::RandomRows> rounding_of(const std::string& name, ParamState& state) const;
  void prepare(const ParamGroups::Slot& slot, std::vector<Update>& updates);
  void run(const std::vector<Update>& updates, const GradTransform& transform);

  ParamGroups groups_;
  ParameterPlaces places_;
  MasterWeights masters_;
  std::map<std::string, ParamState> states_;
};

}  // namespace tapestry::optim
