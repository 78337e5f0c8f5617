// The autograd methods of Tensor.
#include <cstring>

#include "autograd/tape/autograd_meta.h"
#include "autograd/tape/engine.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"

namespace tapestry {

namespace {

// The main_grad, with the zeros written that it may only stand for.
Tensor settled_main_grad(AutogradMeta& meta) {
  if (meta.main_grad.defined() && meta.main_grad_is_fresh) {
    meta.main_grad_is_fresh = false;
    open_main_grad_storage(meta);
    std::memset(meta.main_grad.raw(), 0,
                static_cast<size_t>(meta.main_grad.numel() * size_of(meta.main_grad.dtype())));
  }
  return meta.main_grad;
}

}  // namespace

void open_main_grad_storage(AutogradMeta& meta) {
  if (!meta.main_grad.storage()) {
    const MemoryKindGuard kind(MemoryKind::kGradient);
    meta.main_grad = empty(meta.main_grad.shape(), meta.main_grad.dtype());
  }
}

const Tensor& Tensor::set_requires_grad(bool value) const {
  check<TypeError>(!value || is_floating(dtype()),
                   "set_requires_grad: only floating tensors have "
                   "gradients, this one is ",
                   describe(*this));
  check<RuntimeError>(value || is_leaf(), "set_requires_grad(false): the tensor is the result of ",
                      is_leaf() ? "nothing" : grad_fn(*this)->name(), "; use detach()");
  if (value) {
    ensure_autograd_meta(*this);  // now: threads that use the tensor only read that there is one
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
  return meta->main_grad.defined() ? settled_main_grad(*meta) : meta->grad;
}

void Tensor::set_grad(const Tensor& grad) const {
  check<ValueError>(!grad.defined() || grad.shape() == shape(), "set_grad: the gradient is ",
                    describe(grad), ", the tensor ", describe(*this));
  AutogradMeta& meta = ensure_autograd_meta(*this);
  check<RuntimeError>(!meta.main_grad.defined(),
                      "set_grad: the tensor has a main_grad, of which grad() is a view; write into "
                      "main_grad() instead");
  meta.grad = grad;
}

Tensor Tensor::main_grad() const {
  AutogradMeta* meta = autograd_meta(*this);
  return meta == nullptr ? Tensor() : settled_main_grad(*meta);
}

void Tensor::set_main_grad(const Tensor& buffer) const {
  check<ValueError>(!buffer.defined() || buffer.shape() == shape(), "set_main_grad: the buffer is ",
                    describe(buffer), ", the tensor ", describe(*this));
  check<ValueError>(!buffer.defined() || buffer.is_contiguous(),
                    "set_main_grad: the buffer must be contiguous, it is ", describe(buffer));
  check<TypeError>(!buffer.defined() || buffer.dtype() == kFloat32 || buffer.dtype() == kBFloat16,
                   "set_main_grad: the buffer must be float32 or bfloat16, it is ",
                   describe(buffer));
  AutogradMeta& meta = ensure_autograd_meta(*this);
  meta.main_grad = buffer;
  meta.main_grad_is_fresh = false;
  meta.main_grad_rounding = {};
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
  AutogradMeta& meta = ensure_autograd_meta(*this);
  if (meta.grad_fn) {
    meta.grad_fn->add_hook(meta.output, std::move(hook));
  } else {
    meta.hooks.push_back(std::move(hook));
  }
}

void Tensor::register_post_accumulate_grad_hook(std::function<void(const Tensor&)> hook) const {
  check<RuntimeError>(requires_grad() && is_leaf(),
                      "register_post_accumulate_grad_hook: only a leaf that requires a gradient "
                      "accumulates one, this is ",
                      describe(*this));
  ensure_autograd_meta(*this).post_accumulate_hooks.push_back(std::move(hook));
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
