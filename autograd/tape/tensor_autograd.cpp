// The autograd methods of Tensor.
#include "autograd/tape/engine.h"
#include "autograd/tape/leaf_state.h"
#include "autograd/tape/main_grad.h"
#include "autograd/tensor/error.h"

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
  impl_->requires_grad = value;
  return *this;
}

bool Tensor::is_leaf() const { return grad_fn(*this) == nullptr; }

Tensor Tensor::grad() const {
  AutogradMeta* meta = autograd_meta(*this);
  if (meta == nullptr) {
    return {};
  }
  if (meta->retained) {
    return meta->retained->grad;
  }
  const bool has_main_grad = meta->leaf != nullptr && meta->leaf->main_grad.defined();
  return has_main_grad ? detail::settled_main_grad(*meta->leaf) : meta->grad;
}

void Tensor::set_grad(const Tensor& grad) const {
  check<ValueError>(!grad.defined() || grad.shape() == shape(), "set_grad: the gradient is ",
                    describe(grad), ", the tensor ", describe(*this));
  const LeafState* state = leaf_state(*this);
  check<RuntimeError>(state == nullptr || !state->main_grad.defined(),
                      "set_grad: the tensor has a main_grad, of which grad() is a view; write into "
                      "main_grad() instead");
  ensure_autograd_meta(*this).grad = grad;
}

void Tensor::backward(const Tensor& gradient, bool retain_graph, bool create_graph) const {
  tapestry::backward(std::span(this, 1), std::span(&gradient, 1), {retain_graph, create_graph});
}

Tensor Tensor::detach() const { return alias(*this); }

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

void Tensor::register_hook(std::function<Tensor(const Tensor&)> hook) const {
  check<RuntimeError>(requires_grad(), "register_hook: the tensor ", describe(*this),
                      " does not require a gradient");
  if (const AutogradMeta& meta = ensure_autograd_meta(*this); meta.grad_fn) {
    meta.grad_fn->add_hook(meta.output, std::move(hook));
  } else {
    ensure_leaf_state(*this).hooks.push_back(std::move(hook));
  }
}

void Tensor::register_post_accumulate_grad_hook(std::function<void(const Tensor&)> hook) const {
  check<RuntimeError>(requires_grad() && is_leaf(),
                      "register_post_accumulate_grad_hook: only a leaf that requires a gradient "
                      "accumulates one, this is ",
                      describe(*this));
  ensure_leaf_state(*this).post_accumulate_hooks.push_back(std::move(hook));
}

void Tensor::retain_grad() const {
  check<RuntimeError>(requires_grad(), "retain_grad: the tensor ", describe(*this),
                      " does not require a gradient");
  if (is_leaf()) {
    return;
  }
  AutogradMeta& meta = ensure_autograd_meta(*this);
  if (meta.retained) {
    return;
  }
  auto slot = make_ref<AutogradMeta>();
  meta.retained = slot;
  meta.grad_fn->add_hook(meta.output, [slot](const Tensor& gradient) {
    slot->grad = gradient.detach();
    return Tensor();
  });
}

}  // namespace tapestry
