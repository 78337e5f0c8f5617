// Calls of modules: what runs inside one knows its path, and observers are told of it.
#pragma once

#include <span>
#include <utility>

#include "autograd/tape/observer.h"
#include "nn/module.h"

namespace tapestry::nn {

/// While it lives, what the calling thread runs belongs to the module: nodes keep its path, with
/// which observers name ops of both passes. Opened by a module's call.
class ModuleScope {
 public:
  explicit ModuleScope(const Module& module)
      : previous_(std::exchange(thread_state().module, &module.path())) {}
  ModuleScope(const ModuleScope&) = delete;
  ModuleScope& operator=(const ModuleScope&) = delete;
  ~ModuleScope() { thread_state().module = previous_; }

 private:
  const std::string* previous_;
};

// How the tensors of an argument or result are found. A struct that holds some has such a function
// beside it; of other types there are none.
inline void append_observed(TensorList& out, const Tensor& t) { out.push_back(t); }
inline void append_observed(TensorList& out, const TensorList& list) {
  out.insert(out.end(), list.begin(), list.end());
}

namespace detail {

/// Tells observers of a call, if there are any. One that throws has no end.
class CallReport {
 public:
  CallReport(const Module& module, TensorList arguments);
  void end(std::span<const Tensor> results);

 private:
  TensorList arguments_;
  ModuleCall call_;
};

struct Appends {
  template <class T>
  static void from(TensorList& out, const T& value) {
    if constexpr (requires { append_observed(out, value); }) {
      append_observed(out, value);
    }
  }
};

}  // namespace detail

/// Gives `Derived`, a Module with a function `forward`, its call with the same arguments.
template <class Derived>
class Callable {
 public:
  template <class... Args>
  auto operator()(Args&&... args) {
    return call(static_cast<Derived&>(*this), std::forward<Args>(args)...);
  }
  template <class... Args>
  auto operator()(Args&&... args) const {
    return call(static_cast<const Derived&>(*this), std::forward<Args>(args)...);
  }

 private:
  template <class M, class... Args>
  static auto call(M& module, Args&&... args) {
    const ModuleScope scope(module);
    if (!is_observed()) [[likely]] {
      return module.forward(std::forward<Args>(args)...);
    }
    TensorList tensors;
    (detail::Appends::from(tensors, args), ...);
    detail::CallReport report(module, std::move(tensors));
    auto result = module.forward(std::forward<Args>(args)...);
    TensorList results;
    detail::Appends::from(results, result);
    report.end(results);
    return result;
  }
};

}  // namespace tapestry::nn
