// What the tape attaches to a tensor.
#pragma once

#include <functional>
#include <vector>

#include "autograd/tape/node.h"
#include "autograd/tensor/generator.h"

namespace tapestry {

/// Autograd state of one tensor, made when it is first needed.
struct AutogradMeta final : AutogradMetaBase {
  // The result of a recorded op.
  Ref<Node> grad_fn;
  uint32_t output = 0;  ///< which output of grad_fn

  /// Where retain_grad() puts the gradient of a result; shared with the hook on grad_fn, which must
  /// not own this tensor.
  Ref<AutogradMeta> retained;

  // A leaf.
  Tensor grad;
  Tensor main_grad;
  /// main_grad stands for zeros, whatever it holds: the first contribution overwrites it. It may
  /// then have no storage; see main_grad.h.
  bool main_grad_is_fresh = false;
  /// Of the random numbers that round sums in a 16-bit main_grad; the offset counts contributions.
  RandomKey main_grad_rounding;
  /// The values in a 16-bit dtype for ops that compute in it, and the version they were taken from.
  Tensor compute_copy;
  uint32_t compute_copy_version = 0;
  Node* accumulator = nullptr;  ///< the leaf's accumulation node while some graph holds it
  std::vector<Node::Hook> hooks;
  std::vector<std::function<void(const Tensor&)>> post_accumulate_hooks;
};

/// The tensor's state, or null.
inline AutogradMeta* autograd_meta(const Tensor& tensor) {
  return static_cast<AutogradMeta*>(tensor.impl()->meta.get());
}
/// The tensor's state, created if there is none.
AutogradMeta& ensure_autograd_meta(const Tensor& tensor);

/// The leaf's compute copy as it is in memory, valid or not; undefined if there is none. Who
/// changes the leaf may write the copy as well and then call set_compute_copy.
inline Tensor compute_copy_buffer(const Tensor& leaf) {
  const AutogradMeta* meta = autograd_meta(leaf);
  return meta == nullptr ? Tensor() : meta->compute_copy;
}
/// Records `copy` as holding the leaf's present values.
inline void set_compute_copy(const Tensor& leaf, const Tensor& copy) {
  AutogradMeta& meta = ensure_autograd_meta(leaf);
  meta.compute_copy = copy;
  meta.compute_copy_version = leaf.version();
}

/// The recorded op that made the tensor; null for a leaf.
inline Node* grad_fn(const Tensor& tensor) {
  const AutogradMeta* meta = autograd_meta(tensor);
  return meta == nullptr ? nullptr : meta->grad_fn.get();
}

/// Where the gradient of this tensor goes: its producer, the accumulation node of a leaf that wants
/// a gradient, or nowhere.
Edge gradient_edge(const Tensor& tensor);

/// Makes `tensor` output number `output` of `node`.
void set_gradient_edge(const Tensor& tensor, const Ref<Node>& node, uint32_t output);

}  // namespace tapestry
