// How much the calling thread has computed, for whoever compares time with work.
#pragma once

namespace tapestry::kernels {

/// Grows for ever; what ran in between is a difference of two readings.
struct WorkCounter {
  /// 2 m n k for a product, 4 D for a query head, a query and a key that it may look at, twice that
  /// backward. As by the formulas: what a kernel makes a second time to spare memory, such as the
  /// probabilities in the backward of attention, is not counted.
  double flops = 0;
  double saved_bytes = 0;  ///< of tensors that ops have kept for backward
  int inside = 0;          ///< pieces of work that are under way, of which the outermost counts
};

namespace detail {
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables): one for each thread
inline thread_local constinit WorkCounter current_work_counter;
}  // namespace detail

/// The calling thread's. The threads that a kernel runs on leave what they do to the thread that
/// has called it.
inline WorkCounter& work_counter() { return detail::current_work_counter; }

/// Counts a piece of work, in whose lifetime nothing else is counted.
class CountedWork {
 public:
  explicit CountedWork(double flops) {
    WorkCounter& counter = work_counter();
    if (counter.inside++ == 0) {
      counter.flops += flops;
    }
  }
  CountedWork(const CountedWork&) = delete;
  CountedWork& operator=(const CountedWork&) = delete;
  ~CountedWork() { --work_counter().inside; }
};

}  // namespace tapestry::kernels
