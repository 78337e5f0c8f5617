// What an op keeps for its backward.
#pragma once

#include <cstdint>

#include "autograd/tape/node.h"

namespace tapestry {

/// A tensor kept for backward together with the version it had. It keeps nothing when its op is
/// not being recorded. Reading it throws a RuntimeError, naming the op, if the tensor was changed
/// in place in between.
class SavedTensor {
 public:
  /// Keeps an input, or a tensor that forward made on the side. The input stays part of its graph,
  /// so that gradients of gradients reach it; so do they reach a leaf that wants a gradient by then
  /// only.
  void save(const Tensor& value);

  /// Keeps output number `index` of the op and returns it. An output must not own the node that
  /// made it, so only its values are kept; reading re-attaches it to the node.
  const Tensor& save_output(const Tensor& value, uint32_t index = 0);

  /// The tensor; undefined if nothing was kept.
  Tensor get() const;
  operator Tensor() const { return get(); }  // NOLINT(google-explicit-constructor): reads as one
  bool defined() const { return value_.defined(); }
  /// True if no other handle sees the memory of what is kept, so that backward may write over it
  /// in a pass that releases the graph (releases_graph() in engine.h). Ask before get(), whose
  /// result is a handle.
  bool is_only_handle() const;
  /// The same tensor, which is no longer kept: for a pass that releases the graph.
  Tensor take();

 private:
  static constexpr uint32_t kInput = UINT32_MAX;

  void keep(const Tensor& value);

  Tensor value_;
  Tensor leaf_;           // of which value_ is an alias, if no op made it: it may come to want one
  Edge source_;           // where the gradient of an input goes, if some op made the input
  Node* node_ = nullptr;  // the op that keeps it; it owns this object
  uint32_t version_ = 0;
  uint32_t output_ = kInput;
};

}  // namespace tapestry
