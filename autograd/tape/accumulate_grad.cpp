#include "autograd/tape/accumulate_grad.h"

#include "autograd/tape/check_gradient.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tape/gradient_sum.h"
#include "autograd/tape/leaf_state.h"
#include "autograd/tape/main_grad.h"
#include "autograd/tensor/error.h"

namespace tapestry {

AccumulateGrad::~AccumulateGrad() {
  if (LeafState* state = leaf_state(leaf_); state->accumulator == this) {
    state->accumulator = nullptr;
  }
}

bool AccumulateGrad::has_received(const Tensor& gradient) const {
  const LeafState* state = leaf_state(leaf_);
  return state->main_grad.defined() && state->main_grad.is_same(gradient);
}

void AccumulateGrad::run(std::span<Tensor> grad_outputs, std::span<Tensor> /*grad_inputs*/) {
  check<RuntimeError>(leaf_.is_leaf(), name(), ": ", describe(leaf_),
                      " was a leaf when it was used and has become a result since, by a change in "
                      "place");
  if (!leaf_.requires_grad()) {
    return;  // switched off since
  }
  if (grad_outputs[0].defined()) {  // else every op has added its part to main_grad itself
    accumulate(std::move(grad_outputs[0]));
  }
  leaf_state(leaf_)->post_accumulate_hooks.for_each([&](const auto& hook) { hook(leaf_); });
}

void AccumulateGrad::accumulate(Tensor gradient) {
  LeafState& state = *leaf_state(leaf_);
  // The leaf may have another dtype than when it was used.
  check_gradient(gradient, leaf_, name(), ": the gradient that arrived");
  detail::apply_gradient_hooks(state.hooks, "a leaf", gradient);
  if (state.main_grad.defined()) {
    check<RuntimeError>(!grad_enabled(), name(), ": ", describe(leaf_),
                        " has a main_grad, into which sums are made without a graph; with "
                        "create_graph, take grad() of it or its main_grad away");
    detail::accumulate_into_main_grad(state, gradient);
    return;
  }
  Tensor& sum = autograd_meta(leaf_)->grad;
  if (!sum.defined()) {
    // Later sums are made in place, and others scale and clip it: that must be nobody else's
    // memory.
    sum = owned_gradient(std::move(gradient));
  } else if (grad_enabled()) {
    sum = tapestry::accumulate(sum, gradient);
  } else {
    // To a graph that the old sum may have, what is added is a constant.
    detail::sum_into(sum, gradient, sum);
    sum.bump_version();
  }
}

}  // namespace tapestry
