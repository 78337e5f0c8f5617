#include "diagnosis/autopsy/autopsy_part.h"

#include <memory>

#include "diagnosis/autopsy/step_autopsy.h"
#include "parallel_core/config/show/render.h"

namespace tapestry::diagnosis {

namespace {

class Autopsy final : public RunPart {
 public:
  std::string_view answers() const override { return "training_config.autopsy"; }
  std::unique_ptr<StepObserver> observer(const LoopView& loop) override {
    const TrainingConfig& t = loop.config.training_config;
    if (!t.autopsy) {
      return nullptr;
    }
    const CheckpointOptions& files = loop.options.checkpoint;
    return std::make_unique<StepAutopsy>(
        loop.cell, loop.config,
        AutopsyOptions{.folder = t.output_dir + "/capsule",
                       .resolved_config = files.resolved_config.empty() ? resolved_yaml(loop.config)
                                                                        : files.resolved_config,
                       .tokenizer_model = loop.options.tokenizer_model,
                       .adapter_config = files.adapter_config,
                       .base_model = files.base_model});
  }
};

}  // namespace

RunPartFactory autopsy_part() {
  return [] { return std::unique_ptr<RunPart>(std::make_unique<Autopsy>()); };
}

}  // namespace tapestry::diagnosis
