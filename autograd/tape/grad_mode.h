// Switches of the tape, per rank and scoped.
#pragma once

#include "autograd/tensor/rank_context.h"

namespace tapestry {

inline bool grad_enabled() { return RankContext::current().grad_enabled; }

namespace detail {

/// Sets one flag of the current rank and puts the old value back.
template <bool RankContext::*Flag>
class FlagGuard {
 public:
  explicit FlagGuard(bool value) : context_(RankContext::current()), previous_(context_.*Flag) {
    context_.*Flag = value;
  }
  FlagGuard(const FlagGuard&) = delete;
  FlagGuard& operator=(const FlagGuard&) = delete;
  ~FlagGuard() { context_.*Flag = previous_; }

 private:
  RankContext& context_;
  bool previous_;
};

}  // namespace detail

/// Records or does not record the operations in its scope.
class GradModeGuard : detail::FlagGuard<&RankContext::grad_enabled> {
 public:
  explicit GradModeGuard(bool enabled) : FlagGuard(enabled) {}
};

/// Nothing in its scope is recorded.
class NoGradGuard : GradModeGuard {
 public:
  NoGradGuard() : GradModeGuard(false) {}
};

/// Operations in its scope are recorded, also inside a NoGradGuard.
class EnableGradGuard : GradModeGuard {
 public:
  EnableGradGuard() : GradModeGuard(true) {}
};

/// Anomaly mode: each op in its scope, forward and backward, checks its results, and the first one
/// that makes a NaN or infinity out of finite inputs throws a RuntimeError with its name. Costs a
/// pass over every tensor.
class AnomalyGuard : detail::FlagGuard<&RankContext::anomaly_enabled> {
 public:
  explicit AnomalyGuard(bool enabled = true) : FlagGuard(enabled) {}
};

}  // namespace tapestry
