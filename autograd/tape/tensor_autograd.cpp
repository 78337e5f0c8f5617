// The autograd methods of Tensor.
#include "autograd/tape/check_gradient.h"
#include "autograd/tape/engine.h"
#include "autograd/tape/gradient_sum.h"
#include "autograd/tape/leaf_state.h"
#include "autograd/tape/main_grad.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/overlap.h"

namespace tapestry {

const Tensor& Tensor::set_requires_grad(bool value) const {
  check<TypeError>(!value || is_floating(dtype()),
                   "set_requires_grad: only floating tensors have "
                   "gradients, this one is ",
                   describe(*this));
  check<RuntimeError>(value || is_leaf(), "set_requires_grad(false): the tensor is the result of ",
                      is_leaf() ? "nothing" : grad_fn(*this)->name(), "; use detach()");
  if (value && is_leaf()) {
    ensure_leaf_state(*this);  // now, so that threads that use the leaf find it made
  }
  object("set_requires_grad").requires_grad = value;
  return *this;
}

bool Tensor::is_leaf() const {
  object("is_leaf");
  return grad_fn(*this) == nullptr;
}

Tensor Tensor::grad() const {
  object("grad");
  AutogradMeta* meta = autograd_meta(*this);
  if (meta == nullptr) {
    return {};
  }
  const bool has_main_grad = meta->leaf != nullptr && meta->leaf->main_grad.defined();
  return has_main_grad ? detail::settled_main_grad(*meta->leaf) : meta->grad;
}

void Tensor::set_grad(const Tensor& grad) const {
  object("set_grad");
  const LeafState* state = leaf_state(*this);
  check<RuntimeError>(state == nullptr || !state->main_grad.defined(),
                      "set_grad: the tensor has a main_grad, of which grad() is a view; write into "
                      "main_grad() instead");
  if (!grad.defined()) {
    if (AutogradMeta* meta = autograd_meta(*this); meta != nullptr) {
      meta->grad = {};
    }
    return;
  }
  check_gradient(grad, *this, "set_grad: the gradient");
  ensure_autograd_meta(*this).grad = elements_overlap(grad) ? owned_gradient(grad) : grad;
}

void Tensor::backward(const Tensor& gradient, bool retain_graph, bool create_graph) const {
  object("backward");
  tapestry::backward(std::span(this, 1), std::span(&gradient, 1), {retain_graph, create_graph});
}

Tensor Tensor::detach() const {
  object("detach");
  return alias(*this);
}

Tensor graph_root(const Tensor& output) {
  ensure_autograd_meta(output);
  Strides strides = output.strides();
  std::fill(strides.begin(), strides.end(), 0);
  Tensor root(make_ref<TensorImpl>(make_ref<Storage>(size_of(output.dtype())), 0, output.shape(),
                                   strides, output.dtype()));
  root.impl()->requires_grad = output.requires_grad();
  root.impl()->meta = output.impl()->meta;
  return root;
}

HookHandle Tensor::register_hook(std::function<Tensor(const Tensor&)> hook) const {
  object("register_hook");
  check<RuntimeError>(requires_grad(), "register_hook: the tensor ", describe(*this),
                      " does not require a gradient");
  if (const AutogradMeta& meta = ensure_autograd_meta(*this); meta.grad_fn) {
    return meta.grad_fn->add_hook(meta.output, std::move(hook));
  }
  return ensure_leaf_state(*this).hooks.add(std::move(hook));
}

HookHandle Tensor::register_post_accumulate_grad_hook(
    std::function<void(const Tensor&)> hook) const {
  object("register_post_accumulate_grad_hook");
  check<RuntimeError>(requires_grad() && is_leaf(),
                      "register_post_accumulate_grad_hook: only a leaf that requires a gradient "
                      "accumulates one, this is ",
                      describe(*this));
  return ensure_leaf_state(*this).post_accumulate_hooks.add(std::move(hook));
}

void Tensor::retain_grad() const {
  object("retain_grad");
  check<RuntimeError>(requires_grad(), "retain_grad: the tensor ", describe(*this),
                      " does not require a gradient");
  if (is_leaf()) {
    return;
  }
  if (AutogradMeta& meta = *autograd_meta(*this); !meta.retaining.registered()) {
    retain_grad_of(meta);
  }
}

}  // namespace tapestry
