#include "parallel_core/training/watch/mlflow_log.h"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "autograd/io/atomic_file.h"
#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "parallel_core/config/show/render.h"
#include "parallel_core/training/log/logging.h"
#include "parallel_core/training/watch/prometheus_log.h"

namespace tapestry {

namespace {

namespace fs = std::filesystem;

constexpr double kBetweenWrites = 1;  // seconds

int64_t milliseconds_now() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// Of a run that goes on. A file that says nothing is as if it were not there: the run is a new one.
std::optional<telemetry::MlflowRunId> run_before(const std::string& output_dir) {
  std::ifstream file(MlflowLog::path_in(output_dir));
  std::ostringstream text;
  text << file.rdbuf();
  const auto json = nlohmann::json::parse(text.str(), nullptr, /*allow_exceptions=*/false);
  const auto is_name = [&](const char* key) {
    return json.is_object() && json.contains(key) && json[key].is_string() &&
           !json[key].get_ref<const std::string&>().empty() &&
           json[key].get_ref<const std::string&>().find_first_not_of("0123456789abcdef") ==
               std::string::npos;
  };
  if (!is_name("experiment_id") || !is_name("run_id")) {
    return std::nullopt;
  }
  return telemetry::MlflowRunId{.experiment = json["experiment_id"], .run = json["run_id"]};
}

telemetry::MlflowRun begin_run(const AllConfig& config, bool goes_on) {
  const std::string& output = config.training_config.output_dir;
  try {
    return telemetry::MlflowRun({.store = *config.telemetry.mlflow_dir,
                                 .experiment = config.telemetry.mlflow_experiment,
                                 .run_name = run_name(config),
                                 .source = "pretrain_gpt"},
                                goes_on ? run_before(output) : std::nullopt);
  } catch (const fs::filesystem_error& error) {
    throw IoError(concat("telemetry.mlflow_dir: ", error.what()));
  }
}

double as_double(const LogField& field) {
  return std::visit([](auto value) { return static_cast<double>(value); }, field.value);
}

}  // namespace

std::string MlflowLog::path_in(const std::string& output_dir) {
  return output_dir + "/mlflow_run.json";
}

MlflowLog::MlflowLog(const AllConfig& config,
                     const std::string& resolved_yaml,
                     std::optional<int64_t> steps_done)
    : config_(config),
      run_(begin_run(config, steps_done.has_value())),
      thread_("mlflow-files", kBetweenWrites, [this] { write(); }) {
  const std::string& output = config.training_config.output_dir;
  nlohmann::ordered_json id;
  id["experiment_id"] = run_.id().experiment;
  id["run_id"] = run_.id().run;
  write_file_atomically(path_in(output), id.dump() + "\n");
  if (steps_done) {
    run_.keep_steps_until(*steps_done);
  }
  for (const ResolvedKey& key : resolved_keys(config)) {
    if (key.origin != "default") {
      run_.param(concat(key.section, ".", key.key), key.value);
    }
  }
  run_.tag("tapestry.output_dir", fs::absolute(output).lexically_normal().string());
  run_.artifact("config.yaml", resolved_yaml);
}

MlflowLog::~MlflowLog() { close(telemetry::MlflowStatus::kFailed); }

void MlflowLog::after(FinishedStep& step) {
  const int64_t number = step.record.step;
  const int64_t now = milliseconds_now();
  const bool is_due = number % config_.telemetry.mlflow_log_interval == 0 || step.is_last;
  for (const LogField& field :
       is_due ? step_fields(step.record, step.result) : evaluation_fields(step.record)) {
    if (field.name != "step") {
      run_.metric(field.name, as_double(field), now, number);
    }
  }
  if (is_due) {
    for (const auto& values :
         {std::cref(step.record.values), std::cref(step.record.parameter_values)}) {
      for (const auto& [tag, value] : values.get()) {
        run_.metric("monitor/" + tag, value, now, number);
      }
    }
  }
  thread_.changed();
  std::string failure = take_failure();
  if (!failure.empty()) {
    step.warnings.push_back(std::move(failure));
  }
}

std::string MlflowLog::take_failure() {
  const std::lock_guard lock(mutex_);
  return std::exchange(failure_, {});
}

void MlflowLog::write() noexcept {
  std::string reason;
  try {
    run_.flush();
  } catch (const std::exception& error) {
    reason = error.what();
  }
  const std::lock_guard lock(mutex_);
  if (!std::exchange(has_failed_, !reason.empty()) && !reason.empty()) {
    failure_ = concat("telemetry.mlflow_dir: ", reason,
                      "; the training goes on, and MLflow will lack values");
  }
}

void MlflowLog::finish(telemetry::MlflowStatus status) { close(status); }

void MlflowLog::close(telemetry::MlflowStatus status) noexcept {
  if (std::exchange(ended_, true)) {
    return;
  }
  thread_.end();
  write();
  std::string failure = take_failure();
  try {
    run_.set_status(status);
  } catch (const std::exception& error) {
    failure = concat("telemetry.mlflow_dir: ", error.what());
  }
  if (!failure.empty()) {
    log_warning(failure);
  }
}

std::unique_ptr<MlflowLog> make_mlflow_log(const AllConfig& config,
                                           const std::string& resolved_yaml,
                                           std::optional<int64_t> steps_done) {
  return config.telemetry.mlflow_dir
             ? std::make_unique<MlflowLog>(config, resolved_yaml, steps_done)
             : nullptr;
}

}  // namespace tapestry
