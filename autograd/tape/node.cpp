#include "autograd/tape/node.h"

#include "autograd/tape/check_gradient.h"
#include "autograd/tensor/dtype.h"

namespace tapestry {

// On a cache line of its own: every thread that records writes it.
alignas(64) std::atomic<uint64_t> Node::last_number_{0};

Node::~Node() = default;

void Node::on_last_release() {
  // Deleting a node may release the last handle of the next one, inside its members' destructors.
  // Nested releases only queue, so the depth of the call stack does not depend on the chain.
  thread_local std::vector<Node*>* dying = nullptr;
  if (dying != nullptr) {
    dying->push_back(this);
    return;
  }
  std::vector<Node*> queue{this};
  dying = &queue;
  while (!queue.empty()) {
    Node* node = queue.back();
    queue.pop_back();
    delete node;
  }
  dying = nullptr;
}

void Node::set_output(size_t index, const Tensor& value) {
  OutputInfo info{value.shape(), value.dtype()};
  if (index == 0) {
    first_output_ = info;
    return;
  }
  if (more_outputs_.size() < index) {
    more_outputs_.resize(index);
  }
  more_outputs_[index - 1] = info;
}

HookHandle Node::add_hook(uint32_t output, Hook hook) {
  return ensure_attached().hooks[output].add(std::move(hook));
}

Node::Attached& Node::ensure_attached() {
  if (attached_ == nullptr) {
    attached_ = std::make_unique<Attached>();
  }
  return *attached_;
}

void Node::watch(const Tensor& tensor) {
  ensure_attached().watched.push_back(
      {tensor.storage()->watch_version(), tensor.version(), {tensor.shape(), tensor.dtype()}});
}

void Node::check_versions() const {
  for (const WatchedTensor& seen : attached_->watched) {
    if (const uint32_t now = seen.watch->version(); now != seen.version) {
      detail::throw_changed(name(), seen.tensor, seen.version, now);
    }
  }
}

void Node::run_hooks(uint32_t output, Tensor& gradient) const {
  if (attached_ == nullptr) {
    return;
  }
  if (const auto found = attached_->hooks.find(output); found != attached_->hooks.end()) {
    detail::apply_gradient_hooks(found->second, name(), gradient);
  }
}

namespace detail {

void throw_changed(std::string_view op, const OutputInfo& tensor, uint32_t saved, uint32_t now) {
  throw RuntimeError(concat(op, ": a tensor ", name_of(tensor.dtype), " ", tensor.shape,
                            " that backward needs was changed in place: it was saved at version ",
                            saved, " and is now at version ", now, "; change a clone() instead"));
}

void apply_gradient_hooks(Node::HookList& hooks, std::string_view of, Tensor& gradient) {
  hooks.for_each([&](const Node::Hook& hook) {
    if (Tensor replaced = hook(gradient); replaced.defined()) {
      check_gradient(replaced, gradient, of, ": what a hook returned for its gradient");
      gradient = std::move(replaced);
    }
  });
}

}  // namespace detail

}  // namespace tapestry
