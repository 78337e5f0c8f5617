#include "parallel_core/training/files/disk_room.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "autograd/tensor/error.h"
#include "autograd/tensor/rank_context.h"
#include "parallel_core/estimates/memory_estimate.h"
#include "parallel_core/training/log/logging.h"

namespace tapestry {

namespace {

namespace fs = std::filesystem;

// The folder itself, or the nearest one above it that exists.
fs::path existing_folder(fs::path folder) {
  std::error_code ignored;
  folder = fs::absolute(folder);
  while (!fs::exists(folder, ignored) && folder.has_relative_path()) {
    folder = folder.parent_path();
  }
  return folder;
}

// Empty where the file system cannot tell.
std::optional<int64_t> free_bytes_in(const fs::path& folder) {
  std::error_code error;
  const fs::space_info space = fs::space(folder, error);
  return error ? std::nullopt : std::optional(static_cast<int64_t>(space.available));
}

}  // namespace

CheckpointSize checkpoint_size(const AllConfig& config, int64_t data_parallel_size) {
  const TrainingConfig& t = config.training_config;
  CheckpointSize size;
  size.one = static_cast<int64_t>(saved_bytes(config));
  const int64_t steps = total_training_iters(config, data_parallel_size);
  int64_t saves = t.save_last ? 1 : 0;
  if (t.save_interval) {
    // Without a number of steps there may be any number of them.
    saves +=
        steps > 0 ? (steps - (t.save_last ? 1 : 0)) / *t.save_interval : t.keep_checkpoint_max + 1;
  }
  if (t.save_interval_seconds) {
    saves = t.keep_checkpoint_max + 1;  // nobody knows how many
  }
  size.count =
      t.keep_checkpoint_per_n_minutes > 0 ? saves : std::min(saves, t.keep_checkpoint_max + 1);
  size.at_most = size.count * size.one;
  return size;
}

std::string disk_room_text(const AllConfig& config, int64_t data_parallel_size) {
  const CheckpointSize size = checkpoint_size(config, data_parallel_size);
  // It may be a file system of its own.
  const fs::path folder =
      existing_folder(fs::path(config.training_config.output_dir) / "checkpoint");
  const std::optional<int64_t> free = free_bytes_in(folder);
  const std::string text =
      concat("a checkpoint takes about ", size_text(size.one), ", at most ", size.count,
             " at a time ", size_text(size.at_most), "; ",
             free ? size_text(*free) : std::string("an unknown number of bytes"), " are free in ",
             folder.string());
  check<ValueError>(!free || size.count == 0 || size.one <= *free, text,
                    "; there is no room for one. Choose another training_config.output_dir, or "
                    "make room");
  return text + (!free || size.at_most <= *free ? "" : ": too little for all of them");
}

void check_room_for_checkpoint(const std::string& directory, int64_t bytes) {
  const fs::path folder = existing_folder(directory);
  const std::optional<int64_t> free = free_bytes_in(folder);
  check<ValueError>(!free || bytes <= *free, "a checkpoint takes about ", size_text(bytes), "; ",
                    size_text(free.value_or(0)), " are free in ", folder.string(),
                    "; there is no room for one. Choose another folder, or make room");
}

DiskWatch::DiskWatch(std::string directory, int64_t bytes)
    : directory_(std::move(directory)), bytes_(bytes) {}

void DiskWatch::observe(int64_t step) {
  if (directory_.empty() || RankContext::current().rank() != 0) {
    return;
  }
  const fs::path folder = existing_folder(directory_);
  const std::optional<int64_t> free = free_bytes_in(folder);
  const bool is_short = free && *free < bytes_;
  if (is_short == std::exchange(is_short_, is_short)) {
    return;
  }
  if (is_short) {
    log_warning(concat("step ", step, ": THE NEXT CHECKPOINT WILL NOT FIT: it takes about ",
                       size_text(bytes_), ", ", size_text(*free), " are free in ", folder.string(),
                       ". Make room before it is due; training goes on"));
  } else {
    log_info(concat("step ", step, ": there is room for a checkpoint again in ", folder.string()));
  }
}

}  // namespace tapestry
