#include "autograd/tape/checkpoint.h"

#include <memory>

#include "autograd/tape/engine.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"

namespace tapestry {

namespace {

struct Checkpoint {
  static constexpr std::string_view name = "checkpoint";
  static constexpr bool has_hidden_edges = true;  // to what the function uses besides its inputs
  std::shared_ptr<TensorFunction> function;
  std::vector<SavedTensor> inputs;
  std::vector<Draw> draws;
  bool anomaly = false;

  Tensor forward(const TensorList& inputs_, const Tensor& /*anchor*/) {
    anomaly = thread_state().anomaly_enabled;
    inputs.resize(inputs_.size());
    for (size_t i = 0; i < inputs_.size(); ++i) {
      inputs[i].save(inputs_[i]);
    }
    const DrawRecording recording(RankContext::current().default_generator(), draws);
    return (*function)(inputs_);
  }

  TensorList backward(const Tensor& dy, NeedsGrad needs) const {
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
    const Tensor output = [&] {
      const DrawReplay replay(RankContext::current().default_generator(), draws);
      const EnableGradGuard recording;
      const MemoryKindGuard kind(MemoryKind::kActivation);
      const detail::FlagGuard<&ThreadState::recomputing> again(true);
      return (*function)(own);
    }();
    TensorList gradients = output.requires_grad() ? detail::nested_gradients(output, dy, wanted)
                                                  : TensorList(own.size());
    gradients.emplace_back();  // the anchor's
    return gradients;
  }
};

}  // namespace

Tensor checkpoint(const TensorFunction& function, const TensorList& inputs) {
  if (!grad_enabled()) {
    return function(inputs);
  }
  // The function may use parameters that are not among its inputs, so the op must be recorded even
  // if no input wants a gradient: the anchor is an input that always does.
  Tensor anchor = empty({0});
  anchor.set_requires_grad();
  return apply_op(Checkpoint{std::make_shared<TensorFunction>(function), {}, {}, {}}, inputs,
                  anchor);
}

}  // namespace tapestry
