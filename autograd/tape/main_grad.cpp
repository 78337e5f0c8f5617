#include "autograd/tape/main_grad.h"

#include <cstring>
#include <utility>

#include "autograd/kernels/optimizer.h"
#include "autograd/tape/autograd_meta.h"
#include "autograd/tape/engine.h"
#include "autograd/tape/gradient_sum.h"
#include "autograd/tensor/dtype.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"

namespace tapestry {

namespace detail {

void open_main_grad_storage(AutogradMeta& meta) {
  if (!meta.main_grad.storage()) {
    const MemoryKindGuard kind(MemoryKind::kGradient);
    meta.main_grad = empty(meta.main_grad.shape(), meta.main_grad.dtype());
  }
}

Tensor settled_main_grad(AutogradMeta& meta) {
  if (meta.main_grad.defined() && meta.main_grad_is_fresh) {
    meta.main_grad_is_fresh = false;
    open_main_grad_storage(meta);
    std::memset(meta.main_grad.raw(), 0,
                static_cast<size_t>(meta.main_grad.numel() * size_of(meta.main_grad.dtype())));
  }
  return meta.main_grad;
}

void accumulate_into_main_grad(AutogradMeta& meta, const Tensor& gradient) {
  open_main_grad_storage(meta);
  const Tensor& main_grad = meta.main_grad;
  if (std::exchange(meta.main_grad_is_fresh, false)) {
    convert_into(gradient, main_grad);
  } else if (main_grad.dtype() == kBFloat16) {
    const Tensor term = gradient.is_contiguous() ? gradient : contiguous_copy(gradient);
    const RandomKey& key = meta.main_grad_rounding;
    kernels::add_stochastic(term.dtype(), term.numel(), term.raw(), key.seed,
                            combine(key.stream, meta.main_grad_rounding.offset++),
                            main_grad.data<BFloat16>());
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
AutogradMeta* open_main_grad(const Tensor& leaf) {
  if (!leaf.defined() || !leaf.requires_grad() || grad_enabled() || !detail::accumulating()) {
    return nullptr;
  }
  AutogradMeta* meta = autograd_meta(leaf);
  const bool open =
      meta != nullptr && !meta->grad_fn && meta->hooks.empty() && meta->main_grad.defined();
  return open ? meta : nullptr;
}

// What stands for a main_grad that has no memory.
Tensor without_storage(const Shape& shape, DType dtype) {
  return Tensor(make_ref<TensorImpl>(Ref<Storage>(), 0, shape, contiguous_strides(shape), dtype));
}

}  // namespace

MainGradTarget main_grad_target(const Tensor& leaf) {
  AutogradMeta* meta = open_main_grad(leaf);
  if (meta == nullptr || meta->main_grad.dtype() != kFloat32) {
    return {};
  }
  detail::open_main_grad_storage(*meta);
  return {meta->main_grad, std::exchange(meta->main_grad_is_fresh, false)};
}

Tensor add_to_main_grad(const Tensor& leaf, const Tensor& gradient) {
  AutogradMeta* meta = open_main_grad(leaf);
  if (meta == nullptr) {
    return {};
  }
  detail::accumulate_into_main_grad(*meta, gradient);
  return meta->main_grad;
}

bool give_to_main_grad(const Tensor& leaf, Tensor& gradient) {
  AutogradMeta* meta = open_main_grad(leaf);
  if (meta == nullptr) {
    return false;
  }
  const bool takes_over = !meta->main_grad.storage() && detail::is_sole_owner(gradient) &&
                          gradient.dtype() == meta->main_grad.dtype();
  if (takes_over) {
    meta->main_grad_is_fresh = false;
    meta->main_grad = std::move(gradient);
  } else {
    detail::accumulate_into_main_grad(*meta, gradient);
  }
  gradient = meta->main_grad;
  return true;
}

void reset_main_grad(const Tensor& leaf, const RandomKey& rounding) {
  AutogradMeta* meta = leaf.defined() ? autograd_meta(leaf) : nullptr;
  check<RuntimeError>(meta != nullptr && meta->main_grad.defined(),
                      "reset_main_grad: the tensor has no main_grad");
  meta->main_grad_is_fresh = true;
  meta->main_grad_rounding = rounding;
}

void release_main_grad(const Tensor& leaf, const RandomKey& rounding) {
  reset_main_grad(leaf, rounding);
  Tensor& held = autograd_meta(leaf)->main_grad;
  held = without_storage(held.shape(), held.dtype());
}

void attach_main_grad(const Tensor& leaf, DType dtype) {
  leaf.set_main_grad(without_storage(leaf.shape(), dtype));
  reset_main_grad(leaf);
}

Tensor Tensor::main_grad() const {
  AutogradMeta* meta = autograd_meta(*this);
  return meta == nullptr ? Tensor() : detail::settled_main_grad(*meta);
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

}  // namespace tapestry
