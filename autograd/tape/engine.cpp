#include "autograd/tape/engine.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <unordered_map>
#include <utility>

#include "autograd/kernels/optimizer.h"
#include "autograd/kernels/reduce.h"
#include "autograd/kernels/strided.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/dtype.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"

namespace tapestry {

namespace {

Tensor sum_into(const Tensor& a, const Tensor& b, const Tensor& out) {
  const kernels::BinaryRow row = kernels::binary_row(kernels::BinaryOp::kAdd, out.dtype());
  if (a.is_contiguous() && b.is_contiguous() && out.is_contiguous()) {
    const int64_t item = size_of(out.dtype());
    kernels::apply_binary_contiguous(row, out.numel(), a.raw(), b.raw(), item, out.raw(), item);
    return out;
  }
  kernels::apply_binary(row, static_cast<int>(out.dim()), out.shape().begin(), a.raw(),
                        a.strides().begin(), size_of(a.dtype()), b.raw(), b.strides().begin(),
                        size_of(b.dtype()), out.raw(), out.strides().begin(), size_of(out.dtype()));
  return out;
}

Tensor contiguous_copy(const Tensor& source) {
  Tensor out = empty_like(source);
  kernels::copy_strided(source.dtype(), static_cast<int>(source.dim()), source.shape().begin(),
                        source.raw(), source.strides().begin(), out.raw(), out.strides().begin());
  return out;
}

// Nobody else can see this tensor's memory: it may be overwritten.
bool is_sole_owner(const Tensor& t) {
  return t.impl()->use_count() == 1 && t.storage()->use_count() == 1 && t.is_contiguous() &&
         !t.requires_grad();
}

// The sum of two gradients, recorded in create_graph mode.
struct AccumulateGradients {
  static constexpr std::string_view name = "accumulate_gradients";
  Tensor forward(const Tensor& a, const Tensor& b) {
    return sum_into(a, b, empty(a.shape(), a.dtype()));
  }
  std::array<Tensor, 2> backward(const Tensor& dy, NeedsGrad /*needs*/) const { return {dy, dy}; }
};

// The same tensor under another handle.
struct Separate {
  static constexpr std::string_view name = "separate";
  Tensor forward(const Tensor& x) { return x; }
  Tensor backward(const Tensor& dy) const { return dy; }
};

// Adds `gradient` to `sum`, in place where nobody would notice.
void add_gradient(Tensor& sum, Tensor&& gradient) {
  if (!sum.defined()) {
    sum = std::move(gradient);
  } else if (!grad_enabled() && is_sole_owner(sum)) {
    sum_into(sum, gradient, sum);
  } else if (!grad_enabled() && is_sole_owner(gradient)) {
    sum = sum_into(sum, gradient, gradient);
  } else {
    sum = accumulate(sum, gradient);
  }
}

// out = x in another floating dtype.
void convert_into(const Tensor& x, const Tensor& out) {
  kernels::apply_unary(kernels::cast_row(x.dtype(), out.dtype()), static_cast<int>(out.dim()),
                       out.shape().begin(), x.raw(), x.strides().begin(), size_of(x.dtype()),
                       out.raw(), out.strides().begin(), size_of(out.dtype()));
}

// main_grad += gradient of any floating dtype.
void accumulate_into_main_grad(AutogradMeta& meta, const Tensor& gradient) {
  open_main_grad_storage(meta);
  const Tensor& main_grad = meta.main_grad;
  if (std::exchange(meta.main_grad_is_fresh, false)) {
    convert_into(gradient, main_grad);
  } else if (main_grad.dtype() == kBFloat16) {
    const Tensor term = gradient.is_contiguous() ? gradient : contiguous_copy(gradient);
    const RandomKey& key = meta.main_grad_rounding;
    kernels::add_stochastic(term.dtype(), term.numel(), term.raw(), key.seed,
                            combine(key.stream, meta.main_grad_rounding.offset++),
                            main_grad.data<BFloat16>());
  } else if (gradient.dtype() == kFloat32) {
    sum_into(main_grad, gradient, main_grad);
  } else {
    const Tensor wide = empty(gradient.shape(), kFloat32);
    convert_into(gradient, wide);
    sum_into(main_grad, wide, main_grad);
  }
}

// Where the gradient of a leaf ends: in its main_grad or grad. Lives as long as a graph uses the
// leaf; the leaf points back to it without owning it.
class AccumulateGrad final : public Node {
 public:
  explicit AccumulateGrad(const Tensor& leaf) : leaf_(leaf) { set_output(0, leaf); }
  ~AccumulateGrad() override {
    if (AutogradMeta* meta = autograd_meta(leaf_); meta->accumulator == this) {
      meta->accumulator = nullptr;
    }
  }

  std::string_view name() const override { return "accumulate_grad"; }
  void release_saved() override {}

  bool has_received(const Tensor& gradient) const override {
    const AutogradMeta* meta = autograd_meta(leaf_);
    return meta->main_grad.defined() && meta->main_grad.is_same(gradient);
  }

  void run(std::span<Tensor> grad_outputs, std::span<Tensor> /*grad_inputs*/) override {
    AutogradMeta& meta = *autograd_meta(leaf_);
    if (grad_outputs[0].defined()) {  // else every op has added its part to main_grad itself
      accumulate_into(meta, std::move(grad_outputs[0]));
    }
    for (const auto& hook : meta.post_accumulate_hooks) {
      hook(leaf_);
    }
  }

 private:
  static void accumulate_into(AutogradMeta& meta, Tensor gradient) {
    for (const Node::Hook& hook : meta.hooks) {
      if (const Tensor replaced = hook(gradient); replaced.defined()) {
        check<ValueError>(replaced.shape() == gradient.shape(),
                          "hook on the gradient of a leaf: returned ", describe(replaced), " for ",
                          describe(gradient));
        gradient = replaced;
      }
    }
    if (meta.main_grad.defined()) {
      accumulate_into_main_grad(meta, gradient);
    } else if (!meta.grad.defined()) {
      // A gradient that only this pass can see is taken over; any other is copied, so that later
      // accumulation in place cannot change somebody else's tensor.
      const bool own = grad_enabled() || is_sole_owner(gradient);
      meta.grad = own ? std::move(gradient) : contiguous_copy(gradient);
    } else if (grad_enabled()) {
      meta.grad = accumulate(meta.grad, gradient);
    } else {
      sum_into(meta.grad, gradient, meta.grad);
      meta.grad.bump_version();
    }
  }

  Tensor leaf_;
};

}  // namespace

class BackwardPass;

// The gradients that have arrived for one node in one pass.
struct PendingGradients {
  Ref<Node> node;
  const BackwardPass* pass = nullptr;
  PendingGradients* outer = nullptr;  // of the same node in the pass that this one is nested in
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
      : retain_(options.retain_graph || options.create_graph) {}
  BackwardPass(const BackwardPass&) = delete;
  BackwardPass& operator=(const BackwardPass&) = delete;
  ~BackwardPass() {
    for (PendingGradients* pending : heap_) {
      pending->node->pending_ = pending->outer;
    }
  }

  // Restricts the pass to the nodes between the roots and these edges, whose gradients it returns.
  void capture(std::span<const Tensor> roots, const std::vector<Edge>& edges);
  void send(const Edge& edge, Tensor&& gradient);
  void run();
  Tensor captured(size_t index) const { return captured_[index]; }

 private:
  void run_node(PendingGradients& pending);
  bool is_needed(Node* node) const { return !restricted_ || needed_.contains(node); }

  bool retain_;
  bool restricted_ = false;
  std::vector<PendingGradients*> heap_;
  std::deque<PendingGradients> pool_;
  std::vector<PendingGradients*> free_;
  TensorList outputs_scratch_;
  TensorList inputs_scratch_;
  std::unordered_map<Node*, std::vector<std::pair<uint32_t, size_t>>> captures_;
  std::unordered_map<Node*, bool> needed_;
  TensorList captured_;
};

namespace {

// A wrong gradient is reported where it is made, not where it is first used.
void check_gradient(const Node& from, const Node& to, uint32_t output, const Tensor& gradient) {
  const OutputInfo& info = to.output(output);
  check<RuntimeError>(gradient.shape() == info.shape, from.name(),
                      ": backward returned a gradient ", describe(gradient),
                      " for an input of shape ", info.shape);
  check<RuntimeError>(gradient.dtype() == info.dtype, from.name(),
                      ": backward returned a gradient ", describe(gradient),
                      " for an input of dtype ", name_of(info.dtype));
}

bool older(const PendingGradients* a, const PendingGradients* b) {
  return a->node->sequence_number() < b->node->sequence_number();
}

}  // namespace

void BackwardPass::capture(std::span<const Tensor> roots, const std::vector<Edge>& edges) {
  restricted_ = true;
  captured_.resize(edges.size());
  for (size_t i = 0; i < edges.size(); ++i) {
    if (edges[i]) {
      captures_[edges[i].node.get()].emplace_back(edges[i].output, i);
    }
  }
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
    for (const Edge& edge : reachable[i]->edges()) {
      visit(edge.node.get());
    }
  }
  std::sort(reachable.begin(), reachable.end(), [](const Node* a, const Node* b) {
    return a->sequence_number() < b->sequence_number();
  });
  for (Node* node : reachable) {
    const bool leads_to_one =
        std::any_of(node->edges().begin(), node->edges().end(),
                    [&](const Edge& edge) { return needed_.contains(edge.node.get()); });
    if (leads_to_one || captures_.contains(node)) {
      needed_.emplace(node, leads_to_one);
    }
  }
}

void BackwardPass::send(const Edge& edge, Tensor&& gradient) {
  Node* node = edge.node.get();
  if (!is_needed(node)) {
    return;
  }
  PendingGradients* pending = node->pending_;
  if (pending == nullptr || pending->pass != this) {
    if (free_.empty()) {
      pending = &pool_.emplace_back();
    } else {
      pending = free_.back();
      free_.pop_back();
    }
    pending->node = edge.node;
    pending->pass = this;
    pending->outer = node->pending_;
    node->pending_ = pending;
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
  while (!heap_.empty()) {
    PendingGradients* pending = heap_.front();
    run_node(*pending);
    // Everything that run_node sent is older than the node, so it is still the first.
    std::pop_heap(heap_.begin(), heap_.end(), older);
    heap_.pop_back();
    pending->node->pending_ = pending->outer;
    pending->node.reset();
    pending->first = Tensor();
    pending->more.clear();
    free_.push_back(pending);
  }
}

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
  if (restricted_) {
    if (const auto found = captures_.find(&node); found != captures_.end()) {
      for (const auto& [output, index] : found->second) {
        captured_[index] = grad_outputs[output];
      }
    }
    if (!needed_.at(&node)) {
      return;
    }
  }

  TensorList grad_inputs = std::move(inputs_scratch_);
  grad_inputs.assign(node.edges().size(), Tensor());
  const bool anomaly = thread_state().anomaly_enabled;
  const TensorList before =
      anomaly ? TensorList(grad_outputs.begin(), grad_outputs.end()) : TensorList();
  {
    // Inside, an op may make infinities that it masks out again; and the name to report is its own.
    const AnomalyGuard whole_op_only(false);
    const detail::BackwardScope scope(node.name());
    node.run(grad_outputs, grad_inputs);
  }
  if (anomaly) {
    detail::check_anomaly(node.name(), "backward", before, grad_inputs);
  }
  if (!retain_) {
    node.release_saved();
  }
  for (Tensor& gradient : grad_outputs) {
    gradient = Tensor();
  }
  for (size_t i = 0; i < grad_inputs.size(); ++i) {
    const Edge& edge = node.edges()[i];
    if (edge && grad_inputs[i].defined()) {
      if (!edge.node->has_received(grad_inputs[i])) {
        check_gradient(node, *edge.node, edge.output, grad_inputs[i]);
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
    check<ValueError>(root.defined(), what, ": root ", i, " is undefined");
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
    check<ValueError>(gradient.shape() == root.shape(), what, ": the gradient given for root ", i,
                      " has shape ", gradient.shape(), ", the root ", root.shape());
    check<TypeError>(gradient.dtype() == root.dtype(), what, ": the gradient given for root ", i,
                     " is ", name_of(gradient.dtype()), ", the root ", name_of(root.dtype()));
    pass.send(gradient_edge(root), std::move(gradient));
  }
}

}  // namespace

namespace {

// What ops may know of the running pass.
struct PassTraits {
  bool accumulates = true;  // into leaves
  bool releases = false;    // what was saved
};
thread_local PassTraits running_pass;

class PassScope {
 public:
  PassScope(bool accumulates, const BackwardOptions& options) : previous_(running_pass) {
    running_pass = {accumulates, !options.retain_graph && !options.create_graph};
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
  const PassScope scope(true, options);
  const MemoryKindGuard kind(MemoryKind::kWorkspace);
  const GradModeGuard mode(options.create_graph);
  BackwardPass pass(options);
  start(pass, "backward", roots, gradients);
  pass.run();
}

TensorList grad(std::span<const Tensor> roots,
                std::span<const Tensor> inputs,
                std::span<const Tensor> gradients,
                BackwardOptions options,
                bool allow_unused) {
  const PassScope scope(false, options);
  const MemoryKindGuard kind(MemoryKind::kWorkspace);
  const GradModeGuard mode(options.create_graph);
  std::vector<Edge> edges;
  for (size_t i = 0; i < inputs.size(); ++i) {
    check<ValueError>(inputs[i].defined(), "grad: input ", i, " is undefined");
    check<RuntimeError>(inputs[i].requires_grad(), "grad: input ", i, " (", describe(inputs[i]),
                        ") does not require a gradient");
    edges.push_back(gradient_edge(inputs[i]));
  }
  BackwardPass pass(options);
  pass.capture(roots, edges);
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

namespace {

// The state of a leaf to whose main_grad an op may contribute, or null.
AutogradMeta* open_main_grad(const Tensor& leaf) {
  if (!leaf.defined() || !leaf.requires_grad() || grad_enabled() || !detail::accumulating()) {
    return nullptr;
  }
  AutogradMeta* meta = autograd_meta(leaf);
  const bool open =
      meta != nullptr && !meta->grad_fn && meta->hooks.empty() && meta->main_grad.defined();
  return open ? meta : nullptr;
}

// What stands for a main_grad that has no memory.
Tensor without_storage(const Shape& shape, DType dtype) {
  return Tensor(make_ref<TensorImpl>(Ref<Storage>(), 0, shape, contiguous_strides(shape), dtype));
}

}  // namespace

MainGradTarget main_grad_target(const Tensor& leaf) {
  AutogradMeta* meta = open_main_grad(leaf);
  if (meta == nullptr || meta->main_grad.dtype() != kFloat32) {
    return {};
  }
  open_main_grad_storage(*meta);
  return {meta->main_grad, std::exchange(meta->main_grad_is_fresh, false)};
}

Tensor add_to_main_grad(const Tensor& leaf, const Tensor& gradient) {
  AutogradMeta* meta = open_main_grad(leaf);
  if (meta == nullptr) {
    return {};
  }
  accumulate_into_main_grad(*meta, gradient);
  return meta->main_grad;
}

bool give_to_main_grad(const Tensor& leaf, Tensor& gradient) {
  AutogradMeta* meta = open_main_grad(leaf);
  if (meta == nullptr) {
    return false;
  }
  const bool takes_over = !meta->main_grad.storage() && is_sole_owner(gradient) &&
                          gradient.dtype() == meta->main_grad.dtype();
  if (takes_over) {
    meta->main_grad_is_fresh = false;
    meta->main_grad = std::move(gradient);
  } else {
    accumulate_into_main_grad(*meta, gradient);
  }
  gradient = meta->main_grad;
  return true;
}

void reset_main_grad(const Tensor& leaf, const RandomKey& rounding) {
  AutogradMeta* meta = leaf.defined() ? autograd_meta(leaf) : nullptr;
  check<RuntimeError>(meta != nullptr && meta->main_grad.defined(),
                      "reset_main_grad: the tensor has no main_grad");
  meta->main_grad_is_fresh = true;
  meta->main_grad_rounding = rounding;
}

void release_main_grad(const Tensor& leaf, const RandomKey& rounding) {
  reset_main_grad(leaf, rounding);
  Tensor& held = autograd_meta(leaf)->main_grad;
  held = without_storage(held.shape(), held.dtype());
}

void attach_main_grad(const Tensor& leaf, DType dtype) {
  leaf.set_main_grad(without_storage(leaf.shape(), dtype));
  reset_main_grad(leaf);
}

Tensor accumulate(const Tensor& a, const Tensor& b) {
  return apply_op(AccumulateGradients{}, a, b);
}

namespace detail {

TensorList separate(const TensorList& inputs) {
  TensorList out;
  for (const Tensor& input : inputs) {
    out.push_back(input.defined() ? apply_op(Separate{}, input) : input);
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

void throw_released(std::string_view name) {
  throw RuntimeError(concat(name,
                            ": backward was run through this graph before and released what it "
                            "had saved; pass retain_graph to run it again"));
}

void check_count(std::string_view name, size_t gradients, size_t inputs) {
  check<RuntimeError>(gradients == inputs, name, ": backward returned ", gradients,
                      " gradients for ", inputs, " inputs");
}

namespace {

bool all_finite(std::span<const Tensor> tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const Tensor& t) {
    if (!t.defined() || !is_floating(t.dtype())) {
      return true;
    }
    const Tensor dense = t.is_contiguous() ? t : contiguous_copy(t);
    return kernels::all_finite(dense.dtype(), dense.numel(), dense.raw());
  });
}

}  // namespace

void check_anomaly(std::string_view name,
                   std::string_view pass,
                   std::span<const Tensor> inputs,
                   std::span<const Tensor> outputs) {
  check<RuntimeError>(all_finite(outputs) || !all_finite(inputs), name, ": its ", pass,
                      " made a NaN or an infinity out of finite inputs");
}

}  // namespace detail

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
