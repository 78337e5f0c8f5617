#include "parallel_core/dist_checkpointing/training_state_file.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>
#include <vector>

#include "autograd/io/input_file.h"
#include "autograd/io/json.h"
#include "autograd/io/strict_json.h"
#include "autograd/io/tensor_source.h"
#include "autograd/ops/map.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/comm/sum_over.h"
#include "parallel_core/dist_checkpointing/part_io.h"
#include "parallel_core/dist_checkpointing/tensor_files.h"
#include "parallel_core/parameter_ranks.h"
#include "parallel_core/pipeline_parallel/collect.h"

namespace tapestry {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int64_t kStateFormat = 1;
constexpr uint64_t kMaxStateBytes = uint64_t{1} << 30U;

std::string state_path(const std::string& folder) {
  return (fs::path(folder) / kTrainingStateFile).string();
}

json read_state(const std::string& folder) {
  const InputFile file(state_path(folder));
  json state = read_strict_json(file, "state", kMaxStateBytes);
  check<IoError>(state.is_object(), file.path(), ": is not a JSON object");
  check<IoError>(state.contains("format_version") && state["format_version"] == kStateFormat,
                 file.path(), ": format_version is ", state.value("format_version", json()).dump(),
                 ", this program knows ", kStateFormat);
  check<IoError>(state.contains("trainer") && state["trainer"].is_object(), file.path(),
                 ": has no member `trainer`");
  return state;
}

// Updates that each logical tensor has had.
std::map<std::string, int64_t> read_updates(const json& state, const std::string& path) {
  const json optimizer = state.value("optimizer", json());
  check<IoError>(optimizer.is_object() && optimizer.contains("updates") &&
                     optimizer["updates"].is_object() && optimizer.contains("type"),
                 path, ": has no member `optimizer` with `type` and `updates`");
  std::map<std::string, int64_t> updates;
  for (const auto& [name, count] : optimizer["updates"].items()) {
    check<IoError>(count.is_number_unsigned() && count.get<uint64_t>() <= INT64_MAX, path,
                   ": optimizer.updates: ", json(name).dump(), " is not a number of updates");
    updates[name] = count.get<int64_t>();
  }
  return updates;
}

// A checkpoint has no such file where there was nothing to write: an optimizer without states (SGD
// without momentum), or without an update so far, and no buffers.
void check_are_there(const TensorSource* states,
                     const std::string& folder,
                     const std::string& needed) {
  check<IoError>(states != nullptr, (fs::path(folder) / kTrainingStateStem).string(),
                 ".safetensors: is missing, and so is a -", kTrainingStateStem,
                 ".ckpt file; the run needs ", needed,
                 " of it. Where the run that saved it had an optimizer without states, set "
                 "optimizer_config as it was, or no_load_optim: True, which starts the optimizer "
                 "anew");
}

// Names of states and buffers that no stage asks for, and no rank with other experts, are wrong in
// a file.
void find_unexpected(const std::vector<std::string>& names,
                     const std::set<std::string>& used,
                     nn::LoadReport& report) {
  std::vector<double> ranks_with;
  for (const std::string& name : names) {
    ranks_with.push_back(used.contains(name) ? 1 : 0);
  }
  sum_over_pipeline(ranks_with);
  sum_over(experts_group(), ranks_with);
  size_t index = 0;
  for (const std::string& name : names) {
    if (ranks_with[index++] == 0) {
      report.unexpected.push_back(name);
    }
  }
}

// Without files, only notes that it is wanted.
void expect_tensor(const TensorSource* files,
                   const std::string& name,
                   const Shape& shape,
                   std::set<std::string>& used,
                   nn::LoadReport& report) {
  if (files != nullptr && !files->contains(name)) {
    report.missing.push_back(name);
  } else if (files != nullptr && files->shape(name) != shape) {
    report.mismatched.push_back({name, shape, files->shape(name)});
  }
  used.insert(name);
}

// A tensor of a file as every rank has it.
Tensor read_whole(const TensorSource& files,
                  const std::string& name,
                  const Shape& shape,
                  DType dtype) {
  const Tensor values = empty(shape, files.dtype(name));
  files.read(name, values.raw());
  if (values.dtype() == dtype) {
    return values;
  }
  const Tensor out = empty(shape, dtype);
  copy_values(values, out);
  return out;
}

// Those that are not among the weights.
std::vector<nn::Module::NamedBuffer> own_buffers(const nn::Module& model) {
  std::vector<nn::Module::NamedBuffer> out = model.named_buffers();
  std::erase_if(out, [](const auto& entry) { return !entry.logical.empty(); });
  return out;
}

void set_buffers(const TensorSource& files, ParallelModel& model) {
  for (const nn::Module::NamedBuffer& entry : own_buffers(model)) {
    copy_values(read_whole(files, buffer_tensor_name(entry.name), entry.buffer.shape(),
                           entry.buffer.dtype()),
                entry.buffer);
  }
}

}  // namespace

std::string training_state_text(const std::string& state,
                                int64_t step,
                                const StoredTensors& saved,
                                const optim::Optimizer* optimizer) {
  nlohmann::ordered_json text;
  text["format_version"] = kStateFormat;
  text["step"] = step;
  text["trainer"] = nlohmann::ordered_json::parse(state, nullptr, /*allow_exceptions=*/false);
  check<ValueError>(text["trainer"].is_object(), "training state: is not a JSON object: ", state);
  if (optimizer != nullptr) {
    text["optimizer"]["type"] = optimizer->type_name();
    text["optimizer"]["updates"] = nlohmann::ordered_json::object();
    for (const StoredTensor& tensor : saved.tensors) {
      text["optimizer"]["updates"][tensor.name] = tensor.updates;
    }
  }
  return text.dump(1) + "\n";
}

bool has_training_state(const std::string& folder) {
  std::error_code error;
  return fs::exists(state_path(folder), error);
}

std::string read_training_state(const std::string& folder) {
  return read_state(folder)["trainer"].dump();
}

void load_optimizer_state(const std::string& folder,
                          ParallelModel& model,
                          optim::Optimizer& optimizer) {
  const NoGradGuard guard;
  const json state = read_state(folder);
  const std::map<std::string, int64_t> updates = read_updates(state, state_path(folder));
  const std::string type = state["optimizer"]["type"].dump();
  check<ValueError>(type == json(optimizer.type_name()).dump(), state_path(folder),
                    ": the state is that of ", type, ", the run has ", optimizer.type_name(),
                    "; set optimizer_config.optimizer_type, or no_load_optim: True, which "
                    "starts the optimizer anew");
  const std::unique_ptr<TensorSource> files = open_states(folder);
  nn::LoadReport report;
  std::set<std::string> used;
  for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
    if (!entry.parameter->requires_grad()) {
      continue;  // what is never updated has no states
    }
    const std::vector<nn::LogicalTensor>& tensors = entry.parameter->logical();
    const auto states = optimizer.state_entries(entry.name);
    for (size_t i = 0; i < tensors.size(); ++i) {
      const auto found = updates.find(tensors[i].name);
      if (found == updates.end()) {
        report.missing.push_back(tensors[i].name);
        continue;
      }
      for (const optim::Optimizer::StateEntry& state : states) {
        const auto shape = stored_shape(state, tensors[i], i);
        if (found->second > 0 && shape) {
          expect_tensor(files.get(), state_tensor_name(tensors[i].name, state.name), *shape, used,
                        report);
        }
      }
    }
  }
  for (const nn::Module::NamedBuffer& entry : own_buffers(model)) {
    expect_tensor(files.get(), buffer_tensor_name(entry.name), entry.buffer.shape(), used, report);
  }
  if (!used.empty()) {
    check_are_there(files.get(), folder, *used.begin());
  }
  find_unexpected(files ? files->names() : std::vector<std::string>(), used, report);
  check<ValueError>(report.empty(), folder, ": the optimizer's state does not fit the model\n",
                    report.str());
  for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
    if (!entry.parameter->requires_grad()) {
      continue;
    }
    const std::vector<nn::LogicalTensor>& tensors = entry.parameter->logical();
    const int64_t done = tensors.empty() ? 0 : updates.at(tensors.front().name);
    if (done == 0) {
      continue;
    }
    const optim::Optimizer::OwnPart part = optimizer.own_part(entry.name);
    std::map<std::string, Tensor> states;
    for (const optim::Optimizer::StateEntry& state : optimizer.state_entries(entry.name)) {
      const DType dtype = optimizer.own_state_dtype(entry.name, state.name);
      if (state.extent != optim::StateExtent::kElement) {
        const std::string saved = state_tensor_name(tensors[state.logical].name, state.name);
        states.emplace(state.key, read_whole(*files, saved, state.shape, dtype));
        continue;
      }
      // What belongs to no logical tensor has never had a gradient.
      const Tensor values = zeros({part.count}, dtype);
      for (const nn::LogicalTensor& logical : tensors) {
        const std::string saved = state_tensor_name(logical.name, state.name);
        read_part(logical, {.name = saved, .shape = logical.shape}, *files,
                  {.values = values, .first = part.first});
      }
      states.emplace(state.key, values);
    }
    optimizer.set_own_state(entry.name, done, states);
  }
  if (files) {
    set_buffers(*files, model);
  }
}

void load_buffers(const std::string& folder, ParallelModel& model) {
  const std::vector<nn::Module::NamedBuffer> buffers = own_buffers(model);
  if (!buffers.empty()) {
    const std::unique_ptr<TensorSource> files = open_states(folder);
    check_are_there(files.get(), folder, buffer_tensor_name(buffers.front().name));
    set_buffers(*files, model);
  }
}

}  // namespace tapestry
