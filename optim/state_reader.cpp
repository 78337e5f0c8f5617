#include "optim/state_reader.h"

#include <utility>

#include "autograd/ops/map.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"

namespace tapestry::optim {

StateReader::StateReader(const nn::StateDict& state,
                         const ParameterPlaces& places,
                         const MasterWeights& masters,
                         std::string optimizer)
    : state_(state), places_(places), masters_(masters), optimizer_(std::move(optimizer)) {}

// An undefined tensor counts as none.
nn::StateDict::const_iterator StateReader::find(const std::string& key) const {
  const auto found = state_.find(key);
  return found != state_.end() && found->second.defined() ? found : state_.end();
}

void StateReader::read(const std::string& parameter_name, const std::vector<StateEntry>& entries) {
  const auto step = find(parameter_name + ".step");
  if (step == state_.end()) {
    note_missing_step(parameter_name, entries);
    return;
  }
  used_.insert(step->first);
  ParamState& into = loaded_[parameter_name];
  into.has_states = true;
  read_step(step->first, step->second, into);
  for (const StateEntry& entry : entries) {
    read_entry(parameter_name, entry, into);
  }
}

// Without a step the parameter has never been updated: it must have no state at all.
void StateReader::note_missing_step(const std::string& name,
                                    const std::vector<StateEntry>& entries) {
  const std::string step = name + ".step";
  bool has_state = false;
  for (const StateEntry& entry : entries) {
    const std::string key = name + "." + entry.key;
    used_.insert(key);
    has_state = has_state || state_.contains(key);
  }
  if (has_state || state_.contains(step)) {
    used_.insert(step);
    report_.missing.push_back(step);
  }
}

void StateReader::read_step(const std::string& key, const Tensor& step, ParamState& into) {
  if (step.numel() != 1) {
    report_.mismatched.push_back({key, Shape{}, step.shape()});
    return;
  }
  into.step = static_cast<int64_t>(step.item());
  check<ValueError>(into.step >= 0, optimizer_, ": ", key, " must not be negative, got ",
                    into.step);
}

void StateReader::read_entry(const std::string& name, const StateEntry& entry, ParamState& into) {
  const std::string key = name + "." + entry.key;
  used_.insert(key);
  const auto found = find(key);
  if (found == state_.end()) {
    report_.missing.push_back(key);
    return;
  }
  if (found->second.shape() != entry.shape) {
    report_.mismatched.push_back({key, entry.shape, found->second.shape()});
    return;
  }
  const Tensor value = places_.piece_of(name, found->second, entry.extent);
  const MemoryKindGuard kind(MemoryKind::kOptimizer);
  const Tensor own =
      empty(value.shape(), masters_.state_dtype(entry.name, places_.parameter_of(name)));
  copy_values(value, own);
  into.tensors.emplace(entry.key, own);
}

std::map<std::string, ParamState> StateReader::take() {
  for (const auto& [key, tensor] : state_) {
    if (!used_.contains(key)) {
      report_.unexpected.push_back(key);
    }
  }
  check<ValueError>(report_.empty(), optimizer_, ": the state does not fit the parameters\n",
                    report_.str());
  return std::move(loaded_);
}

}  // namespace tapestry::optim
