// One recorded operation: its edges to the producers of its inputs, and how to run it backwards.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "autograd/tensor/tensor.h"

namespace tapestry {

class Node;

/// "Output number `output` of `node`": where a gradient is sent. Null if nobody wants it.
struct Edge {
  Ref<Node> node;
  uint32_t output = 0;
  explicit operator bool() const { return static_cast<bool>(node); }
};

/// Which inputs of an op want a gradient, by their position among its tensor inputs.
class NeedsGrad {
 public:
  NeedsGrad() = default;
  explicit NeedsGrad(std::span<const Edge> edges) : edges_(edges) {}
  bool operator[](size_t input) const {
    return input < edges_.size() && static_cast<bool>(edges_[input]);
  }
  size_t size() const { return edges_.size(); }

 private:
  std::span<const Edge> edges_;
};

/// Shape and dtype of one output, which a gradient must have.
struct OutputInfo {
  Shape shape;
  DType dtype = kFloat32;
};

struct PendingGradients;  // engine.cpp

/// Base of recorded operations. Nodes are numbered in order of creation; since an op can only use
/// what exists, running them newest first is a topological order.
class Node : public RefCounted {
 public:
  ~Node() override;

  virtual std::string_view name() const = 0;

  /// Turns the gradients of the outputs (undefined where none arrived) into those of the inputs.
  /// grad_inputs has one entry per edge.
  virtual void run(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) = 0;

  /// Drops what was saved for backward. Running the node afterwards is an error.
  virtual void release_saved() = 0;

  /// True if running this node may send gradients to places to which it has no edge (checkpoint()).
  virtual bool has_hidden_edges() const { return false; }

  /// True if `gradient` stands for a contribution that is already where this node would put it.
  virtual bool has_received(const Tensor& /*gradient*/) const { return false; }

  uint64_t sequence_number() const { return sequence_number_; }
  /// Makes this the newest node. An op calls it when its edges are known: asking a leaf for its
  /// edge may create a node, which has to be older than its user.
  void renumber();
  std::span<const Edge> edges() const { return edges_; }
  void add_edge(Edge edge) { edges_.push_back(std::move(edge)); }

  size_t num_outputs() const { return 1 + more_outputs_.size(); }
  const OutputInfo& output(size_t index) const {
    return index == 0 ? first_output_ : more_outputs_[index - 1];
  }
  void set_output(size_t index, const Tensor& value);

  using Hook = std::function<Tensor(const Tensor&)>;
  using HookList = detail::HookList<Tensor(const Tensor&)>;
  /// Hook on the complete gradient of one output, run before the node.
  HookHandle add_hook(uint32_t output, Hook hook);
  bool has_hooks() const { return hooks_ != nullptr; }
  /// Applies the hooks of one output in the order of their registration. ValueError or TypeError if
  /// one returns a gradient of another shape or dtype.
  void run_hooks(uint32_t output, Tensor& gradient) const;

 protected:
  Node();
  /// Destroys a chain of nodes in a loop, however long it is.
  void on_last_release() final;

 private:
  friend struct PendingGradients;
  friend class BackwardPass;

  uint64_t sequence_number_;
  std::vector<Edge> edges_;
  OutputInfo first_output_;
  std::vector<OutputInfo> more_outputs_;
  std::unique_ptr<std::map<uint32_t, HookList>> hooks_;  ///< by output
  PendingGradients* pending_ = nullptr;  ///< gradients waiting for this node in a running pass
};

namespace detail {
/// Passes a gradient through hooks, each of which may replace it; `of` names whose it is.
void apply_gradient_hooks(Node::HookList& hooks, std::string_view of, Tensor& gradient);
}  // namespace detail

}  // namespace tapestry
