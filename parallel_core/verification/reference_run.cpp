#include "parallel_core/verification/reference_run.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>

#include "autograd/io/json.h"
#include "autograd/io/tensor_io.h"
#include "autograd/tensor/error.h"
#include "parallel_core/config/golden.h"
#include "parallel_core/config/value.h"
#include "parallel_core/data/file.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/plot/metrics_file.h"

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

std::optional<double> number_of(const Json& line, const char* key) {
  const auto found = line.find(key);
  return found == line.end() ? std::nullopt : plot::metrics_number(*found);
}

ReferenceStep step_of(const Json& line) {
  ReferenceStep step{.loss = number_of(line, "loss"),
                     .grad_norm = number_of(line, "grad_norm"),
                     .loss_tokens = number_of(line, "loss_tokens"),
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
        golden_config_to_yaml(data::read_file(config_file_), folder, folder + "/replay"),
        config_file_);
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
  return state("acts", step);
}

std::optional<LogicalState> ReferenceRun::weights(int64_t step) const {
  const std::string last = folder_ + "/final.safetensors";
  if (is_case_ && step == steps() && fs::exists(last)) {
    return named(read_weights(last));
  }
  return state("weights", step);
}

}  // namespace tapestry
