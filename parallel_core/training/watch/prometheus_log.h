// What Prometheus sees of a run: metrics.prom, and pages over HTTP.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "parallel_core/config/config.h"
#include "parallel_core/telemetry/http_server.h"
#include "parallel_core/telemetry/periodic_file.h"
#include "parallel_core/telemetry/run_metrics.h"
#include "parallel_core/training/step/step_observer.h"

namespace tapestry {

/// What a run has done before this start.
struct RunBefore {
  int64_t steps = 0;
  int64_t tokens = 0;
  int64_t samples = 0;
};

/// What the run is called: telemetry.run_name, or as the last folder of its output_dir.
std::string run_name(const AllConfig& config);

/// On rank 0. Keeps the values of the last step for two threads that write and serve them
/// (docs/monitoring.md, "Seen from outside"); a step pays for a copy of a few numbers. A port that
/// is taken, and a file that can be written no more, are warnings: the training goes on.
class PrometheusLog final : public StepObserver {
 public:
  /// IoError if the file cannot be written.
  PrometheusLog(const AllConfig& config, const telemetry::RunFacts& facts, const RunBefore& before);
  /// A run that nobody has called finished has failed.
  ~PrometheusLog() override;

  void after(FinishedStep& step) override;
  /// The run is over, by itself or on request.
  void finish(telemetry::RunState state);

 private:
  void serve(const TelemetryConfig& config);
  void close(telemetry::RunState state) noexcept;

  telemetry::SharedMetrics metrics_;
  std::unique_ptr<telemetry::PeriodicFile> file_;  // null: none
  std::unique_ptr<telemetry::HttpServer> server_;  // null: none
  bool ended_ = false;
};

/// What a configuration asks for; null if it is neither file nor port.
std::unique_ptr<PrometheusLog> make_prometheus_log(const AllConfig& config,
                                                   const telemetry::RunFacts& facts,
                                                   const RunBefore& before);

}  // namespace tapestry
