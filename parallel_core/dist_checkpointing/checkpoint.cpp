#include "parallel_core/dist_checkpointing/checkpoint.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <vector>

#include "autograd/io/atomic_file.h"
#include "autograd/io/safetensors.h"
#include "autograd/io/safetensors_directory.h"
#include "autograd/ops/map.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/dist_checkpointing/hf_names.h"

namespace tapestry {

namespace {

namespace fs = std::filesystem;

constexpr const char* kWeightsFile = "model.safetensors";

bool holds_weights(const fs::path& folder) {
  return fs::exists(folder / kWeightsFile) ||
         fs::exists(folder / (std::string(kWeightsFile) + ".index.json"));
}

// Complete checkpoints below a folder, oldest first.
std::vector<fs::path> checkpoints_in(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_directory() && name.rfind("step_", 0) == 0 && holds_weights(entry.path())) {
      found.push_back(entry.path());
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

// Parameters under their module paths, as an alternative to logical names.
bool uses_module_paths(const nn::Module& model, const LogicalState& state) {
  const auto parameters = model.named_parameters();
  return std::any_of(parameters.begin(), parameters.end(),
                     [&](const auto& entry) { return state.contains(entry.name); });
}

}  // namespace

LogicalState read_weights(const std::string& path) {
  LogicalState state;
  const auto take = [&](const auto& reader, const std::string& name, DType dtype,
                        const Shape& shape) {
    Tensor tensor = empty(shape, dtype);
    reader.read(name, tensor.raw());
    state.emplace(name, std::move(tensor));
  };
  if (fs::is_directory(path)) {
    const SafetensorsDirectory files(path);
    for (const std::string& name : files.names()) {
      take(files, name, files.dtype(name), files.entry(name).shape);
    }
  } else {
    const SafetensorsReader file(path);
    for (const auto& [name, entry] : file.entries()) {
      take(file, name, file.dtype(name), entry.shape);
    }
  }
  return state;
}

std::string resolve_checkpoint(const std::string& path) {
  check<IoError>(fs::exists(path), path, ": there is no such file or folder");
  if (!fs::is_directory(path) || holds_weights(path)) {
    return path;
  }
  std::vector<fs::path> found = checkpoints_in(path);
  if (found.empty()) {
    found = checkpoints_in(fs::path(path) / "checkpoint");
  }
  check<IoError>(!found.empty(), path, ": holds neither ", kWeightsFile,
                 " nor folders step_N with one");
  return found.back().string();
}

void load_weights(nn::Module& model, const TransformerConfig& config, const std::string& path) {
  const std::string resolved = resolve_checkpoint(path);
  const LogicalState state = read_weights(resolved);
  if (uses_module_paths(model, state)) {
    model.load_state_dict(state);
    return;
  }
  set_logical_state(model, from_file_names(config, state), resolved);
}

void write_state(const std::string& path, const LogicalState& state) {
  std::vector<TensorView> views;
  TensorList keep;
  for (const auto& [name, tensor] : state) {
    keep.push_back(dense(tensor));
    views.push_back({name, tensor.dtype(), tensor.shape(), keep.back().raw()});
  }
  write_safetensors(path, views);
}

std::string save_checkpoint(const nn::Module& model,
                            const TransformerConfig& config,
                            int64_t step,
                            const CheckpointOptions& options) {
  char name[32];
  std::snprintf(name, sizeof(name), "step_%08lld", static_cast<long long>(step));
  const fs::path folder = fs::path(options.directory) / name;
  const fs::path temporary = fs::path(options.directory) / (std::string(".") + name + ".tmp");
  try {
    fs::create_directories(options.directory);
    fs::remove_all(temporary);
    fs::create_directory(temporary);
    write_state(temporary / kWeightsFile, to_file_names(config, get_logical_state(model)));
    write_file_atomically(temporary / "config.json", model_config_json(config));
    write_file_atomically(temporary / "config.yaml", options.resolved_config);
    if (!options.tokenizer_model.empty()) {
      fs::copy_file(options.tokenizer_model, temporary / "tokenizer.model");
    }
    sync_directory(temporary);
    // A folder of that name is from an earlier run of the same step: it is replaced whole.
    fs::remove_all(folder);
    fs::rename(temporary, folder);
    sync_directory(options.directory);
  } catch (const fs::filesystem_error& error) {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
    throw IoError(concat("checkpoint ", folder.string(), " cannot be written: ", error.what()));
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
    throw;
  }
  // An earlier run may have left higher steps; the one just written stays in any case.
  std::vector<fs::path> others = checkpoints_in(options.directory);
  others.erase(std::remove(others.begin(), others.end(), folder), others.end());
  for (size_t i = 0; i + static_cast<size_t>(options.keep_max) < others.size() + 1; ++i) {
    std::error_code ignored;
    fs::remove_all(others[i], ignored);
  }
  return folder.string();
}

}  // namespace tapestry
