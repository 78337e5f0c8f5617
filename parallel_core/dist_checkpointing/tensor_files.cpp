#include "parallel_core/dist_checkpointing/tensor_files.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "autograd/io/mindspore_ckpt.h"
#include "autograd/io/packed_folder.h"
#include "autograd/io/safetensors_directory.h"
#include "autograd/tensor/error.h"
#include "interop/gguf/gguf_weights.h"
#include "parallel_core/dist_checkpointing/mended_convolutions.h"
#include "parallel_core/dist_checkpointing/text_part.h"

namespace tapestry {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kCkpt = ".ckpt";
constexpr std::string_view kCkptStates = "-training_state.ckpt";

// STEM.safetensors, or its index; empty if there is neither.
std::string safetensors_in(const fs::path& folder, const std::string& stem) {
  std::error_code ignored;
  for (const char* ending : {".safetensors", ".safetensors.index.json"}) {
    const fs::path path = folder / (stem + ending);
    if (fs::exists(path, ignored)) {
      return path.string();
    }
  }
  return {};
}

// The .ckpt files of a folder, those with states or the others, sorted.
std::vector<std::string> ckpts_in(const fs::path& folder, bool states) {
  std::vector<std::string> found;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(kCkpt) && !name.starts_with(".") && name.ends_with(kCkptStates) == states) {
      found.push_back(entry.path().string());
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::unique_ptr<TensorSource> open_ckpt(const std::string& folder,
                                        const std::vector<std::string>& found) {
  check<IoError>(found.size() == 1, folder, ": holds ", found.size(), " files of this kind, ",
                 fs::path(found.front()).filename().string(), " and ",
                 fs::path(found.back()).filename().string(), " among them; name one of them");
  return std::make_unique<MindsporeCkptReader>(found.front());
}

}  // namespace

std::string ckpt_weights_stem(const std::string& prefix) { return prefix; }

std::string ckpt_states_stem(const std::string& prefix) {
  return concat(prefix, "-", kTrainingStateStem);
}

bool is_weights_file(std::string_view name) {
  return name.ends_with(kCkpt) ? !name.ends_with(kCkptStates)
                               : name.starts_with(concat(kWeightsStem, "-")) ||
                                     name.starts_with(concat(kAdapterStem, ".safetensors")) ||
                                     name.starts_with(concat(kWeightsStem, ".safetensors"));
}

bool holds_weights(const std::string& folder) {
  return !safetensors_in(folder, kWeightsStem).empty() ||
         !ckpts_in(folder, /*states=*/false).empty();
}

std::unique_ptr<TensorSource> open_weights(const std::string& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) {
    if (path.ends_with(kCkpt)) {
      return std::make_unique<MindsporeCkptReader>(path);
    }
    if (is_packed_folder(path)) {
      return std::make_unique<GgufWeights>(path);
    }
    return mended_convolutions(text_part(std::make_unique<SafetensorsDirectory>(path)));
  }
  const std::vector<std::string> found = ckpts_in(path, /*states=*/false);
  if (found.empty() || !safetensors_in(path, kWeightsStem).empty()) {
    const std::string adapter = holds_weights(path) ? "" : safetensors_in(path, kAdapterStem);
    return mended_convolutions(
        text_part(std::make_unique<SafetensorsDirectory>(adapter.empty() ? path : adapter)));
  }
  return open_ckpt(path, found);
}

std::unique_ptr<TensorSource> open_states(const std::string& folder) {
  const std::string path = safetensors_in(folder, kTrainingStateStem);
  if (!path.empty()) {
    return std::make_unique<SafetensorsDirectory>(path);
  }
  const std::vector<std::string> found = ckpts_in(folder, /*states=*/true);
  return found.empty() ? nullptr : open_ckpt(folder, found);
}

}  // namespace tapestry
