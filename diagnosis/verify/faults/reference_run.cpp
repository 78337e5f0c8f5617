#include "diagnosis/verify/faults/reference_run.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <utility>

#include "autograd/io/json.h"
#include "autograd/io/tensor_io.h"
#include "autograd/ops/map.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/error.h"
#include "diagnosis/accuracy/replay_case.h"
#include "diagnosis/report/plot/metrics_file.h"
#include "parallel_core/config/yaml/value.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "text/util/file.h"

namespace tapestry {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

std::vector<double> learning_rates(const Json& line) {
  std::vector<double> out;
  if (const auto found = line.find("lr"); found != line.end()) {
    for (const Json& value : found->is_array() ? *found : Json::array({*found})) {
      out.push_back(plot::metrics_number(value).value_or(0));
    }
  }
  return out;
}

std::optional<double> metric_of(const Json& line, const char* key) {
  const auto found = line.find(key);
  return found == line.end() ? std::nullopt : plot::metrics_number(*found);
}

ReferenceStep step_of(const Json& line) {
  ReferenceStep step{.loss = metric_of(line, "loss"),
                     .grad_norm = metric_of(line, "grad_norm"),
                     .loss_tokens = metric_of(line, "loss_tokens"),
                     .lr = learning_rates(line)};
  if (const auto found = line.find("grad_norms"); found != line.end() && found->is_object()) {
    for (const auto& [name, value] : found->items()) {
      if (const auto number = plot::metrics_number(value)) {
        step.grad_norms.emplace(name, *number);
      }
    }
  }
  return step;
}

// What a case's config.json is.
enum class CaseConfig : uint8_t { kOurReference, kOther, kNone };

CaseConfig case_config(const std::string& file) {
  if (!fs::exists(file)) {
    return CaseConfig::kNone;
  }
  const Json json = Json::parse(data::read_file(file), nullptr, /*allow_exceptions=*/false);
  // Of what is no object the reader of our own says what is wrong.
  const bool others =
      json.is_object() && !json.contains("compute_dtype") && !json.contains("train_iters");
  return others ? CaseConfig::kOther : CaseConfig::kOurReference;
}

// A part of the last axis, as another program's module has several values side by side.
Tensor cut_value(const Tensor& x, const accuracy::NamedValue& value) {
  const int64_t parts = value.cut == accuracy::Cut::kThirds   ? 3
                        : value.cut == accuracy::Cut::kHalves ? 2
                                                              : 1;
  const int64_t size = x.size(-1) / parts;
  return parts == 1 ? x : dense_copy(slice(x, -1, value.part * size, (value.part + 1) * size));
}

// "PATH/output.0", which tools/torch_dump.py writes of modules, is the value that it is here; other
// names are ours, or those of the map.
LogicalState in_names_of_values(LogicalState stored, const accuracy::NameMap& map) {
  const NoGradGuard guard;
  const bool has_gate = std::any_of(stored.begin(), stored.end(), [](const auto& entry) {
    return entry.first.find("gate_proj/") != std::string::npos;
  });
  LogicalState values;
  for (auto& [name, tensor] : stored) {
    const size_t slash = name.rfind('/');
    const std::string io = slash == std::string::npos ? "" : name.substr(slash + 1);
    const bool input = io.starts_with("input.");
    if (!input && !io.starts_with("output.")) {
      values.emplace(map.apply(name), tensor);
      continue;
    }
    const std::string path = name.substr(0, slash);
    const int64_t slot = std::atoll(io.c_str() + io.find('.') + 1);
    if (const auto mapped = map.find(path); mapped && !input && slot == 0) {
      values.insert_or_assign(*mapped, tensor);
      continue;
    }
    for (const accuracy::NamedValue& value : accuracy::named_values(
             {.op_name = path, .input = input, .slot = slot, .has_gate = has_gate})) {
      // How groups of heads lie in a matrix only they know.
      if (value.cut != accuracy::Cut::kGroups) {
        values.emplace(value.name, cut_value(tensor, value));
      }
    }
  }
  return values;
}

}  // namespace

ReferenceRun::ReferenceRun(const std::string& folder, accuracy::NameMap map)
    : folder_(folder), is_case_(fs::exists(folder + "/trace.jsonl")), map_(std::move(map)) {
  const std::string trace = folder + (is_case_ ? "/trace.jsonl" : "/metrics.jsonl");
  config_file_ = folder + (is_case_ ? "/config.json" : "/config.yaml");
  const std::string begin = folder + "/init.safetensors";
  const CaseConfig kind = is_case_ ? case_config(config_file_) : CaseConfig::kOurReference;
  const bool needs_config =
      kind == CaseConfig::kOurReference || (kind == CaseConfig::kNone && !fs::exists(begin));
  for (const std::string& file : {trace, needs_config ? config_file_ : begin}) {
    check<IoError>(fs::exists(file), folder,
                   ": expected a replay case (config.json, trace.jsonl, init.safetensors, data/) "
                   "or the output folder of a run (config.yaml, metrics.jsonl); ",
                   fs::path(file).filename().string(), " is missing");
  }
  if (!is_case_) {
    config_ = init_configs_from_yaml(config_file_);
  } else if (kind == CaseConfig::kOurReference) {
    config_ = init_configs_from_text(
        replay_case_yaml(data::read_file(config_file_), folder, folder + "/replay"), config_file_);
  } else if (kind == CaseConfig::kNone) {
    config_file_.clear();
  }
  plot::read_metrics_lines(trace, [&](const plot::MetricsLine& line) {
    check<IoError>(line.step == steps() + 1, line.place, ": step ", line.step, " where step ",
                   steps() + 1, " was expected; a reference has all from the first");
    steps_.push_back(step_of(line.json));
  });
}

std::string ReferenceRun::data_override() const {
  return "dataset_config.step_data_dir=" + config::string_text(folder_ + "/data");
}

int64_t ReferenceRun::rows_of_step() const {
  int64_t rows = 0;
  for (int64_t rank = 0;; ++rank) {
    const std::string file = concat(folder_, "/data/step_1/rank_", rank, "/tokens.npy");
    if (!fs::exists(file)) {
      return rows;
    }
    rows += load_npy(file).size(0);
  }
}

LogicalState ReferenceRun::start_weights() const {
  return named(read_weights(folder_ + "/init.safetensors"));
}

void ReferenceRun::set_tensors(LogicalShapes tensors, const TransformerConfig& config) {
  tensors_ = std::move(tensors);
  model_ = config;
}

LogicalState ReferenceRun::named(LogicalState found) const {
  if (!map_.empty()) {
    LogicalState mapped;
    for (auto& [name, tensor] : found) {
      std::string own = map_.apply(name);
      check<ValueError>(mapped.emplace(own, std::move(tensor)).second, folder_, ": the name of ",
                        name, ", ", own, ", is that of another tensor too");
    }
    found = std::move(mapped);
  }
  return in_logical_names(std::move(found), tensors_, model_);
}

std::optional<LogicalState> ReferenceRun::state(const char* what, int64_t step) const {
  const std::string file = concat(folder_, "/", what, "_step_", step, ".safetensors");
  return fs::exists(file) ? std::optional(named(read_weights(file))) : std::nullopt;
}

std::optional<LogicalState> ReferenceRun::gradients(int64_t step) const {
  return state("grads", step);
}

std::optional<LogicalState> ReferenceRun::activations(int64_t step) const {
  const std::string file = concat(folder_, "/acts_step_", step, ".safetensors");
  return fs::exists(file) ? std::optional(in_names_of_values(read_weights(file), map_))
                          : std::nullopt;
}

std::optional<LogicalState> ReferenceRun::weights(int64_t step) const {
  const std::string last = folder_ + "/final.safetensors";
  if (is_case_ && step == steps() && fs::exists(last)) {
    return named(read_weights(last));
  }
  return state("weights", step);
}

}  // namespace tapestry
