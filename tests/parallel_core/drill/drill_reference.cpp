#include "tests/parallel_core/drill/drill_reference.h"

#include <algorithm>
#include <filesystem>

#include "autograd/tensor/rank_context.h"
#include "diagnosis/accuracy/replay_case.h"
#include "diagnosis/run_parts.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/training/pretrain.h"
#include "text/util/file.h"

namespace tapestry::testing {

std::string stored_folder(const std::string& name) {
  const std::string own = TAPESTRY_SOURCE_DIR "/tests/data/golden_models/" + name;
  return std::filesystem::exists(own) ? own : name;
}

ConfigLoader loader_of(const DrillModel& model) {
  const std::string folder = stored_folder(model.stored);
  Overrides changes = model.changes;
  if (!model.starts_from_stored) {
    changes.emplace_back("training_config.load_checkpoint=''");
  }
  return [folder, changes](const std::vector<std::string>& more) {
    return init_configs_from_text(
        replay_case_yaml(data::read_file(folder + "/config.json"), folder, folder + "/replay"),
        folder + "/config.json", {.overrides = joined(changes, more)});
  };
}

std::string DrillReferences::folder_of(const DrillModel& model) {
  if (model.changes.empty()) {
    return stored_folder(model.stored);
  }
  if (const auto made = made_.find(model); made != made_.end()) {
    return made->second;
  }
  const std::string folder = folder_.file(concat("reference_", made_.size()));
  const AllConfig config = loader_of(model)(
      {"training_config.output_dir=" + folder, "training_config.log_interval=null",
       "training_config.save_last=False", "training_config.dump_grad_steps=[1]",
       "training_config.dump_activation_steps=[1]", "training_config.dump_weight_steps=[6]"});
  RankContext context;
  const RankContextGuard guard(context);
  pretrain(config, {.parts = diagnosis::run_parts()});
  made_[model] = folder;
  return folder;
}

}  // namespace tapestry::testing
