// What all optimizers share: parameter groups, state by parameter, saving and loading.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "autograd/tensor/tensor.h"
#include "nn/module.h"

namespace tapestry::optim {

/// Parameters that are updated with the same settings.
struct ParamGroup {
  TensorList params;
  /// Their names in the state; "group.index" where left out.
  std::vector<std::string> names;
  double lr = 0;            ///< of the next step; schedules write it
  double weight_decay = 0;  ///< of the next step; schedules write it
  double lr_mult = 1;       ///< factor that a schedule applies for this group
  double wd_mult = 1;       ///< the same for weight decay; 0 for a group without decay
};

/// Base of optimizers. Reads a parameter's grad() (which is its main_grad where it has one) and
/// changes the parameter in place; a parameter without a gradient is left alone, moments included.
class Optimizer {
 public:
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;
  virtual ~Optimizer();

  virtual std::string type_name() const = 0;

  /// One update with gradients multiplied by grad_scale as they are read (for unscaling and
  /// clipping in the same pass).
  void step(double grad_scale = 1.0);
  /// Drops all gradients; a main_grad is filled with zeros instead.
  void zero_grad();

  std::vector<ParamGroup>& param_groups() { return groups_; }
  const std::vector<ParamGroup>& param_groups() const { return groups_; }

  /// The state tensors of one parameter by their names in the literature ("exp_avg", ...); empty
  /// before the parameter's first step.
  std::map<std::string, Tensor> state(const std::string& parameter_name) const;
  /// Updates that the parameter has had.
  int64_t steps_done(const std::string& parameter_name) const;

  /// Every state as "<parameter>.<state>" and "<parameter>.step" (int64).
  nn::StateDict state_dict() const;
  /// Puts a saved state back, converting dtypes; a parameter without any entry is one that has had
  /// no update. ValueError, naming every missing, unexpected and mis-shaped entry, or a step that
  /// is negative, and then nothing is changed.
  void load_state_dict(const nn::StateDict& state);

 protected:
  struct ParamState {
    int64_t step = 0;  ///< updates done, this one included while it runs
    std::map<std::string, Tensor> tensors;
  };

  /// ValueError if there are no parameters, one is not a contiguous leaf, or one or its name
  /// appears twice, or if names do not match parameters; TypeError unless all are float32 or
  /// float64.
  explicit Optimizer(std::vector<ParamGroup> groups);

  /// Names of the state tensors that a parameter has; all of its shape and dtype, zero at first.
  virtual std::vector<std::string> state_names() const = 0;
  /// Changes one contiguous parameter. grad is contiguous.
  virtual void update(const ParamGroup& group,
                      const Tensor& parameter,
                      const Tensor& grad,
                      double grad_scale,
                      ParamState& state) = 0;

 private:
  ParamState& state_of(const std::string& name, const Tensor& parameter);

  std::vector<ParamGroup> groups_;
  std::map<std::string, ParamState> states_;
};

/// One group of all the given parameters.
std::vector<ParamGroup> single_group(const TensorList& params, double lr, double weight_decay);

}  // namespace tapestry::optim
