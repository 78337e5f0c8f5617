// Modules made of modules.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nn/module.h"

namespace tapestry::nn {

/// Runs its modules one after the other; they are named "0", "1", ...
class Sequential final : public UnaryModule {
 public:
  Sequential() = default;
  /// Sequential(std::make_unique<Linear>(4, 8), std::make_unique<ReLU>(), ...)
  template <class... Modules>
  explicit Sequential(std::unique_ptr<Modules>... modules) {
    (append(std::move(modules)), ...);
  }

  std::string type_name() const override { return "Sequential"; }
  Tensor forward(const Tensor& x) override;
  /// ValueError for a null module.
  void append(std::unique_ptr<UnaryModule> module);
  size_t size() const { return modules_.size(); }
  /// IndexError if there is no such module.
  UnaryModule& operator[](size_t index) const;

 private:
  std::vector<UnaryModule*> modules_;
};

/// Holds modules by number; what they are run for is its owner's business.
class ModuleList final : public Module {
 public:
  std::string type_name() const override { return "ModuleList"; }
  /// Makes a module at the end: list.append<Linear>(4, 8).
  template <class M, class... Args>
  M& append(Args&&... args) {
    M& made = register_module<M>(std::to_string(modules_.size()), std::forward<Args>(args)...);
    modules_.push_back(&made);
    return made;
  }
  size_t size() const { return modules_.size(); }
  /// IndexError if there is no such module.
  Module& operator[](size_t index) const;

 private:
  std::vector<Module*> modules_;
};

/// Holds modules by name, in order of insertion; what they are run for is its owner's business.
class ModuleDict final : public Module {
 public:
  std::string type_name() const override { return "ModuleDict"; }
  /// Makes a module: dict.insert<Linear>("fc1", 4, 8). ValueError for a name that is taken, empty
  /// or has a dot.
  template <class M, class... Args>
  M& insert(std::string name, Args&&... args) {
    return register_module<M>(std::move(name), std::forward<Args>(args)...);
  }
  size_t size() const { return named_children().size(); }
  bool contains(std::string_view name) const;
  std::vector<std::string> keys() const;
  /// ValueError, naming those there are, if there is no such module.
  Module& operator[](std::string_view name) const;
};

}  // namespace tapestry::nn
