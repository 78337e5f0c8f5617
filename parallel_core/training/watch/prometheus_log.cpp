#include "parallel_core/training/watch/prometheus_log.h"

#include <filesystem>
#include <utility>

#include "autograd/tensor/error.h"
#include "parallel_core/training/log/logging.h"

namespace tapestry {

namespace {

constexpr const char* kExpositionType = "text/plain; version=0.0.4; charset=utf-8";

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1";
}

std::string address_text(const std::string& address, int port) {
  return address.find(':') == std::string::npos ? concat(address, ":", port)
                                                : concat("[", address, "]:", port);
}

// Values that a step adds up or replaces.
void take_step(const FinishedStep& step, telemetry::RunMetrics& m) {
  const StepRecord& record = step.record;
  const StepResult& result = step.result;
  m.last_step_time = telemetry::unix_seconds();
  m.step = record.step;
  m.steps_here += 1;
  m.epoch = record.epoch;
  m.tokens += result.tokens;
  m.samples += result.sequences;
  m.skipped += result.skipped || result.set_aside || !result.finite ? 1 : 0;
  m.spikes += result.norm_is_spike ? 1 : 0;
  m.not_finite += result.finite ? 0 : 1;
  m.step_seconds = record.step_time_ms / 1000;
  m.loss = result.loss;
  m.learning_rate = result.lr.empty() ? 0 : result.lr.front();
  m.gradient_norm = result.grad_norm;
  m.loss_scale = result.loss_scale;
  m.memory = record.memory;
  if (record.eval_loss) {
    m.validation = {.loss = *record.eval_loss, .step = record.step};
  }
  if (record.test_loss) {
    m.test = {.loss = *record.test_loss, .step = record.step};
  }
}

}  // namespace

std::string run_name(const AllConfig& config) {
  if (config.telemetry.run_name) {
    return *config.telemetry.run_name;
  }
  namespace fs = std::filesystem;
  fs::path folder = fs::absolute(config.training_config.output_dir).lexically_normal();
  if (!folder.has_filename()) {  // "runs/a/"
    folder = folder.parent_path();
  }
  return folder.filename().string();
}

PrometheusLog::PrometheusLog(const AllConfig& config,
                             const telemetry::RunFacts& facts,
                             const RunBefore& before)
    : metrics_(facts) {
  metrics_.change([&](telemetry::RunMetrics& m) {
    m.started = telemetry::unix_seconds();
    m.last_step_time = m.started;
    m.step = before.steps;
    m.tokens = before.tokens;
    m.samples = before.samples;
  });
  const TelemetryConfig& asked = config.telemetry;
  if (asked.prometheus || asked.prometheus_file) {
    file_ = std::make_unique<telemetry::PeriodicFile>(
        asked.prometheus_file.value_or(config.training_config.output_dir + "/metrics.prom"),
        asked.prometheus_interval, [this] { return metrics_.exposition(); });
  }
  if (asked.http_port) {
    serve(asked);
  }
}

PrometheusLog::~PrometheusLog() { close(telemetry::RunState::kFailed); }

// A run that goes on by itself on another host, or beside another one, must not end for its port.
void PrometheusLog::serve(const TelemetryConfig& config) {
  const auto port = static_cast<int>(*config.http_port);
  const auto health = [this] { return metrics_.health(); };
  try {
    server_ = std::make_unique<telemetry::HttpServer>(
        config.http_address, port,
        std::vector<telemetry::HttpPage>{
            {"/metrics", kExpositionType, [this] { return metrics_.exposition(); }},
            {"/healthz", "text/plain; charset=utf-8", health}});
  } catch (const IoError& error) {
    log_warning(
        concat("telemetry.http_port: ", error.what(),
               "; the run goes on without it. Give each run of a host a port of its own, or "
               "0 for one that is free"));
    return;
  }
  log_info(
      concat("metrics at http://", address_text(config.http_address, server_->port()), "/metrics"));
  if (!is_loopback(config.http_address)) {
    log_warning(concat("telemetry.http_address ", config.http_address,
                       ": whoever reaches this host at that address can read the run's metrics"));
  }
}

void PrometheusLog::after(FinishedStep& step) {
  metrics_.change([&](telemetry::RunMetrics& m) { take_step(step, m); });
  if (file_ == nullptr) {
    return;
  }
  file_->changed();
  const std::string failure = file_->take_failure();
  if (!failure.empty()) {
    step.warnings.push_back(
        concat("telemetry: ", failure, "; the training goes on, and the file is tried again"));
  }
}

void PrometheusLog::finish(telemetry::RunState state) { close(state); }

void PrometheusLog::close(telemetry::RunState state) noexcept {
  if (std::exchange(ended_, true)) {
    return;
  }
  metrics_.change([&](telemetry::RunMetrics& m) { m.state = state; });
  server_.reset();
  if (file_ != nullptr) {
    file_->finish();
  }
}

std::unique_ptr<PrometheusLog> make_prometheus_log(const AllConfig& config,
                                                   const telemetry::RunFacts& facts,
                                                   const RunBefore& before) {
  const TelemetryConfig& asked = config.telemetry;
  return asked.prometheus || asked.prometheus_file || asked.http_port
             ? std::make_unique<PrometheusLog>(config, facts, before)
             : nullptr;
}

}  // namespace tapestry
