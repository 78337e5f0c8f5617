// What the threads of a loop inherit from the thread that starts it.
#pragma once

#include <string_view>

namespace tapestry::kernels {

/// Set by higher layers for the calling thread; parallel_for gives it to its team, so that working
/// memory comes from the starting thread's rank and an error names its op.
struct TeamState {
  void* rank_context = nullptr;  ///< see autograd/tensor/rank_context.h; null: the default
  std::string_view op;           ///< the op whose forward is running; empty: none
  std::string_view backward_of;  ///< the op whose backward is running; empty: none
};

namespace detail {
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables): one for each thread
inline thread_local constinit TeamState current_team_state;
}  // namespace detail

inline TeamState& team_state() { return detail::current_team_state; }

/// Gives the calling thread another state for the lifetime.
class TeamStateGuard {
 public:
  explicit TeamStateGuard(const TeamState& state) : previous_(team_state()) {
    team_state() = state;
  }
  TeamStateGuard(const TeamStateGuard&) = delete;
  TeamStateGuard& operator=(const TeamStateGuard&) = delete;
  ~TeamStateGuard() { team_state() = previous_; }

 private:
  TeamState previous_;
};

/// Names what the calling thread works for, unless that is part of an op that is named already.
class OpNameGuard {
 public:
  explicit OpNameGuard(std::string_view op) : previous_(team_state().op) {
    if (previous_.empty()) {
      team_state().op = op;
    }
  }
  OpNameGuard(const OpNameGuard&) = delete;
  OpNameGuard& operator=(const OpNameGuard&) = delete;
  ~OpNameGuard() { team_state().op = previous_; }

 private:
  std::string_view previous_;
};

}  // namespace tapestry::kernels
