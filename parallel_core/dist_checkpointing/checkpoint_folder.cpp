#include "parallel_core/dist_checkpointing/checkpoint_folder.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>

#include "autograd/tensor/error.h"
#include "parallel_core/dist_checkpointing/adapter_folder.h"
#include "parallel_core/dist_checkpointing/manifest.h"
#include "parallel_core/dist_checkpointing/tensor_files.h"

namespace tapestry {

namespace {

namespace fs = std::filesystem;

constexpr const char* kWeightsFile = "model.safetensors";  // for messages

// Also one that has lost its weights: who looks for the latest one has to hear of that.
bool is_checkpoint(const fs::path& folder) {
  return holds_weights(folder.string()) || holds_adapter(folder.string()) ||
         fs::exists(folder / kManifestFile);
}

// N of PREFIX + N; empty for any other name.
std::optional<int64_t> number_after(std::string_view prefix, const std::string& name) {
  int64_t number = 0;
  const char* end = name.data() + name.size();
  if (!name.starts_with(prefix)) {
    return std::nullopt;
  }
  const auto [stop, error] = std::from_chars(name.data() + prefix.size(), end, number);
  return error == std::errc() && stop == end && number >= 0 ? std::optional(number) : std::nullopt;
}

// Complete checkpoints below a folder, in the order of their steps.
std::vector<fs::path> paths_in(const fs::path& folder) {
  std::vector<std::pair<int64_t, fs::path>> found;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::optional<int64_t> step = number_after("step_", entry.path().filename().string());
    if (step && entry.is_directory() && is_checkpoint(entry.path())) {
      found.emplace_back(*step, entry.path());
    }
  }
  std::sort(found.begin(), found.end());
  std::vector<fs::path> paths;
  paths.reserve(found.size());
  for (auto& [step, path] : found) {
    paths.push_back(std::move(path));
  }
  return paths;
}

// In PATH/old/run_N, where a run that overwrites moves the files of the one before.
std::string latest_of_earlier_runs(const fs::path& path) {
  std::pair<int64_t, std::string> latest;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(path / "old", error)) {
    const std::optional<int64_t> number = number_after("run_", entry.path().filename().string());
    const std::vector<fs::path> found = paths_in(entry.path() / "checkpoint");
    if (number && !found.empty()) {
      latest = std::max(latest, {*number, found.back().string()});
    }
  }
  return latest.second;
}

bool is_shard_or_pickle(const std::string& name, std::string_view ending) {
  return (name.starts_with("model") || name.starts_with("pytorch_model")) && name.ends_with(ending);
}

// What a folder without weights that are read has in their place.
std::string why_nothing_is_read(const fs::path& folder) {
  std::string shard;
  std::string pickle;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.find("-of-") != std::string::npos && is_shard_or_pickle(name, ".safetensors")) {
      shard = std::max(shard, name);
    } else if (is_shard_or_pickle(name, ".bin") || is_shard_or_pickle(name, ".pth")) {
      pickle = std::max(pickle, name);
    }
  }
  if (!shard.empty()) {
    return concat("holds ", shard, ", a part of a model, but not ", kWeightsFile,
                  ".index.json, which says what lies in which part; fetch that file too");
  }
  if (fs::exists(folder / kPickledAdapterFile, error)) {
    pickle = kPickledAdapterFile;
  }
  if (!pickle.empty()) {
    return concat("holds ", pickle, ", a pickle, which is not read; save the ",
                  pickle == kPickledAdapterFile ? "adapter" : "model",
                  " as safetensors (save_pretrained with safe_serialization)");
  }
  if (fs::exists(folder / kAdapterConfigFile, error)) {
    return concat("holds ", kAdapterConfigFile, ", but no ", kAdapterWeightsFile, " beside it");
  }
  return concat("holds neither ", kWeightsFile,
                ", nor a .ckpt file, nor an adapter, nor folders step_N with one");
}

// The checkpoint below a folder of runs that was written last; looked for a few folders deep, as
// PATH/GROUP/RUN/checkpoint/step_N. Empty if there is none.
std::string newest_below(const fs::path& path) {
  constexpr int kDepth = 4;
  constexpr int kMostFolders = 10'000;
  std::pair newest(fs::file_time_type::min(), std::string());  // its clock begins in the future
  std::error_code error;
  int folders = 0;
  auto entry =
      fs::recursive_directory_iterator(path, fs::directory_options::skip_permission_denied, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    if (!entry->is_directory(error) || ++folders > kMostFolders) {
      continue;
    }
    const bool is_aside = entry->path().filename() == "old";  // of a run that was overwritten
    const std::vector<fs::path> found =
        is_aside ? std::vector<fs::path>() : paths_in(entry->path());
    if (!found.empty()) {
      newest = std::max(newest,
                        std::pair(fs::last_write_time(found.back(), error), found.back().string()));
    }
    if (is_aside || !found.empty() || entry.depth() + 1 >= kDepth) {
      entry.disable_recursion_pending();
    }
  }
  return newest.second;
}

}  // namespace

std::string checkpoint_name(int64_t step) {
  char name[32];
  std::snprintf(name, sizeof(name), "step_%08lld", static_cast<long long>(step));
  return name;
}

std::string resolve_checkpoint(const std::string& path) {
  check<IoError>(fs::exists(path), path, ": there is no such file or folder");
  if (!fs::is_directory(path) || holds_weights(path) || holds_adapter(path)) {
    return path;
  }
  std::vector<fs::path> found = paths_in(path);
  if (found.empty()) {
    found = paths_in(fs::path(path) / "checkpoint");
  }
  if (found.empty()) {
    const std::string earlier = latest_of_earlier_runs(path);
    check<IoError>(earlier.empty(), path,
                   ": the latest run in it has saved no checkpoint; an earlier run's is ", earlier);
  }
  if (found.empty()) {
    const std::string newest = newest_below(path);
    throw IoError(concat(
        path, ": ", why_nothing_is_read(path),
        newest.empty() ? std::string() : concat("; the newest checkpoint below it is ", newest)));
  }
  return found.back().string();
}

std::vector<std::string> checkpoints_in(const std::string& directory) {
  std::vector<std::string> names;
  for (const fs::path& path : paths_in(directory)) {
    names.push_back(path.string());
  }
  return names;
}

std::string latest_checkpoint_in(const std::string& directory) {
  const std::vector<fs::path> found = paths_in(directory);
  return found.empty() ? std::string() : found.back().string();
}

void remove_old_checkpoints(const std::string& directory,
                            int64_t keep_max,
                            const std::string& newest,
                            const std::vector<std::string>& kept) {
  std::vector<fs::path> all = paths_in(directory);
  std::erase_if(all, [&](const fs::path& path) {
    return std::any_of(kept.begin(), kept.end(), [&](const std::string& name) {
      return path.filename() == fs::path(name).filename();
    });
  });
  auto surplus = static_cast<int64_t>(all.size()) - std::max<int64_t>(keep_max, 1);
  for (auto old = all.begin(); old != all.end() && surplus > 0; ++old) {
    // A run that started again from an early step may find later ones of its predecessor.
    if (*old != newest) {
      std::error_code ignored;
      fs::remove_all(*old, ignored);
      --surplus;
    }
  }
}

void set_checkpoint_aside(const std::string& checkpoint, const std::string& name) {
  const fs::path aside = fs::path(checkpoint).parent_path() / name;
  std::error_code error;
  fs::remove_all(aside, error);
  fs::rename(checkpoint, aside, error);
  check<IoError>(!error, checkpoint, ": cannot be renamed to ", aside.string(), ": ",
                 error.message());
}

void remove_unfinished_checkpoints(const std::string& directory) {
  std::error_code error;
  std::vector<fs::path> unfinished;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(".step_") && name.ends_with(".tmp")) {
      unfinished.push_back(entry.path());
    }
  }
  for (const fs::path& path : unfinished) {
    fs::remove_all(path, error);
  }
}

}  // namespace tapestry
