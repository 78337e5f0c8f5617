#include "autograd/tape/node.h"

#include "autograd/tensor/error.h"

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

void Node::add_hook(uint32_t output, Hook hook) {
  if (hooks_ == nullptr) {
    hooks_ = std::make_unique<std::vector<std::pair<uint32_t, Hook>>>();
  }
  hooks_->emplace_back(output, std::move(hook));
}

void Node::run_hooks(uint32_t output, Tensor& gradient) const {
  if (hooks_ == nullptr) {
    return;
  }
  for (const auto& [number, hook] : *hooks_) {
    if (number != output) {
      continue;
    }
    const Tensor replaced = hook(gradient);
    if (replaced.defined()) {
      check<ValueError>(replaced.shape() == gradient.shape(), "hook on the gradient of ", name(),
                        ": returned ", describe(replaced), " for ", describe(gradient));
      gradient = replaced;
    }
  }
}

}  // namespace tapestry
