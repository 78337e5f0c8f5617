#include "parallel_core/config/resolve/resolve.h"

namespace tapestry::config {

void resolve_telemetry(Resolution& r) {
  const TelemetryConfig& t = r.config().telemetry;
  const bool has_file = t.prometheus || t.prometheus_file;
  if (!has_file && r.sound({"telemetry.prometheus", "telemetry.prometheus_file"})) {
    r.idle("telemetry.prometheus_interval", "without prometheus or prometheus_file");
  }
  if (!t.http_port && r.sound({"telemetry.http_port"})) {
    r.idle("telemetry.http_address", "without http_port");
  }
  if (!t.mlflow_dir && r.sound({"telemetry.mlflow_dir"})) {
    for (const char* key : {"mlflow_experiment", "mlflow_log_interval"}) {
      r.idle(concat("telemetry.", key), "without mlflow_dir");
    }
  }
  if (!has_file && !t.http_port && !t.mlflow_dir &&
      r.sound({"telemetry.prometheus", "telemetry.prometheus_file", "telemetry.http_port",
               "telemetry.mlflow_dir"})) {
    r.idle("telemetry.run_name", "without prometheus, http_port or mlflow_dir");
  }
}

}  // namespace tapestry::config
