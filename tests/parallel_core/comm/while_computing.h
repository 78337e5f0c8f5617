// Whether something happens while a rank computes, which here is: makes no call of its own.
#pragma once

#include <chrono>
#include <functional>
#include <thread>

#include "parallel_core/comm/process_group.h"

namespace tapestry::testing {

/// Waits until it is true, without a call that would make it so; false if it never becomes true,
/// which is given up after a time in which any machine would have come to it.
inline bool becomes_true(const std::function<bool()>& condition,
                         std::chrono::seconds patience = std::chrono::seconds(120)) {
  const auto end = std::chrono::steady_clock::now() + patience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

inline bool is_done_while_computing(const Work& work) {
  return becomes_true([&] { return work.done(); });
}

}  // namespace tapestry::testing
