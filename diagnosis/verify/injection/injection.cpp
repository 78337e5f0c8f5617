#include "diagnosis/verify/injection/injection.h"

#include <filesystem>
#include <memory>
#include <utility>

#include "autograd/tensor/error.h"
#include "diagnosis/verify/injection/injected_values.h"
#include "diagnosis/verify/injection/reference_state.h"
#include "diagnosis/verify/injection/reference_values.h"
#include "parallel_core/config/yaml/expand_path.h"
#include "parallel_core/config/yaml/value.h"
#include "parallel_core/training/step/step_observer.h"

namespace tapestry {

namespace {

void check_folder(const char* option, const std::string& folder) {
  check<IoError>(folder.empty() || std::filesystem::is_directory(folder), option, ": '", folder,
                 "' is no folder");
}

// Puts the gradients of a reference in the place of a run's.
class InjectedGradients final : public StepObserver {
 public:
  InjectedGradients(TrainOneStepCell& cell, ReferenceGradients reference, const std::string& folder)
      : cell_(cell), reference_(std::move(reference)) {
    cell_.set_gradient_source(
        [this](int64_t step) {
          std::optional<LogicalState> found = reference_.of_step(step);
          is_injected_ = found.has_value();
          return found;
        },
        folder);
  }
  ~InjectedGradients() override { cell_.set_gradient_source({}, {}); }

  void before(int64_t /*step*/) override { is_injected_ = false; }
  void after(FinishedStep& step) override {
    if (is_injected_) {
      any_ = true;
      step.lines.push_back(
          concat("inject_grads: step ", step.record.step, " is updated with given gradients"));
    }
    if (step.is_last && !any_ && step.failure.empty()) {
      step.failure = concat(
          "inject_grads: no step of this run has given gradients; those that "
          "there are begin with step ",
          *reference_.steps().begin());
    }
  }

 private:
  TrainOneStepCell& cell_;
  ReferenceGradients reference_;
  bool is_injected_ = false;
  bool any_ = false;
};

}  // namespace

std::vector<std::string> injection_overrides(const Injection& injection) {
  std::vector<std::string> overrides;
  if (!injection.data.empty()) {
    check_folder("inject_data", injection.data);
    for (const char* key :
         {"data_path", "train_data_path", "valid_data_path", "test_data_path", "text", "shuffle",
          "sft_data_path", "sft_valid_data_path", "chat_template", "chat_date"}) {
      overrides.push_back(concat("dataset_config.", key, "=null"));
    }
    for (const char* others : {"sft_packing=True", "sft_long_examples=cut", "sft_loss=answers",
                               "skip_bad_lines=False"}) {
      overrides.push_back(concat("dataset_config.", others));
    }
    overrides.push_back("dataset_config.step_data_dir=" + config::path_text(injection.data));
  }
  if (!injection.weights.empty() && !is_dump_folder(injection.weights)) {
    overrides.push_back("training_config.load_checkpoint=" + config::path_text(injection.weights));
  }
  return overrides;
}

void add_injection(const Injection& injection, const AllConfig& config, PretrainOptions& options) {
  const bool dumped_weights = is_dump_folder(injection.weights);
  check<ValueError>(injection.map.empty() || dumped_weights || !injection.grads.empty() ||
                        !injection.inputs.empty(),
                    "map: '", injection.map,
                    "' has no effect: names are looked up in dumps of weights, gradients and "
                    "inputs only; give --inject_grads or --inject_inputs");
  const accuracy::NameMap map =
      injection.map.empty() ? accuracy::NameMap() : accuracy::NameMap(injection.map);
  if (dumped_weights) {
    options.start_weights_name = injection.weights;
    options.start_weights = [folder = injection.weights, map] {
      return dumped_start_weights(folder, map);
    };
  }
  if (!injection.grads.empty()) {
    check<ValueError>(!config.optimizer_config.optimizer_in_backward,
                      "inject_grads: with optimizer_config.optimizer_in_backward no gradients are "
                      "there to be replaced; set it to False");
    options.observers.push_back(
        [reference = ReferenceGradients(injection.grads, map),
         folder = injection.grads](TrainOneStepCell& cell) -> std::unique_ptr<StepObserver> {
          return std::make_unique<InjectedGradients>(cell, reference, folder);
        });
  }
  if (!injection.inputs.empty()) {
    options.observers.push_back([reference = ReferenceValues(injection.inputs, map),
                                 &config](TrainOneStepCell& cell) -> std::unique_ptr<StepObserver> {
      return std::make_unique<InjectedValues>(cell, config, reference);
    });
  }
}

}  // namespace tapestry
