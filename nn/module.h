// Module: a tree of named parameters, buffers and children.
#pragma once

#include <atomic>
#include <functional>
#include <iosfwd>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "autograd/tensor/tensor.h"
#include "nn/parameter.h"

namespace tapestry::nn {

/// Tensors by name, for saving and loading.
using StateDict = std::map<std::string, Tensor>;

/// What load_state_dict found to differ.
struct LoadReport {
  struct Mismatch {
    std::string name;
    Shape expected;
    Shape found;
  };
  std::vector<std::string> missing;     ///< in the module, not (or undefined) in the dictionary
  std::vector<std::string> unexpected;  ///< in the dictionary, not in the module
  std::vector<Mismatch> mismatched;     ///< in both, with different shapes

  bool empty() const { return missing.empty() && unexpected.empty() && mismatched.empty(); }
  /// One line per finding; of more than six of a kind for the first five, and how many more.
  std::string str() const;
};

/// Base of everything with parameters. Owns its parameters, buffers and children at fixed
/// addresses, in order of registration; neither copied nor moved. Paths join names with dots.
class Module {
 public:
  Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;
  virtual ~Module();

  /// Type as printed in the tree, for example "Linear".
  virtual std::string type_name() const = 0;
  /// What is printed in the parentheses behind the type, for example "in=4, out=3, bias".
  virtual std::string extra_repr() const { return {}; }

  struct NamedParameter {
    std::string name;
    Parameter* parameter;
  };
  struct NamedBuffer {
    std::string name;
    Tensor buffer;
    std::string logical;  ///< see register_buffer
  };
  struct NamedModule {
    std::string name;
    Module* module;
  };
  /// All parameters of the tree, own ones first. A parameter that is registered in two places (tied
  /// weights) appears once, under its first name.
  std::vector<NamedParameter> named_parameters() const;
  /// Of these the ones that want gradients: what is trained.
  std::vector<NamedParameter> trained_parameters() const;
  /// Handles of all, for an optimizer.
  TensorList parameters() const;
  std::vector<NamedBuffer> named_buffers() const;
  /// This module (under the empty name) and all below it.
  std::vector<NamedModule> named_modules();
  const std::vector<NamedModule>& named_children() const { return child_list_; }
  int64_t num_parameters() const;

  /// Switches the whole tree between training and evaluation (dropout off).
  void train(bool on = true);
  void eval() { train(false); }
  bool is_training() const { return training_; }
  /// Converts all floating parameters and buffers, and gradients with them; every handle of them
  /// shows the new values. An optimizer is made afterwards: it may hold a float32 master by dtype.
  /// TypeError for a dtype that is not floating, RuntimeError if a parameter has a main_grad; then
  /// nothing is changed.
  void to(DType dtype);
  /// Drops the gradients of all parameters; a main_grad is filled with zeros instead.
  void zero_grad();

  /// Where it is in its tree, for example "layers.0.attention"; empty for the root.
  const std::string& path() const;

  /// Parameters and buffers by path. The tensors share storage with the module.
  StateDict state_dict() const;
  /// Copies values into parameters and buffers by path, converting dtypes. Nothing is changed
  /// unless everything fits: ValueError with the full report. With strict = false missing and
  /// unexpected names are only reported; a wrong shape is always an error.
  LoadReport load_state_dict(const StateDict& state, bool strict = true);

 protected:
  // A name is not empty, has no dot and is used once among parameters, buffers and children; what
  // is registered is not undefined or null. ValueError otherwise.
  Parameter& register_parameter(std::string name, const Tensor& value, ParameterFlags flags = {});
  /// A tensor that belongs to the state but is not trained. With a `logical` name, which no
  /// parallel layout changes, it is one of the weights wherever these are saved or loaded, and
  /// equal on all ranks of a stage.
  Tensor register_buffer(std::string name, const Tensor& value, std::string logical = {});
  /// Makes a child: register_module<Linear>("fc1", 4, 8).
  template <class M, class... Args>
  // NOLINTNEXTLINE(performance-unnecessary-value-param): is moved on, which the check misses here
  M& register_module(std::string name, Args&&... args) {
    return static_cast<M&>(
        add_child(std::move(name), std::make_unique<M>(std::forward<Args>(args)...)));
  }
  /// Takes over a child that was made elsewhere.
  Module& add_child(std::string name, std::unique_ptr<Module> child);

 private:
  void check_name(const std::string& name) const;
  void forget_paths();

  const Module* parent_ = nullptr;
  std::string name_;                                       // among the parent's children
  mutable std::atomic<const std::string*> path_{nullptr};  // found when it is first asked for
  std::vector<std::pair<std::string, std::unique_ptr<Parameter>>> parameters_;
  std::vector<NamedBuffer> buffers_;
  std::vector<std::unique_ptr<Module>> children_;
  std::vector<NamedModule> child_list_;
  bool training_ = true;
};

/// The module tree, one line a module.
std::ostream& operator<<(std::ostream& out, const Module& module);

/// A module that maps one tensor to one tensor: what Sequential holds.
class UnaryModule : public Module {
 public:
  virtual Tensor forward(const Tensor& x) = 0;

  /// Runs the pre-hooks, forward, and the hooks, as a call of the module (ModuleScope).
  Tensor operator()(const Tensor& x);

  using PreHook = std::function<Tensor(UnaryModule&, const Tensor& x)>;
  using Hook = std::function<Tensor(UnaryModule&, const Tensor& x, const Tensor& y)>;
  /// Called before forward; a defined result replaces the input. Hooks may register and remove
  /// others; a new one is called from the next forward on.
  HookHandle register_forward_pre_hook(PreHook hook) { return pre_hooks_.add(std::move(hook)); }
  /// Called after forward; a defined result replaces the output.
  HookHandle register_forward_hook(Hook hook) { return hooks_.add(std::move(hook)); }

 private:
  detail::HookList<Tensor(UnaryModule&, const Tensor&)> pre_hooks_;
  detail::HookList<Tensor(UnaryModule&, const Tensor&, const Tensor&)> hooks_;
};

}  // namespace tapestry::nn
