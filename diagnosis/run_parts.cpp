#include "diagnosis/run_parts.h"

#include <memory>
#include <utility>

#include "autograd/tensor/rank_context.h"
#include "diagnosis/autopsy/step_autopsy.h"
#include "diagnosis/dump/run/step_dumps.h"
#include "diagnosis/profile/memory_watch.h"
#include "diagnosis/profile/step_profiler.h"
#include "parallel_core/config/show/render.h"

namespace tapestry::diagnosis {

namespace {

class DumpsOfSteps final : public RunPart {
 public:
  std::string_view answers() const override { return "step dumps"; }
  std::unique_ptr<StepObserver> observer(const LoopView& loop) override {
    return std::make_unique<StepDumps>(loop.cell, loop.config);
  }
};

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

class Profile final : public RunPart {
 public:
  std::string_view answers() const override { return "training_config.profile"; }
  void check(const AllConfig& config) const override { check_profile(config.training_config); }
  void begin(const AllConfig& config) override {
    if (config.training_config.profile && config.training_config.profile_memory) {
      memory_ = std::make_unique<profile::MemoryWatch>(
          Ref<CachingAllocator>(&RankContext::current().allocator()));
    }
  }
  std::unique_ptr<StepObserver> observer(const LoopView& loop) override {
    if (!loop.config.training_config.profile) {
      return nullptr;
    }
    return std::make_unique<StepProfiler>(loop.cell, loop.config, memory_.get());
  }

 private:
  std::unique_ptr<profile::MemoryWatch> memory_;  // since the run began
};

template <typename Part>
std::unique_ptr<RunPart> make() {
  return std::make_unique<Part>();
}

}  // namespace

std::vector<RunPartFactory> run_parts() {
  return {make<DumpsOfSteps>, make<Autopsy>, make<Profile>};
}

}  // namespace tapestry::diagnosis
