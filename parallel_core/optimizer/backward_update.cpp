#include "parallel_core/optimizer/backward_update.h"

#include <cmath>
#include <utility>
#include <vector>

#include "autograd/kernels/reduce.h"
#include "autograd/ops/map.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "optim/grad_clip.h"

namespace tapestry {

struct BackwardUpdate::State {
  struct Entry {
    std::string name;
    const nn::Parameter* parameter;
    bool updated = false;
  };

  void update(Entry& entry) {
    const Tensor gradient = dense(entry.parameter->grad());
    check<RuntimeError>(!std::exchange(entry.updated, true), "optimizer_in_backward: '", entry.name,
                        "' got a second gradient after its update; the model uses it in a part "
                        "that is run backwards by itself (recomputation), which this option does "
                        "not allow");
    const double squares =
        kernels::sum_of_squares(gradient.dtype(), gradient.numel(), gradient.raw());
    check<RuntimeError>(std::isfinite(squares), "optimizer_in_backward: the gradient of '",
                        entry.name,
                        "' is not finite, and other weights of this step have changed "
                        "already; without this option such a step is skipped");
    total += squares;
    if (with_norms) {
      for (const nn::LogicalTensor& logical : entry.parameter->logical()) {
        norms[logical.name] = optim::global_norm({logical.view_of(gradient)}) * transform.scale;
      }
    }
    optimizer.step_parameter(entry.name, transform);
    entry.parameter->set_grad({});
  }

  optim::Optimizer& optimizer;
  bool with_norms;
  bool active = false;
  optim::GradTransform transform;
  std::vector<Entry> entries;
  double total = 0;
  std::map<std::string, double> norms;
};

BackwardUpdate::BackwardUpdate(const nn::Module& model,
                               optim::Optimizer& optimizer,
                               bool with_norms)
    : state_(std::make_shared<State>(State{optimizer, with_norms, false, {}, {}, 0, {}})) {
  for (const nn::Module::NamedParameter& entry : model.trained_parameters()) {
    const size_t index = state_->entries.size();
    state_->entries.push_back({entry.name, entry.parameter, false});
    entry.parameter->register_post_accumulate_grad_hook([state = state_, index](const Tensor&) {
      if (state->active) {
        state->update(state->entries[index]);
      }
    });
  }
}

BackwardUpdate::~BackwardUpdate() { state_->active = false; }

void BackwardUpdate::start(const optim::GradTransform& transform) {
  state_->active = true;
  state_->transform = transform;
  state_->total = 0;
  state_->norms.clear();
  for (State::Entry& entry : state_->entries) {
    entry.updated = false;
    entry.parameter->set_grad({});
  }
}

void BackwardUpdate::cancel() { state_->active = false; }

BackwardUpdate::Norms BackwardUpdate::finish() {
  for (State::Entry& entry : state_->entries) {
    if (!entry.updated) {
      entry.parameter->set_grad(zeros_like(*entry.parameter));
      state_->update(entry);
    }
  }
  state_->active = false;
  return {std::sqrt(state_->total) * state_->transform.scale, std::move(state_->norms)};
}

}  // namespace tapestry
