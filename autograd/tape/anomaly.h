// Anomaly mode: the first op that makes a NaN or an infinity says so.
#pragma once

#include <memory>

#include "autograd/tape/grad_mode.h"

namespace tapestry {

class ObserverScope;

/// In its scope each op, forward and backward, is looked at, and the first one that makes a NaN or
/// infinity out of finite inputs throws a RuntimeError with its name. What goes on inside an op is
/// its own business: it may make infinities that it masks out again. With false: not in its scope,
/// inside another one's. Costs a pass over every tensor.
class AnomalyGuard {
 public:
  explicit AnomalyGuard(bool enabled = true);
  AnomalyGuard(const AnomalyGuard&) = delete;
  AnomalyGuard& operator=(const AnomalyGuard&) = delete;
  ~AnomalyGuard();

 private:
  detail::FlagGuard<&ThreadState::anomaly_enabled> flag_;
  std::unique_ptr<ObserverScope> scope_;  // of the outermost one alone
};

}  // namespace tapestry
