#include "autograd/tape/checkpoint.h"

#include <memory>

#include "autograd/kernels/machine/exact.h"
#include "autograd/kernels/machine/one_order.h"
#include "autograd/tape/anomaly.h"
#include "autograd/tape/engine.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"

namespace tapestry {

namespace {

using Capture = std::unique_ptr<ReplayedState> (*)();

std::vector<Capture>& captures() {
  static std::vector<Capture> all;
  return all;
}

// Puts what was captured in place for its lifetime.
class StateReplay {
 public:
  explicit StateReplay(const std::vector<std::shared_ptr<ReplayedState>>& states)
      : states_(states) {
    swap_all();
  }
  StateReplay(const StateReplay&) = delete;
  StateReplay& operator=(const StateReplay&) = delete;
  ~StateReplay() { swap_all(); }

 private:
  void swap_all() {
    for (const auto& state : states_) {
      state->swap();
    }
  }

  const std::vector<std::shared_ptr<ReplayedState>>& states_;
};

struct Checkpoint {
  static constexpr OpName name = "checkpoint";
  static constexpr bool has_hidden_edges = true;  // to what the function uses besides its inputs
  std::shared_ptr<TensorListFunction> function;
  std::vector<SavedTensor> inputs = {};
  std::vector<Draw> draws = {};
  std::vector<std::shared_ptr<ReplayedState>> states = {};
  bool anomaly = false;
  bool one_order = false;
  bool exact = false;

  TensorList forward(const TensorList& inputs_, const Tensor& /*anchor*/) {
    anomaly = thread_state().anomaly_enabled;
    one_order = in_one_order();
    exact = in_exact();
    inputs.resize(inputs_.size());
    for (size_t i = 0; i < inputs_.size(); ++i) {
      inputs[i].save(inputs_[i]);
    }
    for (const Capture capture : captures()) {
      states.push_back(capture());
    }
    const DrawRecording recording(RankContext::current().default_generator(), draws);
    return (*function)(inputs_);
  }

  TensorList backward(const TensorList& dys, NeedsGrad needs) const {
    // The inputs as the function sees them. In a recorded pass they keep their place in the graph,
    // so that what comes out can be differentiated with respect to them.
    TensorList own;
    TensorList wanted;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const Tensor input = inputs[i];
      if (!needs[i]) {
        own.push_back(input);
      } else if (grad_enabled()) {
        own.push_back(detail::separate({input}).front());
      } else {
        own.push_back(input.detach());
        own.back().set_requires_grad();
      }
      wanted.push_back(needs[i] ? own.back() : Tensor());
    }
    // The ops inside are named, not this one.
    const AnomalyGuard inner_ops(anomaly);
    const TensorList outputs = [&] {
      const DrawReplay replay(RankContext::current().default_generator(), draws);
      const StateReplay state(states);
      const OneOrderScope order(one_order);
      const ExactScope exactly(exact);
      const EnableGradGuard recording;
      const MemoryKindGuard kind(MemoryKind::kActivation);
      const detail::FlagGuard<&ThreadState::recomputing> again(true);
      return (*function)(own);
    }();
    check<RuntimeError>(outputs.size() == dys.size(), "checkpoint: the function gave ", dys.size(),
                        " results, and ", outputs.size(), " when it ran again");
    TensorList roots;
    TensorList arrived;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (dys[i].defined() && outputs[i].defined() && outputs[i].requires_grad()) {
        roots.push_back(outputs[i]);
        arrived.push_back(dys[i]);
      }
    }
    TensorList gradients =
        roots.empty() ? TensorList(own.size()) : detail::nested_gradients(roots, arrived, wanted);
    gradients.emplace_back();  // the anchor's
    return gradients;
  }
};

}  // namespace

bool register_replayed_state(std::unique_ptr<ReplayedState> (*capture)()) {
  captures().push_back(capture);
  return true;
}

TensorList checkpoint(const TensorListFunction& function, const TensorList& inputs) {
  if (!grad_enabled()) {
    return function(inputs);
  }
  // The function may use parameters that are not among its inputs, so the op must be recorded even
  // if no input wants a gradient: the anchor is an input that always does.
  Tensor anchor = empty({0});
  anchor.set_requires_grad();
  return apply_op(Checkpoint{std::make_shared<TensorListFunction>(function)}, inputs, anchor);
}

Tensor checkpoint(const TensorFunction& function, const TensorList& inputs) {
  return checkpoint(TensorListFunction(
                        [function](const TensorList& in) { return TensorList{function(in)}; }),
                    inputs)
      .front();
}

}  // namespace tapestry
