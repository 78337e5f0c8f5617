#include "autograd/tape/node.h"

#include "autograd/tape/check_gradient.h"
#include "autograd/tensor/rank_context.h"

namespace tapestry {

Node::Node() : sequence_number_(RankContext::current().next_sequence_number()) {}

Node::~Node() = default;

void Node::renumber() { sequence_number_ = RankContext::current().next_sequence_number(); }

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
  if (hooks_ == nullptr) {
    hooks_ = std::make_unique<std::map<uint32_t, HookList>>();
  }
  return (*hooks_)[output].add(std::move(hook));
}

void Node::run_hooks(uint32_t output, Tensor& gradient) const {
  if (hooks_ == nullptr) {
    return;
  }
  if (const auto found = hooks_->find(output); found != hooks_->end()) {
    detail::apply_gradient_hooks(found->second, name(), gradient);
  }
}

namespace detail {

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
