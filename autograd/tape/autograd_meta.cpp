#include "autograd/tape/autograd_meta.h"

#include "autograd/tape/accumulate_grad.h"

namespace tapestry {

AutogradMeta& ensure_autograd_meta(const Tensor& tensor) {
  if (!tensor.impl()->meta) {
    tensor.impl()->meta = make_ref<AutogradMeta>();
  }
  return *autograd_meta(tensor);
}

Edge gradient_edge(const Tensor& tensor) {
  if (!tensor.requires_grad()) {
    return {};
  }
  AutogradMeta& meta = ensure_autograd_meta(tensor);
  if (meta.grad_fn) {
    return {meta.grad_fn, meta.output};
  }
  if (meta.accumulator != nullptr) {
    return {Ref<Node>(meta.accumulator), 0};
  }
  auto node = make_ref<AccumulateGrad>(tensor);
  meta.accumulator = node.get();
  return {Ref<Node>(node), 0};
}

void set_gradient_edge(const Tensor& tensor, const Ref<Node>& node, uint32_t output) {
  AutogradMeta& meta = ensure_autograd_meta(tensor);
  meta.grad_fn = node;
  meta.output = output;
  tensor.impl()->requires_grad = true;
}

}  // namespace tapestry
