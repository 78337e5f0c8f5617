// Switches of the tape, of the calling thread and scoped.
#pragma once

#include "autograd/tensor/thread_state.h"

namespace tapestry {

inline bool grad_enabled() { return thread_state().grad_enabled; }

namespace detail {

/// Sets one flag of the calling thread and puts the old value back.
template <bool ThreadState::*Flag>
class FlagGuard {
 public:
  explicit FlagGuard(bool value) : previous_(thread_state().*Flag) { thread_state().*Flag = value; }
  FlagGuard(const FlagGuard&) = delete;
  FlagGuard& operator=(const FlagGuard&) = delete;
  ~FlagGuard() { thread_state().*Flag = previous_; }

 private:
  bool previous_;
};

}  // namespace detail

/// Records or does not record the operations in its scope.
class GradModeGuard : detail::FlagGuard<&ThreadState::grad_enabled> {
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

}  // namespace tapestry
