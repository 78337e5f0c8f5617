#include "autograd/tape/checkpoint.h"

#include <memory>

#include "autograd/tape/engine.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"

namespace tapestry {

namespace {

// grad() for those inputs that want one; undefined for the others.
TensorList input_gradients(const Tensor& output, const TensorList& inputs, const Tensor& dy) {
  TensorList wanted;
  for (const Tensor& input : inputs) {
    if (input.defined() && input.requires_grad()) {
      wanted.push_back(input);
    }
  }
  const TensorList found = grad(output, wanted, dy, {}, /*allow_unused=*/true);
  TensorList out(inputs.size());
  size_t next = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].defined() && inputs[i].requires_grad()) {
      out[i] = found[next++];
    }
  }
  return out;
}

struct Checkpoint {
  static constexpr std::string_view name = "checkpoint";
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
    check<RuntimeError>(!grad_enabled(),
                        "checkpoint: gradients of gradients are not available through a "
                        "recomputed function; call it directly");
    TensorList leaves;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const Tensor input = inputs[i];
      leaves.push_back(input.defined() ? input.detach() : input);
      if (needs[i]) {
        leaves.back().set_requires_grad();
      }
    }
    // The ops inside are named, not this one.
    const AnomalyGuard inner_ops(anomaly);
    const Tensor output = [&] {
      const DrawReplay replay(RankContext::current().default_generator(), draws);
      const EnableGradGuard recording;
      const MemoryKindGuard kind(MemoryKind::kActivation);
      return (*function)(leaves);
    }();
    TensorList gradients(leaves.size());
    if (output.requires_grad() && detail::accumulating()) {
      // Reaches the parameters that the function uses, too.
      tapestry::backward(std::span(&output, 1), std::span(&dy, 1));
      for (size_t i = 0; i < leaves.size(); ++i) {
        gradients[i] = leaves[i].defined() ? leaves[i].grad() : Tensor();
      }
    } else if (output.requires_grad()) {
      gradients = input_gradients(output, leaves, dy);
    }
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
