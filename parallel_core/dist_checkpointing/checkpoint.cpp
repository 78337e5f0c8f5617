#include "parallel_core/dist_checkpointing/checkpoint.h"

#include <fcntl.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "autograd/io/atomic_file.h"
#include "autograd/io/safetensors.h"
#include "autograd/io/safetensors_directory.h"
#include "autograd/kernels/reduce.h"
#include "autograd/ops/map.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"
#include "parallel_core/dist_checkpointing/hf_config.h"
#include "parallel_core/dist_checkpointing/hf_names.h"
#include "parallel_core/pipeline_parallel/collect.h"
#include "parallel_core/pipeline_parallel/pipeline_stage.h"

namespace tapestry {

namespace {

namespace fs = std::filesystem;

constexpr const char* kWeightsFile = "model.safetensors";
constexpr const char* kPickleFile = "pytorch_model.bin";

bool holds_weights(const fs::path& folder) {
  return fs::exists(folder / kWeightsFile) ||
         fs::exists(folder / (std::string(kWeightsFile) + ".index.json"));
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
std::vector<fs::path> checkpoints_in(const fs::path& folder) {
  std::vector<std::pair<int64_t, fs::path>> found;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::optional<int64_t> step = number_after("step_", entry.path().filename().string());
    if (step && entry.is_directory() && holds_weights(entry.path())) {
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
    const std::vector<fs::path> found = checkpoints_in(entry.path() / "checkpoint");
    if (number && !found.empty()) {
      latest = std::max(latest, {*number, found.back().string()});
    }
  }
  return latest.second;
}

// Unlike a plain copy, on disk when it returns.
void copy_to_disk(const std::string& from, const fs::path& to) {
  std::ifstream file(from, std::ios::binary);
  std::stringstream content;
  content << file.rdbuf();
  check<IoError>(file.good() && content.good(), from, ": cannot be read");
  write_file_atomically(to, content.str());
}

// Gives a complete folder its name. What an earlier run left under that name is never missing: the
// two names are exchanged at once, or where the file system cannot do that, one after the other.
void put_in_place(const fs::path& temporary, const fs::path& folder) {
  if (!fs::exists(folder)) {
    fs::rename(temporary, folder);
    return;
  }
  if (::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, folder.c_str(), RENAME_EXCHANGE) == 0) {
    return;
  }
  const fs::path aside = folder.string() + ".old";
  fs::remove_all(aside);
  fs::rename(folder, aside);
  fs::rename(temporary, folder);
  fs::remove_all(aside);
}

uintmax_t bytes_of(const LogicalState& state) {
  uintmax_t bytes = 0;
  for (const auto& [name, tensor] : state) {
    bytes +=
        static_cast<uintmax_t>(tensor.numel()) * static_cast<uintmax_t>(size_of(tensor.dtype()));
  }
  return bytes;
}

uintmax_t free_bytes(const fs::path& folder) {
  std::error_code error;
  const fs::space_info space = fs::space(folder, error);
  return error ? 0 : space.available;
}

std::string bytes_text(uintmax_t bytes) {
  const bool small = bytes < (1U << 20);
  char text[40];
  std::snprintf(text, sizeof(text), small ? "%.1f KiB" : "%.1f MiB",
                static_cast<double>(bytes) / (small ? 1 << 10 : 1 << 20));
  return text;
}

// What a failed write has not touched.
std::string what_is_left(const fs::path& directory) {
  const std::vector<fs::path> found = checkpoints_in(directory);
  return found.empty() ? "and there is no earlier one"
                       : concat("the last one is ", found.back().string());
}

// Weights with a NaN among them are of no use to anybody who loads them.
void check_finite(const LogicalState& state, const fs::path& folder) {
  for (const auto& [name, tensor] : state) {
    const Tensor values = dense(tensor);
    check<RuntimeError>(kernels::all_finite(values.dtype(), values.numel(), values.raw()),
                        "checkpoint ", folder.string(), " was not written, ",
                        what_is_left(folder.parent_path()), ": the weight ", name,
                        " holds values that are not finite");
  }
}

// Parameters under their module paths, as an alternative to logical names. Some may be called the
// same in both: the scheme that knows more names of the state counts.
bool uses_module_paths(const nn::Module& model, const LogicalState& state) {
  int64_t paths = 0;
  int64_t logical_names = 0;
  for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
    paths += state.contains(entry.name) ? 1 : 0;
    for (const nn::LogicalTensor& logical : entry.parameter->logical()) {
      logical_names += state.contains(logical.name) ? 1 : 0;
    }
  }
  return paths > logical_names;
}

// The stage's part of a state; strict about what some stage has or lacks.
void load_by_module_paths(nn::Module& model, const LogicalState& state, const std::string& source) {
  if (pipeline_place().size == 1) {
    model.load_state_dict(state);
    return;
  }
  const nn::StateDict own = model.state_dict();
  LogicalState part;
  std::vector<double> stages_with;
  for (const auto& [name, tensor] : state) {
    stages_with.push_back(own.contains(name) ? 1 : 0);
    if (own.contains(name)) {
      part.emplace(name, tensor);
    }
  }
  sum_over_pipeline(stages_with);
  nn::LoadReport report;
  size_t index = 0;
  for (const auto& [name, tensor] : state) {
    if (stages_with[index++] == 0) {
      report.unexpected.push_back(name);
    }
  }
  check<ValueError>(report.empty(), source, ": the weights do not fit the model\n", report.str());
  model.load_state_dict(part);
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
  if (found.empty()) {
    const std::string earlier = latest_of_earlier_runs(path);
    check<IoError>(earlier.empty(), path,
                   ": the latest run in it has saved no checkpoint; an earlier run's is ", earlier);
  }
  check<IoError>(!found.empty() || !fs::exists(fs::path(path) / kPickleFile), path, ": holds ",
                 kPickleFile, ", a pickle, which is not read; save the model as safetensors");
  check<IoError>(!found.empty(), path, ": holds neither ", kWeightsFile,
                 " nor folders step_N with one");
  return found.back().string();
}

void load_weights(ParallelModel& model, const TransformerConfig& config, const std::string& path) {
  const std::string resolved = resolve_checkpoint(path);
  if (model.has_file_names_of_config()) {
    check_hf_config(config, resolved);
  }
  const LogicalState state = read_weights(resolved);
  if (uses_module_paths(model, state)) {
    load_by_module_paths(model, state, resolved);
    return;
  }
  set_logical_state(
      model, model.has_file_names_of_config() ? from_file_names(config, state) : state, resolved);
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

std::string write_checkpoint(const ParallelModel& model,
                             const TransformerConfig& config,
                             int64_t step,
                             const CheckpointOptions& options,
                             const optim::Optimizer* optimizer) {
  const LogicalState state = gather_over_pipeline(get_logical_state(model, optimizer));
  char name[32];
  std::snprintf(name, sizeof(name), "step_%08lld", static_cast<long long>(step));
  const fs::path folder = fs::path(options.directory) / name;
  if (RankContext::current().rank() != 0) {
    return folder.string();
  }
  check_finite(state, folder);
  const fs::path temporary = fs::path(options.directory) / (std::string(".") + name + ".tmp");
  try {
    fs::create_directories(options.directory);
    fs::remove_all(temporary);
    fs::create_directory(temporary);
    const bool named = model.has_file_names_of_config();
    write_state(temporary / kWeightsFile, named ? to_file_names(config, state) : state);
    // All weights have one dtype; a stage without any has nothing to say of it.
    write_hf_files(temporary, config, named,
                   state.empty() ? config.params_dtype : state.begin()->second.dtype(),
                   options.source);
    write_file_atomically(temporary / "config.yaml", options.resolved_config);
    if (!options.tokenizer_model.empty()) {
      copy_to_disk(options.tokenizer_model, temporary / "tokenizer.model");
    }
    sync_directory(temporary);
    put_in_place(temporary, folder);
    sync_directory(options.directory);
    fs::remove_all(temporary);
  } catch (const fs::filesystem_error& error) {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
    throw_io_error(folder.string(), concat("be written because of ", error.path1().string()),
                   error.code().value());
  } catch (const StorageError& error) {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
    throw StorageError(concat("checkpoint ", folder.string(), " was not written, ",
                              what_is_left(options.directory), ": ", error.what(),
                              "; its weights take ", bytes_text(bytes_of(state)), ", ",
                              bytes_text(free_bytes(options.directory)), " are free"));
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
    throw;
  }
  return folder.string();
}

void remove_old_checkpoints(const CheckpointOptions& options, const std::string& newest) {
  const std::vector<fs::path> all = checkpoints_in(options.directory);
  auto surplus = static_cast<int64_t>(all.size()) - std::max<int64_t>(options.keep_max, 1);
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

std::string save_checkpoint(const ParallelModel& model,
                            const TransformerConfig& config,
                            int64_t step,
                            const CheckpointOptions& options,
                            const optim::Optimizer* optimizer) {
  std::string folder = write_checkpoint(model, config, step, options, optimizer);
  if (RankContext::current().rank() == 0) {
    remove_old_checkpoints(options, folder);
  }
  return folder;
}

}  // namespace tapestry
