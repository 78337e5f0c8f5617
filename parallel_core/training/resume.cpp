#include "parallel_core/training/resume.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "autograd/tensor/error.h"
#include "parallel_core/dist_checkpointing/agreement.h"
#include "parallel_core/dist_checkpointing/checkpoint_folder.h"
#include "parallel_core/dist_checkpointing/manifest.h"
#include "parallel_core/dist_checkpointing/training_state_file.h"
#include "parallel_core/training/output_folder.h"

namespace tapestry {

namespace {

namespace fs = std::filesystem;

std::string base_of(const TrainingConfig& t) {
  return t.load_checkpoint.empty() ? t.output_dir : t.load_checkpoint;
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

// The checkpoint to go on with; empty if there is none yet.
std::string find_checkpoint(const TrainingConfig& t) {
  const std::string base = base_of(t);
  if (!t.resume_training.checkpoint.empty()) {
    return by_name(t.resume_training.checkpoint, base);
  }
  if (t.load_checkpoint.empty()) {
    return latest_checkpoint_in(checkpoint_folder_of(base));
  }
  return resolve_checkpoint(base);
}

// "; the one before it, PATH, is whole: ..." if there is one.
std::string offer_earlier(const std::string& broken, bool checksums) {
  const std::string folder = fs::path(broken).parent_path().string();
  std::vector<std::string> all = checkpoints_in(folder);
  std::reverse(all.begin(), all.end());
  for (const std::string& path : all) {
    const bool is_earlier = path < broken;
    if (is_earlier && has_training_state(path) && fault_of_checkpoint(path, checksums).empty()) {
      const std::string name = fs::path(path).filename().string();
      return concat("\nThe latest one before it that is whole is ", path,
                    ": to go on with it, set training_config.resume_training: ", name);
    }
  }
  return concat("\nThere is no other checkpoint in ", folder, " that a run can go on with");
}

}  // namespace

bool resumes_in_place(const TrainingConfig& config) {
  return config.resume_training.on &&
         (config.load_checkpoint.empty() || lies_in(config.load_checkpoint, config.output_dir));
}

std::optional<ResumePoint> find_resume_point(const AllConfig& config, ProcessGroup& world) {
  const TrainingConfig& t = config.training_config;
  if (!t.resume_training.on) {
    return std::nullopt;
  }
  std::string checkpoint;
  all_or_none(world, [&] { checkpoint = find_checkpoint(t); });
  // Folders look the same to all ranks, but one may see a new one later than the others.
  checkpoint = all_gather_text(world, checkpoint).front();
  if (checkpoint.empty()) {
    return std::nullopt;
  }
  ResumePoint point{.checkpoint = checkpoint, .trainer = {}, .data = {}};
  try {
    verify_checkpoint(checkpoint, t.crc_check, world);
    all_or_none(world, [&] {
      check<IoError>(has_training_state(checkpoint), checkpoint, ": holds weights alone, without ",
                     kTrainingStateFile,
                     "; load_checkpoint without resume_training starts a new run from them");
      const std::string source = (fs::path(checkpoint) / kTrainingStateFile).string();
      point.trainer = parse_trainer_state(read_training_state(checkpoint), source);
      if (!point.trainer.data.empty()) {
        point.data = parse_data_state(point.trainer.data, source);
      }
    });
  } catch (const IoError& error) {
    throw IoError(concat(error.what(), offer_earlier(checkpoint, t.crc_check)));
  }
  return point;
}

}  // namespace tapestry
