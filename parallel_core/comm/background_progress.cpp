#include "parallel_core/comm/background_progress.h"

#include <algorithm>
#include <utility>

#include "autograd/kernels/machine/signals_blocked.h"
#include "autograd/kernels/machine/team.h"

namespace tapestry {

namespace {

constexpr auto kShortestPause = std::chrono::microseconds(50);
constexpr auto kLongestPause = std::chrono::microseconds(1000);

}  // namespace

BackgroundProgress::BackgroundProgress(std::mutex& mutex,
                                       std::function<bool()> has_work,
                                       std::function<bool()> step)
    : mutex_(mutex), has_work_(std::move(has_work)), step_(std::move(step)) {
  const kernels::SignalsBlocked blocked;  // the thread inherits the mask
  thread_ = std::thread([this] { run(); });
}

BackgroundProgress::~BackgroundProgress() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void BackgroundProgress::wake() {
  if (asleep_) {
    asleep_ = false;
    changed_.notify_one();
  }
}

void BackgroundProgress::run() {
  set_num_threads(1);  // of this thread's loops: the others' cores are computing
  std::unique_lock lock(mutex_);
  auto pause = kShortestPause;
  while (!stop_) {
    if (!has_work_()) {
      asleep_ = true;
      changed_.wait(lock, [this] { return stop_ || !asleep_; });
      asleep_ = false;
      pause = kShortestPause;
      continue;
    }
    if (step_()) {
      pause = kShortestPause;
      continue;
    }
    changed_.wait_for(lock, pause, [this] { return stop_; });
    pause = std::min(2 * pause, kLongestPause);
  }
}

}  // namespace tapestry
