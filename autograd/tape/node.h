// One recorded operation: its edges to the producers of its inputs, and how to run it backwards.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "autograd/tensor/tensor.h"
#include "autograd/tensor/thread_state.h"

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

/// A tensor that backward must find unchanged though it does not read it: the version it had,
/// without its memory.
struct WatchedTensor {
  Ref<VersionWatch> watch;
  uint32_t version = 0;
  OutputInfo tensor;
};

struct PendingGradients;  // engine.cpp

/// Base of recorded operations. Nodes are numbered in order of creation, throughout the process;
/// since an op can only use what exists, whichever thread made it, running them newest first is a
/// topological order.
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

  /// True for the end of a leaf, which no graph has for itself: passes on several threads may meet.
  virtual bool is_shared() const { return false; }

  uint64_t sequence_number() const { return sequence_number_; }
  /// Makes this the newest node. An op calls it when its edges are known: asking a leaf for its
  /// edge may create a node, which has to be older than its user.
  void renumber() { sequence_number_ = next_number(); }
  /// Path of the module whose forward has made it; null outside of modules.
  const std::string* module() const { return module_; }
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
  bool has_hooks() const { return attached_ != nullptr && !attached_->hooks.empty(); }
  /// Applies the hooks of one output in the order of their registration. ValueError or TypeError if
  /// one returns a gradient of another shape or dtype.
  void run_hooks(uint32_t output, Tensor& gradient) const;

  /// Makes a later pass through the node a RuntimeError if `tensor` is changed in place from now
  /// on, as if the op had saved it (SavedTensor); its memory is not kept. For what an op does not
  /// need but those who know its formula, or PyTorch's, expect to be saved.
  void watch(const Tensor& tensor);
  /// That error, if it is due.
  void check_watched() const {
    if (attached_ != nullptr) [[unlikely]] {
      check_versions();
    }
  }
  /// Goes with release_saved().
  void drop_watched() {
    if (attached_ != nullptr) [[unlikely]] {
      attached_->watched.clear();
    }
  }

 protected:
  Node() : sequence_number_(next_number()) {}
  /// Not numbered yet: the maker calls renumber().
  struct NumberedLater {};
  explicit Node(NumberedLater /*tag*/) {}
  /// Destroys a chain of nodes in a loop, however long it is.
  void on_last_release() final;

 private:
  friend class BackwardPass;

  struct Attached {
    std::map<uint32_t, HookList> hooks;  // by output
    std::vector<WatchedTensor> watched;
  };
  Attached& ensure_attached();
  void check_versions() const;

  static uint64_t next_number() { return last_number_.fetch_add(1, std::memory_order_relaxed) + 1; }
  static std::atomic<uint64_t> last_number_;

  uint64_t sequence_number_ = 0;
  const std::string* module_ = thread_state().module;
  std::vector<Edge> edges_;
  OutputInfo first_output_;
  std::vector<OutputInfo> more_outputs_;
  std::unique_ptr<Attached> attached_;  ///< made when it is first needed
  std::atomic<uintptr_t> pass_{0};  ///< the running pass that pending_ belongs to; see engine.cpp
  PendingGradients* pending_ = nullptr;  ///< gradients waiting for this node in that pass
};

namespace detail {
/// A tensor that was kept in some way at one version and is found at another.
[[noreturn]] void throw_changed(std::string_view op,
                                const OutputInfo& tensor,
                                uint32_t saved,
                                uint32_t now);
/// Passes a gradient through hooks, each of which may replace it; `of` names whose it is.
void apply_gradient_hooks(Node::HookList& hooks, std::string_view of, Tensor& gradient);
}  // namespace detail

}  // namespace tapestry
