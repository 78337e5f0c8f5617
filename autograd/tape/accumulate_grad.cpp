#include "autograd/tape/accumulate_grad.h"

#include <mutex>

#include "autograd/tape/grad_mode.h"
#include "autograd/tape/gradient_sum.h"
#include "autograd/tape/leaf_state.h"
#include "autograd/tape/main_grad.h"
#include "autograd/tensor/error.h"

namespace tapestry {

namespace {

void accumulate_into(AutogradMeta& meta, Tensor gradient) {
  LeafState& state = *meta.leaf;
  for (const Node::Hook& hook : state.hooks) {
    if (const Tensor replaced = hook(gradient); replaced.defined()) {
      check<ValueError>(replaced.shape() == gradient.shape(),
                        "hook on the gradient of a leaf: returned ", describe(replaced), " for ",
                        describe(gradient));
      gradient = replaced;
    }
  }
  const std::lock_guard lock(state.mutex);  // hooks have run: they may take their time
  if (state.main_grad.defined()) {
    detail::accumulate_into_main_grad(state, gradient);
  } else if (!meta.grad.defined()) {
    // A gradient that only this pass can see is taken over; any other is copied, so that later
    // accumulation in place cannot change somebody else's tensor.
    const bool own = grad_enabled() || detail::is_sole_owner(gradient);
    meta.grad = own ? std::move(gradient) : detail::contiguous_copy(gradient);
  } else if (grad_enabled()) {
    meta.grad = accumulate(meta.grad, gradient);
  } else {
    detail::sum_into(meta.grad, gradient, meta.grad);
    meta.grad.bump_version();
  }
}

}  // namespace

AccumulateGrad::~AccumulateGrad() {
  LeafState* state = leaf_state(leaf_);
  const std::lock_guard lock(state->accumulator_lock);
  if (state->accumulator == this) {
    state->accumulator = nullptr;
  }
}

bool AccumulateGrad::has_received(const Tensor& gradient) const {
  const LeafState* state = leaf_state(leaf_);
  return state->main_grad.defined() && state->main_grad.is_same(gradient);
}

void AccumulateGrad::run(std::span<Tensor> grad_outputs, std::span<Tensor> /*grad_inputs*/) {
  AutogradMeta& meta = *autograd_meta(leaf_);
  if (grad_outputs[0].defined()) {  // else every op has added its part to main_grad itself
    accumulate_into(meta, std::move(grad_outputs[0]));
  }
  for (const auto& hook : meta.leaf->post_accumulate_hooks) {
    hook(leaf_);
  }
}

}  // namespace tapestry
