#include "autograd/tape/anomaly.h"

#include <algorithm>
#include <vector>

#include "autograd/kernels/reduce.h"
#include "autograd/tape/gradient_sum.h"
#include "autograd/tape/observer.h"
#include "autograd/tensor/dtype.h"
#include "autograd/tensor/error.h"

namespace tapestry {

namespace {

bool all_finite(std::span<const Tensor> tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const Tensor& t) {
    if (!t.defined() || !is_floating(t.dtype())) {
      return true;
    }
    const Tensor dense = t.is_contiguous() ? t : detail::contiguous_copy(t);
    return kernels::all_finite(dense.dtype(), dense.numel(), dense.raw());
  });
}

// Of each thread, as anomaly mode is.
class AnomalyObserver final : public Observer {
 public:
  void op_begins(const OpRun& run) override {
    if (looks_at(run)) {
      inputs_are_finite_ = all_finite(run.inputs);  // the op may overwrite them
    }
  }

  void op_ended(const OpRun& run) override {
    if (looks_at(run)) {
      check<RuntimeError>(!inputs_are_finite_ || all_finite(run.outputs), run.op, ": its ",
                          run.pass == OpPass::kBackward ? "backward" : "forward",
                          " made a NaN or an infinity out of finite inputs");
    }
  }

 private:
  // A value that is made again was looked at when it was made first.
  static bool looks_at(const OpRun& run) {
    return thread_state().anomaly_enabled && (run.pass != OpPass::kAgain || run.node != nullptr);
  }

  bool inputs_are_finite_ = true;
};

thread_local AnomalyObserver anomaly_observer;

}  // namespace

AnomalyGuard::AnomalyGuard(bool enabled) : flag_(enabled) {
  const detail::ObserverList* observers = detail::op_observers();
  const bool is_told = observers != nullptr && std::find(observers->begin(), observers->end(),
                                                         &anomaly_observer) != observers->end();
  if (enabled && !is_told) {
    scope_ = std::make_unique<ObserverScope>(anomaly_observer);
  }
}

AnomalyGuard::~AnomalyGuard() = default;

}  // namespace tapestry
