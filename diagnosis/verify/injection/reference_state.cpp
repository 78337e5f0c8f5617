#include "diagnosis/verify/injection/reference_state.h"

#include <charconv>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

#include "autograd/io/tensor_io.h"
#include "autograd/ops/elementwise.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/error.h"
#include "diagnosis/dump/dump_reader.h"
#include "diagnosis/dump/logical_tensor.h"

namespace tapestry {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kGradientPrefix = "Gradients/";
constexpr std::string_view kUpdatePrefix = "Updates/";
constexpr std::string_view kNpyPrefix = "grad_";
constexpr std::string_view kNpySuffix = ".npy";

bool is_npy_gradient(std::string_view file) {
  return file.size() > kNpyPrefix.size() + kNpySuffix.size() && file.starts_with(kNpyPrefix) &&
         file.ends_with(kNpySuffix);
}

// The number in PREFIX<number>SUFFIX.
std::optional<int64_t> number_in(std::string_view name,
                                 std::string_view prefix,
                                 std::string_view suffix) {
  if (name.size() <= prefix.size() + suffix.size() || !name.starts_with(prefix) ||
      !name.ends_with(suffix)) {
    return std::nullopt;
  }
  name.remove_prefix(prefix.size());
  name.remove_suffix(suffix.size());
  int64_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  const bool is_number = error == std::errc() && end == name.data() + name.size();
  return is_number && number >= 0 ? std::optional(number) : std::nullopt;
}

void check_is_folder(const std::string& folder) {
  check<IoError>(fs::is_directory(folder), folder, ": is no folder; expected one with the tensors ",
                 "of a reference");
}

// Rows of parameters whose names begin with `prefix`, and that are of the optimizer or not.
LogicalState parameters_of(const std::vector<dump::LogicalTensor>& tensors,
                           std::string_view prefix,
                           std::optional<bool> of_optimizer,
                           const accuracy::NameMap& map) {
  LogicalState state;
  for (const dump::LogicalTensor& tensor : tensors) {
    const dump::DumpRow& row = tensor.row();
    const std::string_view name = row.op_name;
    if (row.op_type != "Parameter" || !name.starts_with(prefix) ||
        (of_optimizer && (row.pass == "optimizer") != *of_optimizer) ||
        (prefix.empty() &&
         (name.starts_with(kGradientPrefix) || name.starts_with(kUpdatePrefix)))) {
      continue;
    }
    const std::string own(name.substr(prefix.size()));
    const dump::JoinedTensor joined = tensor.load();
    check<ValueError>(joined.values.size() == 1, row.op_name,
                      ": has values of several samples; a parameter belongs to none");
    check<ValueError>(state.emplace(map.apply(own), joined.values.front()).second, row.op_name,
                      ": its name, ", map.apply(own), ", is that of another tensor too");
  }
  return state;
}

}  // namespace

bool is_dump_folder(const std::string& folder) {
  if (!fs::is_directory(folder)) {
    return false;
  }
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.is_directory() && number_in(entry.path().filename().string(), "rank_", "")) {
      return true;
    }
  }
  return false;
}

LogicalState dumped_start_weights(const std::string& folder, const accuracy::NameMap& map) {
  const dump::DumpReader reader(folder);
  check<IoError>(!reader.iterations().empty(), folder, ": has no whole iteration");
  const std::vector<dump::LogicalTensor> tensors =
      dump::logical_tensors(reader.tensors(reader.iterations().front()));
  LogicalState state = parameters_of(tensors, "", /*of_optimizer=*/false, map);
  if (!state.empty()) {
    return state;
  }
  state = parameters_of(tensors, "", /*of_optimizer=*/true, map);
  check<ValueError>(!state.empty(), folder, ": iteration ", reader.iterations().front(),
                    " has no values of weights; dump kernels of the type Parameter with saved_data "
                    "'tensor', or name a folder with safetensors files");
  const LogicalState updates = parameters_of(tensors, kUpdatePrefix, std::nullopt, map);
  const NoGradGuard guard;
  for (auto& [name, after] : state) {
    const auto update = updates.find(name);
    check<ValueError>(update != updates.end() && update->second.shape() == after.shape(), folder,
                      ": has ", name, " after the update of iteration ",
                      reader.iterations().front(), ", but not Updates/", name,
                      ", without which nobody knows what the iteration began with; dump both");
    after = (after.to(kFloat64) - update->second.to(kFloat64)).to(kFloat32);
  }
  return state;
}

ReferenceGradients::ReferenceGradients(std::string folder, accuracy::NameMap map)
    : folder_(std::move(folder)), map_(std::move(map)) {
  check_is_folder(folder_);
  if (is_dump_folder(folder_)) {
    form_ = Form::kDump;
    for (const int64_t iteration : dump::DumpReader(folder_).iterations()) {
      steps_.insert(iteration + 1);
    }
    return;
  }
  std::set<int64_t> folders;
  bool is_flat = false;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_)) {
    const std::string name = entry.path().filename().string();
    if (const auto step = number_in(name, "grads_step_", ".safetensors")) {
      steps_.insert(*step);
    } else if (const auto number = number_in(name, "step_", ""); number && entry.is_directory()) {
      folders.insert(*number);
    } else {
      is_flat = is_flat || (is_npy_gradient(name) && entry.is_regular_file());
    }
  }
  if (steps_.empty()) {
    form_ = Form::kNpy;
    steps_ = std::move(folders);
  }
  if (steps_.empty() && is_flat) {
    form_ = Form::kFlatNpy;
    steps_ = {1};
  }
  check<ValueError>(!steps_.empty(), folder_,
                    ": has gradients of no step; expected files grads_step_N.safetensors, folders "
                    "step_N with files grad_NAME.npy, files grad_NAME.npy of the first step, or a "
                    "dump");
}

std::optional<LogicalState> ReferenceGradients::of_step(int64_t step) const {
  if (!steps_.contains(step)) {
    return std::nullopt;
  }
  LogicalState state;
  if (form_ == Form::kDump) {
    state = parameters_of(dump::logical_tensors(dump::DumpReader(folder_).tensors(step - 1)),
                          kGradientPrefix, std::nullopt, map_);
  } else if (form_ == Form::kSafetensors) {
    for (auto& [name, tensor] :
         load_safetensors(concat(folder_, "/grads_step_", step, ".safetensors"))) {
      check<ValueError>(state.emplace(map_.apply(name), tensor).second, folder_, ": the name of ",
                        name, ", ", map_.apply(name), ", is that of another tensor too");
    }
  } else {
    state = npy_files(form_ == Form::kFlatNpy ? folder_ : concat(folder_, "/step_", step));
  }
  check<ValueError>(!state.empty(), folder_, ": has no gradients of step ", step);
  return state;
}

LogicalState ReferenceGradients::npy_files(const std::string& folder) const {
  LogicalState state;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string file = entry.path().filename().string();
    if (!is_npy_gradient(file)) {
      continue;
    }
    const std::string id =
        file.substr(kNpyPrefix.size(), file.size() - kNpyPrefix.size() - kNpySuffix.size());
    const std::string name = map_.apply(id);
    check<ValueError>(state.emplace(name, load_npy(entry.path().string())).second,
                      entry.path().string(), ": its name, ", name, ", is that of another file too");
  }
  return state;
}

}  // namespace tapestry
