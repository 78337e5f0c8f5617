// What all optimizers share: parameter groups, state by parameter, saving and loading.
#pragma once

#include <array>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "autograd/kernels/random_rows.h"
#include "autograd/tensor/tensor.h"
#include "nn/module.h"
#include "optim/group_value.h"
#include "optim/parameter_layout.h"
#include "optim/parameter_shards.h"

namespace tapestry::optim {

/// Parameters that are updated with the same settings.
struct ParamGroup {
  TensorList params;
  /// Their names in the state; "group.index" where left out.
  std::vector<std::string> names;
  /// Of the next step; schedules write both. What a group leaves out is the optimizer's, times the
  /// factor below. What it gives keeps its ratio to the optimizer's under a schedule: that becomes
  /// the factor, unless one was given too or the optimizer's is 0. So a 0 that is given stays 0.
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
};

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

/// How an optimizer holds what it keeps for each parameter. All states of a float64 parameter are
/// float64, whatever is written here.
struct StateStorage {
  /// Adam's moments: float32 or bfloat16. A bfloat16 moment is rounded stochastically after each
  /// step: rounded to nearest, it would stop where a step changes it by less than half a unit.
  DType exp_avg_dtype = kFloat32;
  DType exp_avg_sq_dtype = kFloat32;
  /// Of a bfloat16 parameter, keep the 16 bits that it lacks in place of a whole float32 master
  /// (kernels/optimizer.h, split_float32): 4 bytes for both instead of 6, and the same values.
  bool store_param_remainders = false;
  /// Of the stochastic rounding. Its random numbers are those of seed, step, name and position of
  /// an element in its logical tensor, so the same in every layout (nn/random_rows.h).
  uint64_t seed = 0;
};

/// What groups have that say nothing else.
struct GroupDefaults {
  double lr = 0;
  double weight_decay = 0;
};

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
  void set_shards(std::shared_ptr<const ParameterShards> shards) { shards_ = std::move(shards); }
  bool updates_pieces() const { return shards_ != nullptr; }
  /// Says which logical tensors the parameters are made of, and who holds the rest of them; before
  /// the first step. Without, each parameter is one that this rank holds alone.
  void set_layout(std::shared_ptr<const ParameterLayout> layout) { layout_ = std::move(layout); }

  /// Parameters of the model that are never updated. What is asked of their values below has an
  /// answer, they have no states, and this rank has each of them whole; where others are pieces
  /// their own part is one of all elements. The tensors outlive the optimizer. ValueError for a
  /// name that is updated.
  void set_fixed(std::map<std::string, Tensor> parameters);
  bool is_fixed(const std::string& parameter_name) const { return fixed_.contains(parameter_name); }

  /// A further group; its parameters have had no update. Errors as for the first groups, and then
  /// nothing is changed; RuntimeError where the parameters are pieces (set_shards).
  void add_param_group(ParamGroup group);
  std::vector<ParamGroup>& param_groups() { return groups_; }
  const std::vector<ParamGroup>& param_groups() const { return groups_; }

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

  /// The elements [first, first + count), in order, of a parameter of this shape that this rank
  /// updates: all of them, or where the parameters are pieces its piece.
  struct OwnPart {
    Shape shape;
    int64_t first = 0;
    int64_t count = 0;
  };
  OwnPart own_part(const std::string& parameter_name) const;
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
  struct ParamState {
    int64_t step = 0;         ///< updates done, this one included while it runs
    bool has_states = false;  ///< there has been a step, or a saved state was loaded
    std::map<std::string, Tensor> tensors;
    Tensor main_param;  ///< float32 master of a 16-bit parameter
    Tensor low_bits;    ///< or its 16 lower bits; the dtype says nothing
    /// Which random numbers its elements take, whatever the step; as they are asked for.
    std::vector<kernels::RandomRows> numbers;
  };

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

  const StateStorage& storage() const { return storage_; }

 private:
  struct Slot {
    size_t group;
    size_t index;
  };

  void register_group(size_t g);
  const Slot& slot_of(const std::string& name) const;
  Tensor parameter_of(const std::string& name) const;
  const std::vector<nn::LogicalTensor>& logical_of(const std::string& name) const;
  DType state_dtype(const std::string& state_name, const Tensor& parameter) const;
  Tensor logical_state(const std::string& state_name, const ParamState& state) const;
  Tensor joined(const Tensor& parameter, const ParamState& state) const;
  void split(const Tensor& values, const Tensor& parameter, const ParamState& state) const;
  void add_low_bits(const Tensor& parameter, ParamState& state) const;
  void add_states(const std::string& name, ParamState& state) const;
  std::vector<kernels::RandomRows> rounding_of(const std::string& name, ParamState& state) const;
  void prepare(const Slot& slot, std::vector<Update>& updates);
  void run(const std::vector<Update>& updates, const GradTransform& transform);

  std::vector<ParamGroup> groups_;
  GroupDefaults defaults_;
  StateStorage storage_;
  std::map<std::string, Slot> slots_;
  std::map<std::string, ParamState> states_;
  std::map<std::string, Tensor> fixed_;
  std::shared_ptr<const ParameterShards> shards_;
  std::shared_ptr<const ParameterLayout> layout_;
  mutable std::map<std::string, std::vector<nn::LogicalTensor>> logical_;  // as they are asked for
};

/// One group of all the given parameters.
std::vector<ParamGroup> single_group(const TensorList& params,
                                     std::optional<double> lr = std::nullopt,
                                     std::optional<double> weight_decay = std::nullopt);

}  // namespace tapestry::optim
