// What the tape attaches to a tensor.
#pragma once

#include <memory>

#include "autograd/tape/node.h"
#include "autograd/tensor/thread_state.h"

namespace tapestry {

struct LeafState;

/// Autograd state of one tensor, made when it is first needed.
struct AutogradMeta final : AutogradMetaBase {
  AutogradMeta();
  ~AutogradMeta() override;

  Ref<Node> grad_fn;    ///< the recorded op that made the tensor; null for a leaf
  uint32_t output = 0;  ///< which output of grad_fn

  Tensor grad;
  HookHandle retaining;             ///< what retain_grad() has put on grad_fn: it fills grad
  std::unique_ptr<LeafState> leaf;  ///< made when it is first needed; null for a result
};

/// The tensor's state, or null.
inline AutogradMeta* autograd_meta(const Tensor& tensor) {
  return static_cast<AutogradMeta*>(tensor.impl()->meta.get());
}
/// The tensor's state, created if there is none.
AutogradMeta& ensure_autograd_meta(const Tensor& tensor);

/// The recorded op that made the tensor; null for a leaf.
inline Node* grad_fn(const Tensor& tensor) {
  const AutogradMeta* meta = autograd_meta(tensor);
  return meta == nullptr ? nullptr : meta->grad_fn.get();
}

/// Where the gradient of this tensor goes: its producer, the accumulation node of a leaf that wants
/// a gradient, or nowhere.
Edge gradient_edge(const Tensor& tensor);

/// Makes `tensor` output number `output` of `node`. A retained gradient is that of its new place.
void set_gradient_edge(const Tensor& tensor, const Ref<Node>& node, uint32_t output);

/// Node::watch() of the op that made `result`, which is new; nothing if it was not recorded.
inline void watch_versions(const Tensor& result, std::initializer_list<Tensor> tensors) {
  if (Node* node = grad_fn(result)) {
    for (const Tensor& tensor : tensors) {
      node->watch(tensor);
    }
  }
}
/// Node::watch() of the op whose forward is running; nothing if it is not recorded.
inline void watch_input(const Tensor& tensor) {
  if (auto* node = static_cast<Node*>(thread_state().recording_node)) {
    node->watch(tensor);
  }
}

/// Tensor::retain_grad() of a result.
void retain_grad_of(AutogradMeta& meta);

}  // namespace tapestry
