#include "parallel_core/transformer/moe/choice_observer.h"

#include "autograd/tensor/rank_context.h"

namespace tapestry {

namespace {

struct CurrentChoiceObserver {
  ChoiceObserver* observer = nullptr;
};

ChoiceObserver*& current_choice_observer() {
  return RankContext::current().slot<CurrentChoiceObserver>().observer;
}

}  // namespace

ChoiceObserver::ChoiceObserver() : previous_(current_choice_observer()) {
  current_choice_observer() = this;
}

ChoiceObserver::~ChoiceObserver() { current_choice_observer() = previous_; }

ChoiceObserver* choice_observer() { return current_choice_observer(); }

}  // namespace tapestry
