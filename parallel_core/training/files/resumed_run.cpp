#include "parallel_core/training/files/resumed_run.h"

#include <algorithm>
#include <filesystem>

#include "autograd/tensor/error.h"
#include "parallel_core/config/schema/schema.h"
#include "parallel_core/config/yaml/value.h"
#include "parallel_core/dist_checkpointing/manifest.h"
#include "parallel_core/training/files/output_folder.h"

namespace tapestry {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfigFile = "config.yaml";
constexpr const char* kOutputKey = "training_config.output_dir";

std::string override_of(const std::string& key, const std::string& value) {
  return concat(key, "=", config::string_text(value));
}

// Without "." and "..", and without a slash at the end; only by its letters.
fs::path plain_path(const std::string& path) {
  const fs::path normal = fs::path(path).lexically_normal();
  return normal.has_filename() ? normal : normal.parent_path();
}

// The folder of a run that a file or folder of it belongs to: that of a checkpoint, or of the
// folder with checkpoints, is further up.
fs::path run_folder_of(const fs::path& folder) {
  const fs::path place = plain_path(fs::absolute(folder).string());
  const bool is_checkpoint = fs::exists(place / kManifestFile);
  const fs::path checkpoints = is_checkpoint ? place.parent_path() : place;
  return checkpoints.filename() == "checkpoint" &&
                 (is_checkpoint || !fs::exists(place / kConfigFile))
             ? checkpoints.parent_path()
             : place;
}

// Paths of a configuration that lie in the folder `from`, in the folder `to`.
std::vector<std::string> moved_paths(const AllConfig& config,
                                     const std::string& from,
                                     const std::string& to) {
  std::vector<std::string> overrides;
  const fs::path old = plain_path(from);
  for (const config::Section& section : config::schema()) {
    for (const config::Key& key : section.keys) {
      const std::string name = concat(section.name, ".", key.name);
      const config::Value value = key.path ? key.field.get(config) : config::Value();
      if (name == kOutputKey || !value.is<std::string>() || value.as<std::string>().empty()) {
        continue;
      }
      const fs::path path = plain_path(value.as<std::string>());
      const auto [inner, outer] = std::mismatch(path.begin(), path.end(), old.begin(), old.end());
      if (outer == old.end()) {
        fs::path moved = to;
        for (auto part = inner; part != path.end(); ++part) {
          moved /= *part;
        }
        overrides.push_back(
            override_of(concat(section.name == "model_config" ? config.model_section
                                                              : std::string(section.name),
                               ".", key.name),
                        moved.string()));
      }
    }
  }
  return overrides;
}

}  // namespace

ResumedRun resumed_run(const std::string& path, const std::string& model_type) {
  check<IoError>(fs::exists(path), path, ": there is no such folder; --resume takes that of a run");
  const bool is_checkpoint = fs::exists(fs::path(path) / kManifestFile);
  // As it was given: a relative one stays so in logs and messages.
  const fs::path given = plain_path(path);
  const fs::path place = run_folder_of(given);
  const fs::path folder = place == plain_path(fs::absolute(given).string())
                              ? given
                              : place.lexically_proximate(fs::current_path());
  ResumedRun run;
  run.config_path = (folder / kConfigFile).string();
  check<IoError>(fs::is_regular_file(run.config_path), path,
                 ": is no folder of a run, which has its configuration in ", run.config_path,
                 "; name a folder that was a run's training_config.output_dir, or start it by "
                 "--config_path FILE --set training_config.resume_training=True");
  const AllConfig own = init_configs_from_yaml(run.config_path, {.model_type = model_type});
  run.overrides = moved_paths(own, own.training_config.output_dir, folder.string());
  // A checkpoint of its own that an earlier start went back to: since then there are later ones.
  const auto is_start = [](const std::string& text) {
    return text.starts_with("training_config.load_checkpoint=");
  };
  if (std::erase_if(run.overrides, is_start) > 0) {
    run.overrides.push_back(override_of("training_config.load_checkpoint", ""));
  }
  run.overrides.push_back(override_of(kOutputKey, folder.string()));
  run.overrides.push_back(concat("training_config.resume_training=",
                                 is_checkpoint ? given.filename().string() : "True"));
  return run;
}

std::vector<std::string> overrides_of_moved_run(const std::string& config_path,
                                                const AllConfig& config) {
  const TrainingConfig& t = config.training_config;
  const auto origin = config.origins.find(kOutputKey);
  const bool is_chosen =
      origin != config.origins.end() && origin->second.kind == ConfigOrigin::Kind::kOverride;
  if (!t.resume_training.on || is_chosen || fs::path(config_path).filename() != kConfigFile) {
    return {};
  }
  const fs::path folder = run_folder_of(fs::absolute(config_path).parent_path());
  if (fs::weakly_canonical(folder) == fs::weakly_canonical(t.output_dir) ||
      find_earlier_run(folder.string()).files.empty()) {
    return {};
  }
  const std::string name = folder.lexically_proximate(fs::current_path()).string();
  std::vector<std::string> overrides = moved_paths(config, t.output_dir, name);
  overrides.push_back(override_of(kOutputKey, name));
  return overrides;
}

}  // namespace tapestry
