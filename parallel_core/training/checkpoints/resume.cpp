#include "parallel_core/training/checkpoints/resume.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include "autograd/io/input_file.h"
#include "autograd/tensor/error.h"
#include "parallel_core/config/yaml/raw_yaml.h"
#include "parallel_core/dist_checkpointing/agreement.h"
#include "parallel_core/dist_checkpointing/checkpoint_folder.h"
#include "parallel_core/dist_checkpointing/manifest.h"
#include "parallel_core/dist_checkpointing/training_state_file.h"
#include "parallel_core/training/files/output_folder.h"
#include "parallel_core/training/log/logging.h"
#include "parallel_core/training/watch/checkpoint_health.h"

namespace tapestry {

namespace {

namespace fs = std::filesystem;

std::string base_of(const TrainingConfig& t) {
  return t.load_checkpoint.empty() ? t.output_dir : t.load_checkpoint;
}

std::string own_checkpoints(const TrainingConfig& t) {
  return (fs::path(t.output_dir) / "checkpoint").string();
}

// The folder with checkpoints in it: PATH/checkpoint of a run, or the path itself.
std::string checkpoint_folder_of(const std::string& base) {
  const fs::path inner = fs::path(base) / "checkpoint";
  return fs::is_directory(inner) ? inner.string() : base;
}

std::string by_name(const std::string& name, const std::string& base) {
  const std::string folder = checkpoint_folder_of(base);
  for (const fs::path& path : {fs::path(folder) / name, fs::path(name)}) {
    if (fs::is_directory(path)) {
      return path.string();
    }
  }
  std::string there;
  for (const std::string& path : checkpoints_in(folder)) {
    there += concat(there.empty() ? "" : ", ", fs::path(path).filename().string());
  }
  throw IoError(concat("training_config.resume_training: there is no checkpoint ", name, " in ",
                       folder, "; it holds ", there.empty() ? "none" : there));
}

// The newest healthy checkpoint that is whole; says which newer ones are passed over, and why.
std::string newest_healthy(const AllConfig& config,
                           const std::string& base,
                           std::vector<std::string>& remarks) {
  const std::string path = health_record_path(config.monitor_config, base);
  const std::string folder = checkpoint_folder_of(base);
  const HealthRecord record = HealthRecord::read(path);
  const std::vector<std::string> all = checkpoints_in(folder);
  for (auto checkpoint = all.rbegin(); checkpoint != all.rend(); ++checkpoint) {
    const std::optional<bool> healthy =
        record.is_healthy(fs::path(*checkpoint).filename().string());
    std::string fault;
    if (!healthy) {
      fault = concat("it has no entry in ", path);
    } else if (!*healthy) {
      fault = concat("it is unhealthy by ", path);
    } else if (!has_training_state(*checkpoint) || !read_manifest(*checkpoint)) {
      fault = concat("it lacks ", kManifestFile, " or ", kTrainingStateFile);
    } else {
      fault = fault_of_checkpoint(*checkpoint, /*checksums=*/false);
    }
    if (fault.empty()) {
      return *checkpoint;
    }
    remarks.push_back(concat(*checkpoint, " is passed over: ", fault));
  }
  if (all.empty()) {
    return {};
  }
  std::string text =
      concat("The training has no healthy checkpoints yet, please start training again.\n", folder,
             " holds ", all.size(), ":");
  for (const std::string& remark : remarks) {
    text += concat("\n  ", remark);
  }
  throw IoError(text +
                "\nWhere no step can be healthy, raise "
                "monitor_config.embedding_local_norm_threshold");
}

// A checkpoint that was chosen by hand is gone on with whatever its health.
void remark_on_health(const AllConfig& config,
                      const std::string& checkpoint,
                      std::vector<std::string>& remarks) {
  const std::string path =
      health_record_path(config.monitor_config, fs::path(checkpoint).parent_path().string());
  const std::optional<bool> healthy =
      HealthRecord::read(path).is_healthy(fs::path(checkpoint).filename().string());
  if (!healthy.value_or(false)) {
    remarks.push_back(concat(checkpoint, " is the checkpoint that was asked for, but ",
                             healthy ? "is unhealthy by " : "has no entry in ", path));
  }
}

// The checkpoint to go on with; empty if there is none yet.
std::string find_checkpoint(const AllConfig& config,
                            bool started_again,
                            std::vector<std::string>& remarks) {
  const TrainingConfig& t = config.training_config;
  const std::string base = started_again ? t.output_dir : base_of(t);
  const bool by_health = config.monitor_config.use_checkpoint_health_monitor;
  if (!t.resume_training.checkpoint.empty()) {
    const std::string checkpoint = by_name(t.resume_training.checkpoint, base);
    if (by_health) {
      remark_on_health(config, checkpoint, remarks);
    }
    return checkpoint;
  }
  if (by_health) {
    const std::string own =
        started_again ? newest_healthy(config, t.output_dir, remarks) : std::string();
    const std::string source = base_of(t);
    if (!own.empty()) {
      return own;
    }
    if (!has_training_state(source)) {
      const std::string found = newest_healthy(config, source, remarks);
      return found.empty() && !t.load_checkpoint.empty() ? resolve_checkpoint(source) : found;
    }
    remark_on_health(config, source, remarks);
  }
  if (t.load_checkpoint.empty()) {
    return latest_checkpoint_in(checkpoint_folder_of(base));
  }
  const std::string own = started_again ? latest_checkpoint_in(own_checkpoints(t)) : std::string();
  return own.empty() ? resolve_checkpoint(t.load_checkpoint) : own;
}

// training_config.load_checkpoint of the run that has written a config.yaml; empty if that says
// nothing of it.
std::string load_checkpoint_in(const std::string& config_yaml) {
  if (!fs::exists(config_yaml)) {
    return {};
  }
  std::vector<std::string> errors;
  const config::RawNode root = config::parse_yaml(read_file(config_yaml), {.source = config_yaml},
                                                  /*fixed_place=*/false, errors);
  const auto member = [](const config::RawNode& map, std::string_view name) {
    const auto found = std::find_if(map.entries.begin(), map.entries.end(),
                                    [&](const auto& entry) { return entry.key.scalar == name; });
    return found == map.entries.end() ? config::RawNode() : found->value;
  };
  return member(member(root, "training_config"), "load_checkpoint").scalar;
}

std::string folder_of(const std::string& checkpoint) {
  return fs::path(checkpoint).parent_path().string();
}

// The latest checkpoint before a broken one whose files `of` are whole; empty if there is none.
std::string whole_one_before(const std::string& broken, bool checksums, CheckpointPart of) {
  std::vector<std::string> all = checkpoints_in(folder_of(broken));
  std::reverse(all.begin(), all.end());
  for (const std::string& path : all) {
    const std::string name = fs::path(path).filename().string();
    if (name < fs::path(broken).filename().string() &&
        fault_of_checkpoint(path, checksums, of).empty() &&
        (of == CheckpointPart::kWeights || (has_training_state(path) && read_manifest(path)))) {
      return path;
    }
  }
  return {};
}

std::string offer_earlier(const std::string& broken, bool checksums) {
  const std::string path = whole_one_before(broken, checksums, CheckpointPart::kAll);
  return path.empty() ? concat("\nThere is no other checkpoint in ", folder_of(broken),
                               " that a run can go on with")
                      : concat("\nThe latest one before it that is whole is ", path,
                               ": to go on with it, set training_config.resume_training: ",
                               fs::path(path).filename().string());
}

}  // namespace

bool resumes_in_place(const TrainingConfig& config) {
  return config.resume_training.on &&
         (config.load_checkpoint.empty() || lies_in(config.load_checkpoint, config.output_dir));
}

bool is_started_again(const TrainingConfig& config) {
  if (!config.resume_training.on || config.load_checkpoint.empty() || resumes_in_place(config)) {
    return false;
  }
  const std::string earlier = load_checkpoint_in(config.output_dir + "/config.yaml");
  const std::string& name = config.resume_training.checkpoint;
  return !earlier.empty() &&
         fs::weakly_canonical(earlier) == fs::weakly_canonical(config.load_checkpoint) &&
         (name.empty() || fs::is_directory(fs::path(own_checkpoints(config)) / name));
}

std::optional<ResumePoint> find_resume_point(
    const AllConfig& config,
    ProcessGroup& world,
    bool started_again,
    const std::function<void(const std::string&)>& remark) {
  const TrainingConfig& t = config.training_config;
  if (!t.resume_training.on) {
    return std::nullopt;
  }
  std::string checkpoint;
  std::vector<std::string> remarks;
  all_or_none(world, [&] {
    // Sizes of all files are looked at to know what is healthy and whole: once is enough.
    if (world.rank() == 0 || !config.monitor_config.use_checkpoint_health_monitor) {
      checkpoint = find_checkpoint(config, started_again, remarks);
    }
  });
  for (const std::string& text : remarks) {
    remark ? remark(text) : log_warning(text);
  }
  // Folders look the same to all ranks, but one may see a new one later than the others.
  checkpoint = all_gather_text(world, checkpoint).front();
  if (checkpoint.empty()) {
    return std::nullopt;
  }
  ResumePoint point{.checkpoint = checkpoint, .trainer = {}, .data = {}};
  try {
    verify_checkpoint(checkpoint, t.crc_check, world);
    all_or_none(world, [&] {
      const std::optional<Manifest> manifest = read_manifest(checkpoint);
      check<IoError>(!t.crc_check || manifest, (fs::path(checkpoint) / kManifestFile).string(),
                     ": is missing, so nothing says whether the checkpoint is whole; with "
                     "training_config.crc_check: False a run goes on with it as it is");
      check<IoError>(has_training_state(checkpoint), checkpoint, ": holds weights alone, without ",
                     kTrainingStateFile,
                     "; load_checkpoint without resume_training starts a new run from them");
      const std::string source = (fs::path(checkpoint) / kTrainingStateFile).string();
      point.trainer = parse_trainer_state(read_training_state(checkpoint), source);
      check<IoError>(!manifest || manifest->step == point.trainer.position.seen,
                     (fs::path(checkpoint) / kManifestFile).string(), ": step is ",
                     manifest ? manifest->step : 0, ", but that of ", kTrainingStateFile, " is ",
                     point.trainer.position.seen);
      if (!point.trainer.data.empty()) {
        point.data = parse_data_state(point.trainer.data, source);
      }
    });
  } catch (const IoError& error) {
    throw IoError(concat(error.what(), offer_earlier(checkpoint, t.crc_check)));
  }
  return point;
}

void verify_weights(const std::string& checkpoint, bool checksums, ProcessGroup& world) {
  try {
    verify_checkpoint(checkpoint, checksums, world, CheckpointPart::kWeights);
  } catch (const IoError& error) {
    const std::string earlier = whole_one_before(checkpoint, checksums, CheckpointPart::kWeights);
    throw IoError(concat(error.what(),
                         earlier.empty()
                             ? std::string()
                             : concat("\nThe latest one before it that is whole is ", earlier)));
  }
}

}  // namespace tapestry
