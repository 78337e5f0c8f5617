#include "parallel_core/verification/reference_run.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "parallel_core/config/golden.h"
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

AllConfig config_of(const std::string& folder, const std::string& file, bool is_case) {
  if (!is_case) {
    return init_configs_from_yaml(file);
  }
  return init_configs_from_text(
      golden_config_to_yaml(data::read_file(file), folder, folder + "/replay"), file);
}

}  // namespace

ReferenceRun::ReferenceRun(const std::string& folder)
    : folder_(folder), is_case_(fs::exists(folder + "/trace.jsonl")) {
  const std::string trace = folder + (is_case_ ? "/trace.jsonl" : "/metrics.jsonl");
  config_file_ = folder + (is_case_ ? "/config.json" : "/config.yaml");
  for (const std::string& file : {trace, config_file_}) {
    check<IoError>(fs::exists(file), folder,
                   ": expected a replay case (config.json, trace.jsonl, init.safetensors, data/) "
                   "or the output folder of a run (config.yaml, metrics.jsonl); ",
                   fs::path(file).filename().string(), " is missing");
  }
  config_ = config_of(folder, config_file_, is_case_);
  plot::read_metrics_lines(trace, [&](const plot::MetricsLine& line) {
    check<IoError>(line.step == steps() + 1, line.place, ": step ", line.step, " where step ",
                   steps() + 1, " was expected; a reference has all from the first");
    steps_.push_back(step_of(line.json));
  });
}

std::optional<LogicalState> ReferenceRun::state(const char* what, int64_t step) const {
  const std::string file = concat(folder_, "/", what, "_step_", step, ".safetensors");
  return fs::exists(file) ? std::optional(read_weights(file)) : std::nullopt;
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
    return read_weights(last);
  }
  return state("weights", step);
}

}  // namespace tapestry
