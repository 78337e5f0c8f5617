#include "parallel_core/training/step/run_part.h"

#include <algorithm>
#include <string>

#include "autograd/tensor/error.h"

namespace tapestry {

namespace {

// What a configuration may ask for that pieces outside of the loop do, and the key that asks.
struct Wish {
  std::string_view answer;
  std::string_view key;
  bool is_asked;
};

std::vector<Wish> wishes(const AllConfig& config) {
  const TrainingConfig& t = config.training_config;
  return {
      {"training_config.profile", "training_config.profile", t.profile},
      {"step dumps", "training_config.dump_activation_steps", !t.dump_activation_steps.empty()},
      {"step dumps", "training_config.dump_grad_steps", !t.dump_grad_steps.empty()},
      {"step dumps", "training_config.dump_weight_steps", !t.dump_weight_steps.empty()},
      {"training_config.autopsy", "training_config.on_anomaly",
       t.autopsy && t.on_anomaly != "continue"},
      {"training_config.autopsy", "training_config.loss_spike_threshold",
       t.autopsy && t.loss_spike_threshold.has_value()},
  };
}

}  // namespace

std::optional<std::string> missing_part(const AllConfig& config,
                                        const std::vector<RunPart*>& parts) {
  for (const Wish& wish : wishes(config)) {
    const bool is_answered = std::any_of(parts.begin(), parts.end(), [&](const RunPart* part) {
      return part->answers() == wish.answer;
    });
    if (wish.is_asked && !is_answered) {
      return std::string(wish.key);
    }
  }
  return std::nullopt;
}

void require_parts(const AllConfig& config, const std::vector<RunPart*>& parts) {
  const std::optional<std::string> missing = missing_part(config, parts);
  check<ValueError>(!missing, missing.value_or(""),
                    " asks for a piece of the run that this program has not given to it; link "
                    "Tapestry::diagnosis and set PretrainOptions::parts, or TrainOptions::parts, "
                    "to diagnosis::run_parts()");
}

std::vector<std::unique_ptr<RunPart>> make_parts(const std::vector<RunPartFactory>& factories) {
  std::vector<std::unique_ptr<RunPart>> parts;
  parts.reserve(factories.size());
  for (const RunPartFactory& make : factories) {
    parts.push_back(make());
  }
  return parts;
}

std::vector<RunPart*> pointers_to(const std::vector<std::unique_ptr<RunPart>>& parts) {
  std::vector<RunPart*> pointers;
  pointers.reserve(parts.size());
  for (const auto& part : parts) {
    pointers.push_back(part.get());
  }
  return pointers;
}

}  // namespace tapestry
