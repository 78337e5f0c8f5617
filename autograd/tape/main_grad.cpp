#include "autograd/tape/main_grad.h"

#include <memory>
#include <utility>
#include <vector>

#include "autograd/kernels/exact/exact_sums.h"
#include "autograd/kernels/memory.h"
#include "autograd/kernels/optimizer.h"
#include "autograd/tape/engine.h"
#include "autograd/tape/gradient_sum.h"
#include "autograd/tape/leaf_state.h"
#include "autograd/tensor/dtype.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"

namespace tapestry {

namespace {

// Of the next contribution to a main_grad.
std::vector<kernels::RandomRows> next_rounding(LeafState& state) {
  RandomKey& key = state.main_grad_rounding;
  const uint64_t stream = combine(key.stream, key.offset++);
  if (state.main_grad_numbers == nullptr) {
    return {{.stream = stream}};
  }
  std::vector<kernels::RandomRows> rows = *state.main_grad_numbers;
  for (kernels::RandomRows& entry : rows) {
    entry.stream = combine(entry.stream, stream);
  }
  return rows;
}

}  // namespace

namespace detail {

void open_main_grad_storage(LeafState& state) {
  if (!state.main_grad.storage()) {
    const MemoryKindGuard kind(MemoryKind::kGradient);
    state.main_grad = empty(state.main_grad.shape(), state.main_grad.dtype());
  }
}

Tensor settled_main_grad(LeafState& state) {
  if (state.main_grad.defined() && state.main_grad_is_fresh) {
    state.main_grad_is_fresh = false;
    open_main_grad_storage(state);
    kernels::clear(state.main_grad.raw(),
                   state.main_grad.numel() * size_of(state.main_grad.dtype()));
  }
  return state.main_grad;
}

void accumulate_into_main_grad(LeafState& state, const Tensor& gradient) {
  check<RuntimeError>(
      state.main_grad.dtype() != kFloat64, "exact mode: the gradient of a parameter ",
      describe(gradient),
      " arrived as a sum over the tokens of a micro-batch, whose bits depend on how "
      "these are divided; the op that made it has no exact gradients");
  open_main_grad_storage(state);
  const Tensor& main_grad = state.main_grad;
  if (std::exchange(state.main_grad_is_fresh, false)) {
    convert_into(gradient, main_grad);
  } else if (main_grad.dtype() == kBFloat16) {
    const Tensor term = gradient.is_contiguous() ? gradient : contiguous_copy(gradient);
    kernels::add_stochastic(term.dtype(), term.numel(), term.raw(), state.main_grad_rounding.seed,
                            next_rounding(state), main_grad.data<BFloat16>());
  } else if (gradient.dtype() == kFloat32) {
    sum_into(main_grad, gradient, main_grad);
  } else {
    const Tensor wide = empty(gradient.shape(), kFloat32);
    convert_into(gradient, wide);
    sum_into(main_grad, wide, main_grad);
  }
}

}  // namespace detail

namespace {

// The state of a leaf to whose main_grad an op may contribute, or null.
LeafState* open_main_grad(const Tensor& leaf) {
  if (!leaf.defined() || !leaf.requires_grad() || grad_enabled() || !detail::accumulating()) {
    return nullptr;
  }
  LeafState* state = leaf_state(leaf);
  const bool open =
      state != nullptr && leaf.is_leaf() && state->hooks.empty() && state->main_grad.defined();
  return open ? state : nullptr;
}

// A main_grad takes any floating dtype, but only its own shape.
void check_contribution(const Tensor& gradient, const Tensor& leaf) {
  const bool fits = gradient.shape() == leaf.shape() && is_floating(gradient.dtype());
  check<ValueError>(fits, "main_grad: the contribution is ", describe(gradient), ", the leaf ",
                    describe(leaf));
}

// What stands for a main_grad that has no memory.
Tensor without_storage(const Shape& shape, DType dtype) {
  return Tensor(make_ref<TensorImpl>(Ref<Storage>(), 0, shape, contiguous_strides(shape), dtype));
}

}  // namespace

MainGradTarget main_grad_target(const Tensor& leaf) {
  LeafState* state = open_main_grad(leaf);
  if (state == nullptr || state->main_grad.dtype() != kFloat32) {
    return {};
  }
  detail::open_main_grad_storage(*state);
  return {state->main_grad, std::exchange(state->main_grad_is_fresh, false)};
}

Tensor exact_main_grad(const Tensor& leaf) {
  LeafState* state = open_main_grad(leaf);
  if (state == nullptr || state->main_grad.dtype() != kFloat64 || leaf.dtype() == kFloat64) {
    return {};
  }
  return detail::settled_main_grad(*state);
}

Tensor add_to_main_grad(const Tensor& leaf, const Tensor& gradient) {
  LeafState* state = open_main_grad(leaf);
  if (state == nullptr) {
    return {};
  }
  check_contribution(gradient, leaf);
  detail::accumulate_into_main_grad(*state, gradient);
  return state->main_grad;
}

bool give_to_main_grad(const Tensor& leaf, Tensor& gradient) {
  LeafState* state = open_main_grad(leaf);
  if (state == nullptr) {
    return false;
  }
  check_contribution(gradient, leaf);
  const bool takes_over = !state->main_grad.storage() && detail::is_sole_owner(gradient) &&
                          gradient.dtype() == state->main_grad.dtype();
  if (takes_over) {
    state->main_grad_is_fresh = false;
    state->main_grad = std::move(gradient);
  } else {
    detail::accumulate_into_main_grad(*state, gradient);
  }
  gradient = state->main_grad;
  return true;
}

bool give_exact_sums(const Tensor& leaf, Tensor& sums, bool own) {
  LeafState* state = open_main_grad(leaf);
  if (state == nullptr || state->main_grad.dtype() != kFloat64 || leaf.dtype() == kFloat64) {
    return false;
  }
  check_contribution(sums, leaf);
  if (own && !state->main_grad.storage()) {
    state->main_grad_is_fresh = false;
    state->main_grad = std::move(sums);
  } else {
    detail::open_main_grad_storage(*state);
    if (std::exchange(state->main_grad_is_fresh, false)) {
      detail::convert_into(sums, state->main_grad);
    } else {
      detail::sum_into(state->main_grad, sums, state->main_grad);
    }
  }
  sums = state->main_grad;
  return true;
}

void reset_main_grad(const Tensor& leaf, const RandomKey& rounding) {
  LeafState* state = leaf.defined() ? leaf_state(leaf) : nullptr;
  check<RuntimeError>(state != nullptr && state->main_grad.defined(),
                      "reset_main_grad: the tensor has no main_grad");
  state->main_grad_is_fresh = true;
  state->main_grad_rounding = rounding;
}

void release_main_grad(const Tensor& leaf, const RandomKey& rounding) {
  reset_main_grad(leaf, rounding);
  Tensor& held = leaf_state(leaf)->main_grad;
  held = without_storage(held.shape(), held.dtype());
}

void number_main_grad(const Tensor& leaf, std::vector<kernels::RandomRows> numbers) {
  LeafState* state = leaf.defined() ? leaf_state(leaf) : nullptr;
  check<RuntimeError>(state != nullptr && state->main_grad.defined(),
                      "number_main_grad: the tensor has no main_grad");
  check<ValueError>(!numbers.empty() && numbers.front().begin == 0,
                    "number_main_grad: the numbers do not begin at the first element");
  state->main_grad_numbers =
      std::make_shared<const std::vector<kernels::RandomRows>>(std::move(numbers));
}

void attach_main_grad(const Tensor& leaf, DType dtype) {
  leaf.set_main_grad(without_storage(leaf.shape(), dtype));
  reset_main_grad(leaf);
}

Tensor rounded_view(const Tensor& sums) {
  check<ValueError>(sums.dtype() == kFloat64 && sums.is_contiguous() && sums.offset() == 0,
                    "rounded_view: exact sums are float64 at the beginning of their memory, not ",
                    describe(sums));
  return Tensor(make_ref<TensorImpl>(sums.storage(), 0, sums.shape(),
                                     contiguous_strides(sums.shape()), kFloat32));
}

double round_main_grad(const Tensor& leaf) {
  LeafState* state = leaf.defined() ? leaf_state(leaf) : nullptr;
  const bool exact =
      state != nullptr && state->main_grad.defined() && state->main_grad.dtype() == kFloat64;
  check<RuntimeError>(exact, "round_main_grad: the tensor has no main_grad of exact sums");
  if (state->main_grad_is_fresh) {
    attach_main_grad(leaf, kFloat32);
    return 0;
  }
  const Tensor sums = state->main_grad;
  const Tensor rounded = rounded_view(sums);
  leaf.set_main_grad(rounded);
  return kernels::exact_to_float32(sums.numel(), sums.data<double>(), rounded.data<float>());
}

Tensor Tensor::main_grad() const {
  object("main_grad");
  LeafState* state = leaf_state(*this);
  return state == nullptr ? Tensor() : detail::settled_main_grad(*state);
}

void Tensor::set_main_grad(const Tensor& buffer) const {
  object("set_main_grad");
  check<ValueError>(!buffer.defined() || buffer.shape() == shape(), "set_main_grad: the buffer is ",
                    describe(buffer), ", the tensor ", describe(*this));
  check<ValueError>(!buffer.defined() || buffer.is_contiguous(),
                    "set_main_grad: the buffer must be contiguous, it is ", describe(buffer));
  check<TypeError>(!buffer.defined() || (is_floating(buffer.dtype()) && buffer.dtype() != kFloat16),
                   "set_main_grad: the buffer must be float32, bfloat16 or, for exact sums, "
                   "float64; it is ",
                   describe(buffer));
  LeafState& state = ensure_leaf_state(*this);
  state.main_grad = buffer;
  state.main_grad_is_fresh = false;
  state.main_grad_rounding = {};
  state.main_grad_numbers = nullptr;
}

}  // namespace tapestry
