#include "autograd/tape/autograd_meta.h"

#include "autograd/tape/accumulate_grad.h"
#include "autograd/tape/check_gradient.h"
#include "autograd/tape/gradient_sum.h"
#include "autograd/tape/leaf_state.h"

namespace tapestry {

AutogradMeta::AutogradMeta() = default;
AutogradMeta::~AutogradMeta() { retaining.remove(); }

AutogradMeta& ensure_autograd_meta(const Tensor& tensor) {
  if (!tensor.impl()->meta) {
    tensor.impl()->meta = make_ref<AutogradMeta>();
  }
  return *autograd_meta(tensor);
}

LeafState& ensure_leaf_state(const Tensor& leaf) {
  AutogradMeta& meta = ensure_autograd_meta(leaf);
  if (meta.leaf == nullptr) {
    meta.leaf = std::make_unique<LeafState>();
  }
  return *meta.leaf;
}

Edge gradient_edge(const Tensor& tensor) {
  if (!tensor.requires_grad()) {
    return {};
  }
  if (const AutogradMeta& meta = ensure_autograd_meta(tensor); meta.grad_fn) {
    return {meta.grad_fn, meta.output};
  }
  LeafState& state = ensure_leaf_state(tensor);
  if (state.accumulator != nullptr) {
    return {Ref<Node>(state.accumulator), 0};
  }
  auto node = make_ref<AccumulateGrad>(tensor);
  state.accumulator = node.get();
  return {Ref<Node>(node), 0};
}

void set_gradient_edge(const Tensor& tensor, const Ref<Node>& node, uint32_t output) {
  AutogradMeta& meta = ensure_autograd_meta(tensor);
  meta.grad_fn = node;
  meta.output = output;
  tensor.impl()->requires_grad = true;
  if (meta.retaining.registered()) [[unlikely]] {
    retain_grad_of(meta);
  }
}

void retain_grad_of(AutogradMeta& meta) {
  meta.retaining.remove();
  // The hook does not own the tensor, which owns the node; it goes with the tensor.
  meta.retaining = meta.grad_fn->add_hook(meta.output, [&meta](const Tensor& gradient) {
    meta.grad = meta.grad.defined() ? accumulate(meta.grad, gradient) : owned_gradient(gradient);
    return Tensor();
  });
}

void set_data(const Tensor& leaf, const Tensor& values) {
  check<RuntimeError>(leaf.is_leaf(), "set_data: ", describe(leaf), " is not a leaf");
  check<ValueError>(values.shape() == leaf.shape(), "set_data: the values are ", describe(values),
                    ", the leaf ", describe(leaf));
  TensorImpl& impl = *leaf.impl();
  if (AutogradMeta* meta = autograd_meta(leaf); meta != nullptr) {
    if (meta->grad.defined()) {
      check_gradient(meta->grad, values, "set_data: the leaf's gradient");
    }
    if (meta->leaf != nullptr) {
      meta->leaf->accumulator = nullptr;  // it expects gradients of the old dtype
      meta->leaf->compute_copy = {};
    }
  }
  const uint32_t old_version = leaf.version();
  impl.storage = values.storage();
  impl.offset = values.offset();
  impl.strides = values.strides();
  impl.dtype = values.dtype();
  impl.contiguous = values.is_contiguous();
  while (leaf.version() <= old_version) {
    leaf.bump_version();
  }
}

}  // namespace tapestry
