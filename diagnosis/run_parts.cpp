#include "diagnosis/run_parts.h"

#include <memory>
#include <utility>

#include "autograd/tensor/rank_context.h"
#include "diagnosis/autopsy/autopsy_part.h"
#include "diagnosis/dump/run/step_dumps.h"
#include "diagnosis/profile/memory_watch.h"
#include "diagnosis/profile/step_profiler.h"

namespace tapestry::diagnosis {

namespace {

class DumpsOfSteps final : public RunPart {
 public:
  std::string_view answers() const override { return "step dumps"; }
  std::unique_ptr<StepObserver> observer(const LoopView& loop) override {
    return std::make_unique<StepDumps>(loop.cell, loop.config);
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
  return {make<DumpsOfSteps>, autopsy_part(), make<Profile>};
}

}  // namespace tapestry::diagnosis
