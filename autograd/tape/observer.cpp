#include "autograd/tape/observer.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "autograd/tape/node.h"

namespace tapestry {

namespace {

thread_local constinit ObserverScope* newest_scope = nullptr;

std::vector<Observer*> with(const void* observers, Observer& observer) {
  std::vector<Observer*> list;
  if (observers != nullptr) {
    list = *static_cast<const detail::ObserverList*>(observers);
  }
  list.push_back(&observer);
  return list;
}

}  // namespace

std::string_view name_of(OpPass pass) {
  switch (pass) {
    case OpPass::kForward:
      return "forward";
    case OpPass::kBackward:
      return "backward";
    case OpPass::kAgain:
      return "again";
  }
  return {};
}

double observer_clock() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Observer::~Observer() = default;

ObserverScope::ObserverScope(Observer& observer)
    : observer_(&observer),
      below_(std::exchange(newest_scope, this)),
      previous_all_(thread_state().observers),
      previous_of_ops_(thread_state().op_observers),
      all_(with(previous_all_, observer)),
      of_ops_(with(previous_of_ops_, observer)) {
  if (below_ != nullptr) {
    below_->above_ = this;
  }
  thread_state().observers = &all_;
  thread_state().op_observers = &of_ops_;
}

ObserverScope::~ObserverScope() {
  if (below_ != nullptr) {
    below_->above_ = above_;
  }
  if (above_ == nullptr) {
    newest_scope = below_;
    thread_state().observers = previous_all_;
    thread_state().op_observers = previous_of_ops_;
    return;
  }
  above_->below_ = below_;
  above_->previous_all_ = previous_all_;
  if (above_->previous_of_ops_ == &of_ops_) {
    above_->previous_of_ops_ = previous_of_ops_;
  }
  for (ObserverScope* scope = above_; scope != nullptr; scope = scope->above_) {
    std::erase(scope->all_, observer_);
    std::erase(scope->of_ops_, observer_);
  }
}

PhaseScope::PhaseScope(std::string_view name, int64_t micro_batch, int64_t chunk)
    : phase_{.name = name, .micro_batch = micro_batch, .chunk = chunk} {
  detail::tell(detail::all_observers(), &Observer::phase_begins, phase_);
}

PhaseScope::~PhaseScope() { detail::tell(detail::all_observers(), &Observer::phase_ended, phase_); }

namespace detail {

std::string_view current_module() {
  const std::string* module = thread_state().module;
  return module == nullptr ? std::string_view() : std::string_view(*module);
}

bool wants_ops_again(const ObserverList& observers) {
  return std::any_of(observers.begin(), observers.end(),
                     [](const Observer* observer) { return observer->wants_ops_again(); });
}

ForwardReport::ForwardReport(std::string_view op,
                             const Node* node,
                             TensorList inputs,
                             OpAgain again)
    : inputs_(std::move(inputs)),
      again_(std::move(again)),
      run_{.op = op,
           .pass = thread_state().recomputing ? OpPass::kAgain : OpPass::kForward,
           .module = current_module(),
           .number = node == nullptr ? 0 : node->sequence_number(),
           .node = node,
           .inputs = inputs_,
           .again = again_ ? &again_ : nullptr} {}

void ForwardReport::begin(const ObserverList& observers) {
  observers_ = &observers;
  tell(observers_, &Observer::op_begins, run_);
}

void ForwardReport::end(std::span<const Tensor> results) {
  run_.outputs = results;
  tell(observers_, &Observer::op_ended, run_);
}

AgainReport::AgainReport(std::string_view op, std::string_view module)
    : run_{.op = op, .pass = OpPass::kAgain, .module = module} {
  tell(all_observers(), &Observer::op_begins, run_);
}

void AgainReport::end(std::span<const Tensor> results) {
  run_.outputs = results;
  tell(all_observers(), &Observer::op_ended, run_);
}

}  // namespace detail

}  // namespace tapestry
