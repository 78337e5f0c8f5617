// What the tape keeps of leaves only: where their gradients go, and who is told.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "autograd/kernels/random_rows.h"
#include "autograd/tape/autograd_meta.h"
#include "autograd/tensor/generator.h"
#include "autograd/tensor/spin_lock.h"

namespace tapestry {

/// Threads may record ops on one leaf and run passes that end in it at the same time.
struct LeafState {
  /// Held while a gradient is added to grad or main_grad, or compute_copy is made.
  std::mutex mutex;
  Tensor main_grad;
  /// main_grad stands for zeros, whatever it holds: the first contribution overwrites it. It may
  /// then have no storage; see main_grad.h.
  bool main_grad_is_fresh = false;
  /// Of the random numbers that round sums in a 16-bit main_grad; the offset counts contributions.
  RandomKey main_grad_rounding;
  /// Which of them an element takes (number_main_grad); null: that of its place in the leaf.
  std::shared_ptr<const std::vector<kernels::RandomRows>> main_grad_numbers;
  /// The values in a 16-bit dtype for ops that compute in it, and the version they were taken from.
  Tensor compute_copy;
  uint32_t compute_copy_version = 0;
  Node* accumulator = nullptr;  ///< the leaf's accumulation node while some graph holds it
  SpinLock accumulator_lock;    ///< of that pointer
  Node::HookList hooks;
  detail::HookList<void(const Tensor&)> post_accumulate_hooks;
};

/// The leaf's state, or null.
inline LeafState* leaf_state(const Tensor& leaf) {
  const AutogradMeta* meta = autograd_meta(leaf);
  return meta == nullptr ? nullptr : meta->leaf.get();
}
/// The leaf's state, created if there is none.
LeafState& ensure_leaf_state(const Tensor& leaf);

/// Puts the memory and the dtype of `values` under a leaf: all handles of the leaf show them.
/// What was saved of it for a backward pass is then refused as changed; its compute copy is
/// dropped. RuntimeError unless it is a leaf, ValueError unless the shapes are equal, TypeError if
/// the leaf has a gradient, which is of the old dtype, and `values` is of another one.
void set_data(const Tensor& leaf, const Tensor& values);

/// The leaf's compute copy as it is in memory, valid or not; undefined if there is none. Who
/// changes the leaf may write the copy as well and then call set_compute_copy.
inline Tensor compute_copy_buffer(const Tensor& leaf) {
  const LeafState* state = leaf_state(leaf);
  return state == nullptr ? Tensor() : state->compute_copy;
}
/// Records `copy` as holding the leaf's present values.
inline void set_compute_copy(const Tensor& leaf, const Tensor& copy) {
  LeafState& state = ensure_leaf_state(leaf);
  state.compute_copy = copy;
  state.compute_copy_version = leaf.version();
}

}  // namespace tapestry
