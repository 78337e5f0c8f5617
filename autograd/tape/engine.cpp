#include "autograd/tape/engine.h"

#include <algorithm>
#include <deque>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "autograd/kernels/machine/one_order.h"
#include "autograd/tape/check_gradient.h"
#include "autograd/tape/gradient_sum.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"

namespace tapestry {

namespace {

// The same tensor under another handle.
struct Separate {
  static constexpr OpName name = "separate";
  Tensor forward(const Tensor& x) { return x; }
  Tensor backward(const Tensor& dy) const { return dy; }
};

// Adds `gradient` to `sum`, in place where nobody would notice.
void add_gradient(Tensor& sum, Tensor&& gradient) {
  if (!sum.defined()) {
    sum = std::move(gradient);
  } else if (!grad_enabled() && detail::is_sole_owner(sum)) {
    detail::sum_into(sum, gradient, sum);
  } else if (!grad_enabled() && detail::is_sole_owner(gradient)) {
    sum = detail::sum_into(sum, gradient, gradient);
  } else {
    sum = accumulate(sum, gradient);
  }
}

}  // namespace

// The gradients that have arrived for one node in one pass.
struct PendingGradients {
  Ref<Node> node;
  Tensor first;
  TensorList more;

  std::span<Tensor> as_span(TensorList& scratch) {
    if (node->num_outputs() == 1) {
      return {&first, 1};
    }
    scratch.clear();
    scratch.push_back(std::move(first));
    for (Tensor& gradient : more) {
      scratch.push_back(std::move(gradient));
    }
    scratch.resize(node->num_outputs());
    return scratch;
  }
};

// One run of the engine. Nodes wait in a heap, newest on top; each node is run when it is the
// newest that has a gradient, because only newer nodes can contribute to it.
class BackwardPass {
 public:
  explicit BackwardPass(BackwardOptions options)
      : retain_(options.retain_graph || options.create_graph),
        outer_(std::exchange(innermost_, this)) {}
  BackwardPass(const BackwardPass&) = delete;
  BackwardPass& operator=(const BackwardPass&) = delete;
  ~BackwardPass() {
    for (PendingGradients* pending : heap_) {
      leave(*pending);
    }
    innermost_ = outer_;
  }

  // Returns the gradients that arrive at these edges.
  void capture(std::vector<Edge> edges);
  // Goes no further than these edges.
  void stop_at(std::span<const Edge> edges);
  // Leaves out all nodes that do not lead to a captured edge.
  void restrict_to_captures(std::span<const Tensor> roots);
  void send(const Edge& edge, Tensor&& gradient);
  void run();
  Tensor captured(size_t index) const { return captured_[index]; }
  // What a pass inside another one has to capture for that one, appended to `edges`.
  void take_over_captures(const BackwardPass& outer, std::vector<Edge>& edges) {
    edges.insert(edges.end(), outer.captured_edges_.begin(), outer.captured_edges_.end());
    ends_.insert(outer.ends_.begin(), outer.ends_.end());
  }
  bool is_restricted() const { return restricted_; }
  const std::vector<Edge>& captured_edges() const { return captured_edges_; }
  void add_captured(size_t index, Tensor&& gradient) {
    add_gradient(captured_[index], std::move(gradient));
  }

 private:
  PendingGradients* pending_of(Node* node) const;
  void enter(PendingGradients& pending);
  void leave(const PendingGradients& pending);
  void run_node(PendingGradients& pending);
  bool is_needed(Node* node) const { return !restricted_ || needed_.contains(node); }

  // What stands for this pass in Node::pass_: its address, and in the lowest bit whether it retains
  // the graph.
  static constexpr uintptr_t kRetains = 1;
  uintptr_t tag() const { return reinterpret_cast<uintptr_t>(this) | (retain_ ? kRetains : 0); }

  static thread_local constinit const BackwardPass* innermost_;

  bool retain_;
  const BackwardPass* outer_;  // the pass of this thread in which this one is nested
  bool restricted_ = false;
  std::vector<PendingGradients*> heap_;
  std::unordered_map<Node*, PendingGradients*> beside_;  // of nodes that another pass holds
  std::deque<PendingGradients> pool_;
  std::vector<PendingGradients*> free_;
  TensorList outputs_scratch_;
  TensorList inputs_scratch_;
  std::unordered_map<Node*, std::vector<std::pair<uint32_t, size_t>>> captures_;
  std::unordered_set<const Node*> ends_;
  std::unordered_map<Node*, bool> needed_;  // and whether there is something behind it
  std::vector<Edge> captured_edges_;
  TensorList captured_;
};

namespace {

bool older(const PendingGradients* a, const PendingGradients* b) {
  return a->node->sequence_number() < b->node->sequence_number();
}

}  // namespace

void BackwardPass::capture(std::vector<Edge> edges) {
  captured_edges_ = std::move(edges);
  captured_.resize(captured_edges_.size());
  for (size_t i = 0; i < captured_edges_.size(); ++i) {
    if (const Edge& edge = captured_edges_[i]) {
      captures_[edge.node.get()].emplace_back(edge.output, i);
    }
  }
}

void BackwardPass::stop_at(std::span<const Edge> edges) {
  for (const Edge& edge : edges) {
    ends_.insert(edge.node.get());
  }
}

void BackwardPass::restrict_to_captures(std::span<const Tensor> roots) {
  restricted_ = true;
  std::vector<Node*> reachable;
  std::unordered_map<Node*, bool> seen;
  const auto visit = [&](Node* node) {
    if (node != nullptr && seen.emplace(node, true).second) {
      reachable.push_back(node);
    }
  };
  std::vector<Edge> starts;  // the node of a leaf lives only as long as somebody holds it
  for (const Tensor& root : roots) {
    starts.push_back(root.defined() ? gradient_edge(root) : Edge{});
    visit(starts.back().node.get());
  }
  // NOLINTNEXTLINE(modernize-loop-convert): visit() appends to what is looped over
  for (size_t i = 0; i < reachable.size(); ++i) {
    if (ends_.contains(reachable[i])) {
      continue;
    }
    for (const Edge& edge : reachable[i]->edges()) {
      visit(edge.node.get());
    }
  }
  std::sort(reachable.begin(), reachable.end(), [](const Node* a, const Node* b) {
    return a->sequence_number() < b->sequence_number();
  });
  for (Node* node : reachable) {
    const bool leads_to_one =
        !ends_.contains(node) &&
        (node->has_hidden_edges() ||
         std::any_of(node->edges().begin(), node->edges().end(),
                     [&](const Edge& edge) { return needed_.contains(edge.node.get()); }));
    if (leads_to_one || captures_.contains(node)) {
      needed_.emplace(node, leads_to_one);
    }
  }
}

thread_local constinit const BackwardPass* BackwardPass::innermost_ = nullptr;

PendingGradients* BackwardPass::pending_of(Node* node) const {
  if (!beside_.empty()) [[unlikely]] {
    if (const auto found = beside_.find(node); found != beside_.end()) {
      return found->second;
    }
  }
  return node->pass_.load(std::memory_order_relaxed) == tag() ? node->pending_ : nullptr;
}

// A node holds the gradients of the first pass that reaches it. Other passes, nested in that one or
// on other threads, keep theirs themselves.
void BackwardPass::enter(PendingGradients& pending) {
  Node* node = pending.node.get();
  uintptr_t holder = 0;
  if (node->pass_.compare_exchange_strong(holder, tag(), std::memory_order_acquire)) {
    node->pending_ = &pending;
    return;
  }
  bool allowed = node->is_shared() || (retain_ && (holder & kRetains) != 0);
  for (const BackwardPass* pass = outer_; pass != nullptr && !allowed; pass = pass->outer_) {
    allowed = pass->tag() == holder;
  }
  check<RuntimeError>(allowed, node->name(),
                      ": two threads run backward through this graph at the same time, and one of "
                      "them releases it; pass retain_graph to both, or run one after the other");
  beside_.emplace(node, &pending);
}

void BackwardPass::leave(const PendingGradients& pending) {
  Node* node = pending.node.get();
  if (!beside_.empty() && beside_.erase(node) != 0) {
    return;
  }
  node->pending_ = nullptr;
  node->pass_.store(0, std::memory_order_release);
}

void BackwardPass::send(const Edge& edge, Tensor&& gradient) {
  Node* node = edge.node.get();
  if (!is_needed(node)) {
    return;
  }
  PendingGradients* pending = pending_of(node);
  if (pending == nullptr) {
    if (free_.empty()) {
      pending = &pool_.emplace_back();
    } else {
      pending = free_.back();
      free_.pop_back();
    }
    pending->node = edge.node;
    enter(*pending);
    heap_.push_back(pending);
    std::push_heap(heap_.begin(), heap_.end(), older);
  }
  if (node->has_received(gradient)) {
    return;
  }
  if (edge.output == 0) {
    add_gradient(pending->first, std::move(gradient));
    return;
  }
  if (pending->more.size() < edge.output) {
    pending->more.resize(edge.output);
  }
  add_gradient(pending->more[edge.output - 1], std::move(gradient));
}

void BackwardPass::run() {
  const OneOrderScope gradients(false);
  while (!heap_.empty()) {
    PendingGradients* pending = heap_.front();
    run_node(*pending);
    // Everything that run_node sent is older than the node, so it is still the first.
    std::pop_heap(heap_.begin(), heap_.end(), older);
    heap_.pop_back();
    leave(*pending);
    pending->node.reset();
    pending->first = Tensor();
    pending->more.clear();
    free_.push_back(pending);
  }
}

namespace {

void run_observed(const detail::ObserverList& observers,
                  Node& node,
                  std::span<Tensor> grad_outputs,
                  std::span<Tensor> grad_inputs) {
  OpRun run{.op = node.name(),
            .pass = OpPass::kBackward,
            .module = detail::current_module(),
            .number = node.sequence_number(),
            .node = &node,
            .inputs = grad_outputs};
  detail::tell(&observers, &Observer::op_begins, run);
  node.run(grad_outputs, grad_inputs);
  run.outputs = grad_inputs;
  detail::tell(&observers, &Observer::op_ended, run);
}

}  // namespace

void BackwardPass::run_node(PendingGradients& pending) {
  Node& node = *pending.node;
  TensorList outputs_storage;
  const std::span<Tensor> grad_outputs = pending.as_span(outputs_storage);
  if (node.has_hooks()) {
    for (uint32_t i = 0; i < grad_outputs.size(); ++i) {
      if (grad_outputs[i].defined()) {
        node.run_hooks(i, grad_outputs[i]);
      }
    }
  }
  if (!captures_.empty()) {
    if (const auto found = captures_.find(&node); found != captures_.end()) {
      for (const auto& [output, index] : found->second) {
        // More than once for a leaf that a recomputed function uses, too: see nested_gradients().
        if (grad_outputs[output].defined()) {
          add_captured(index, Tensor(grad_outputs[output]));
        }
      }
    }
    if (ends_.contains(&node) || (restricted_ && !needed_.at(&node))) {
      return;
    }
  }

  TensorList grad_inputs = std::move(inputs_scratch_);
  grad_inputs.assign(node.edges().size(), Tensor());
  {
    const detail::ObserverList* observers =
        node.has_hidden_edges() ? nullptr : detail::op_observers();
    const detail::BackwardScope scope(node);
    node.check_watched();
    if (observers != nullptr) [[unlikely]] {
      run_observed(*observers, node, grad_outputs, grad_inputs);
    } else {
      node.run(grad_outputs, grad_inputs);
    }
  }
  if (!retain_) {
    node.release_saved();
    node.drop_watched();
  }
  for (Tensor& gradient : grad_outputs) {
    gradient = Tensor();
  }
  for (size_t i = 0; i < grad_inputs.size(); ++i) {
    const Edge& edge = node.edges()[i];
    if (edge && grad_inputs[i].defined()) {
      if (!edge.node->has_received(grad_inputs[i])) {
        // Reported where it is made, not where it is first used.
        check_gradient(grad_inputs[i], edge.node->output(edge.output), node.name(),
                       ": a gradient that its backward returned");
      }
      send(edge, std::move(grad_inputs[i]));
    }
  }
  grad_inputs.clear();
  inputs_scratch_ = std::move(grad_inputs);
}

namespace {

void start(BackwardPass& pass,
           std::string_view what,
           std::span<const Tensor> roots,
           std::span<const Tensor> gradients) {
  check<ValueError>(gradients.empty() || gradients.size() == roots.size(), what, ": ",
                    gradients.size(), " gradients for ", roots.size(), " roots");
  for (size_t i = 0; i < roots.size(); ++i) {
    const Tensor& root = roots[i];
    check<RuntimeError>(root.defined(), what, ": root ", i, " is undefined");
    check<RuntimeError>(root.requires_grad(), what, ": root ", i, " (", describe(root),
                        ") has no graph: nothing it was computed from requires a gradient, or it "
                        "was computed without recording or detached");
    Tensor gradient = i < gradients.size() ? gradients[i] : Tensor();
    if (!gradient.defined()) {
      check<ValueError>(root.numel() == 1, what, ": root ", i, " has shape ", root.shape(),
                        ", so a gradient of that shape must be given; only a root of one element "
                        "has a default");
      gradient = ones(root.shape(), root.dtype());
    }
    check_gradient(gradient, root, what, ": the gradient given for root ", i);
    pass.send(gradient_edge(root), std::move(gradient));
  }
}

}  // namespace

namespace {

// What ops may know of the running pass.
struct PassTraits {
  bool accumulates = true;  // into leaves
  bool releases = false;    // what was saved
  BackwardPass* pass = nullptr;
};
thread_local PassTraits running_pass;

class PassScope {
 public:
  PassScope(bool accumulates, const BackwardOptions& options, BackwardPass& pass)
      : previous_(running_pass) {
    running_pass = {accumulates, !options.retain_graph && !options.create_graph, &pass};
  }
  PassScope(const PassScope&) = delete;
  PassScope& operator=(const PassScope&) = delete;
  ~PassScope() { running_pass = previous_; }

 private:
  PassTraits previous_;
};

}  // namespace

bool detail::accumulating() { return running_pass.accumulates; }

bool releases_graph() { return running_pass.releases; }

void backward(std::span<const Tensor> roots,
              std::span<const Tensor> gradients,
              BackwardOptions options) {
  BackwardPass pass(options);
  const PassScope scope(true, options, pass);
  const MemoryKindGuard kind(MemoryKind::kWorkspace);
  const GradModeGuard mode(options.create_graph);
  start(pass, "backward", roots, gradients);
  pass.run();
}

TensorList grad(std::span<const Tensor> roots,
                std::span<const Tensor> inputs,
                std::span<const Tensor> gradients,
                BackwardOptions options,
                bool allow_unused) {
  BackwardPass pass(options);
  const PassScope scope(false, options, pass);
  const MemoryKindGuard kind(MemoryKind::kWorkspace);
  const GradModeGuard mode(options.create_graph);
  std::vector<Edge> edges;
  for (size_t i = 0; i < inputs.size(); ++i) {
    check<RuntimeError>(inputs[i].defined(), "grad: input ", i, " is undefined");
    check<RuntimeError>(inputs[i].requires_grad(), "grad: input ", i, " (", describe(inputs[i]),
                        ") does not require a gradient");
    edges.push_back(gradient_edge(inputs[i]));
  }
  pass.capture(std::move(edges));
  pass.restrict_to_captures(roots);
  start(pass, "grad", roots, gradients);
  pass.run();
  TensorList out;
  for (size_t i = 0; i < inputs.size(); ++i) {
    out.push_back(pass.captured(i));
    check<RuntimeError>(allow_unused || out[i].defined(), "grad: no root depends on input ", i,
                        " (", describe(inputs[i]), "); allow_unused gives an undefined gradient");
  }
  return out;
}

TensorList grad(const Tensor& root,
                const TensorList& inputs,
                const Tensor& gradient,
                BackwardOptions options,
                bool allow_unused) {
  return grad(std::span(&root, 1), inputs, std::span(&gradient, 1), options, allow_unused);
}

namespace detail {

TensorList separate(const TensorList& inputs) {
  TensorList out;
  for (const Tensor& input : inputs) {
    out.push_back(input.defined() ? apply_op(Separate{}, input) : input);
  }
  return out;
}

TensorList nested_gradients(const TensorList& roots,
                            const TensorList& dys,
                            const TensorList& inputs) {
  BackwardPass* const outer = running_pass.pass;
  const BackwardOptions options{.create_graph = grad_enabled()};
  BackwardPass pass(options);
  const PassScope scope(running_pass.accumulates, options, pass);
  std::vector<Edge> edges;
  for (const Tensor& input : inputs) {
    edges.push_back(input.defined() ? gradient_edge(input) : Edge{});
  }
  pass.stop_at(edges);
  if (outer != nullptr) {
    pass.take_over_captures(*outer, edges);
  }
  pass.capture(std::move(edges));
  if (outer != nullptr && outer->is_restricted()) {
    pass.restrict_to_captures(roots);
  }
  start(pass, "backward", roots, dys);
  pass.run();
  TensorList out;
  for (size_t i = 0; i < inputs.size(); ++i) {
    out.push_back(pass.captured(i));
  }
  for (size_t i = inputs.size(); i < pass.captured_edges().size(); ++i) {
    if (Tensor gradient = pass.captured(i); gradient.defined()) {
      outer->add_captured(i - inputs.size(), std::move(gradient));
    }
  }
  return out;
}

TensorList vjp_of(const Tensor& output, const Tensor& dy, const TensorList& inputs) {
  TensorList wanted;
  for (const Tensor& input : inputs) {
    if (wants_grad(input)) {
      wanted.push_back(input);
    }
  }
  const TensorList gradients =
      grad(std::span(&output, 1), wanted, std::span(&dy, 1), {.create_graph = true}, true);
  TensorList out(inputs.size());
  size_t next = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (wants_grad(inputs[i])) {
      out[i] = gradients[next++];
    }
  }
  return out;
}

}  // namespace detail

}  // namespace tapestry
