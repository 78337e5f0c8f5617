#include "diagnosis/verify/faults/observed_updates.h"

#include <cstdint>
#include <utility>

#include "autograd/tensor/error.h"

namespace tapestry {

std::optional<UpdateRule> followed_rule(const AllConfig& config) {
  return config.model_config.params_dtype == kFloat32 ? update_rule(config) : std::nullopt;
}

SchedulesNear schedules_of(const AllConfig& config) {
  return [&config](const std::vector<double>& rates) { return schedules_near(config, rates); };
}

std::vector<ObservedUpdate> recorded_updates(const FaultSearch& search) {
  std::vector<ObservedUpdate> updates;
  for (const OwnStep& step : search.own.steps) {
    updates.push_back(step.update);
  }
  return updates;
}

std::vector<ObservedUpdate> reference_updates(const FaultSearch& search) {
  std::vector<ObservedUpdate> updates;
  LogicalState before = search.start;
  for (int64_t step = 1; step <= search.compared_steps(); ++step) {
    const auto gradients = search.reference.gradients(step);
    auto weights = search.reference.weights(step);
    if (!gradients || !weights) {
      break;
    }
    const OwnStep& own = search.own.steps[static_cast<size_t>(step - 1)];
    const std::vector<double>& said = search.reference.step(step).lr;
    ObservedUpdate& update = updates.emplace_back();
    update.step = step;
    for (const auto& [name, entry] : own.update.entries) {
      const auto gradient = gradients->find(name);
      const auto weight = weights->find(name);
      if (gradient == gradients->end() || weight == weights->end() || !before.contains(name) ||
          weight->second.dtype() != kFloat32 || before.at(name).dtype() != kFloat32 ||
          weight->second.shape() != entry.before.shape() ||
          gradient->second.shape() != entry.before.shape()) {
        return {};  // a norm of part of the gradients says nothing of the clip
      }
      update.entries[name] = {.gradient = gradient->second,
                              .before = before.at(name),
                              .after = weight->second,
                              .lr = said.size() == 1 ? said.front() : entry.lr,
                              .weight_decay = entry.weight_decay,
                              .decays = entry.decays};
    }
    before = std::move(*weights);
  }
  return updates;
}

std::optional<StaleWeight> stale_weight(const OwnRun& own) {
  for (size_t i = 0; i < own.steps.size(); ++i) {
    const OwnStep& step = own.steps[i];
    const auto number = static_cast<int64_t>(i) + 1;
    if (i > 0) {
      for (const auto& [name, entry] : step.update.entries) {
        if (!equal_bits(entry.before, own.steps[i - 1].update.entries.at(name).after)) {
          return StaleWeight{number, name,
                             concat("Step ", number, " begins with another ", name, " than step ",
                                    number - 1, "'s update has left.")};
        }
      }
    }
    if (!step.stale_copy.empty()) {
      return StaleWeight{number, step.stale_copy,
                         concat("Step ", number, " computes with a ", step.stale_copy,
                                " that is not its float32 master, rounded: the copy was not "
                                "renewed after an update.")};
    }
  }
  return std::nullopt;
}

bool an_update_has_moved(const OwnRun& own, int64_t step) {
  for (int64_t before = 1; before <= step; ++before) {
    for (const auto& [name, entry] : own.steps[static_cast<size_t>(before - 1)].update.entries) {
      if (!equal_bits(entry.before, entry.after)) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace tapestry
