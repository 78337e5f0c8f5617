#include "autograd/tape/autograd_meta.h"

#include <mutex>
#include <utility>

#include "autograd/tape/accumulate_grad.h"
#include "autograd/tape/leaf_state.h"

namespace tapestry {

AutogradMeta::AutogradMeta() = default;
AutogradMeta::~AutogradMeta() = default;

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
  Ref<Node> made;
  for (;;) {
    {
      const std::lock_guard lock(state.accumulator_lock);
      if (state.accumulator != nullptr) {
        // Another thread may be dropping the last graph that holds it.
        if (Ref<Node> node = Ref<Node>::if_alive(state.accumulator)) {
          return {std::move(node), 0};
        }
      }
      if (made) {
        state.accumulator = made.get();
        return {std::move(made), 0};
      }
    }
    made = make_ref<AccumulateGrad>(tensor);
  }
}

void set_gradient_edge(const Tensor& tensor, const Ref<Node>& node, uint32_t output) {
  AutogradMeta& meta = ensure_autograd_meta(tensor);
  meta.grad_fn = node;
  meta.output = output;
  tensor.impl()->requires_grad = true;
}

}  // namespace tapestry
