// What MLflow sees of a run.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "parallel_core/config/config.h"
#include "parallel_core/telemetry/mlflow_run.h"
#include "parallel_core/training/step/step_observer.h"

namespace tapestry {

/// On rank 0. Adds the run to telemetry.mlflow_dir: as parameters the keys that are not left at
/// their defaults, as metrics the single values of metrics.jsonl (step_fields) with what
/// monitor_config measures as `monitor/TAG`, config.yaml as an artifact. OUTPUT_DIR/mlflow_run.json
/// says which run it is, so that a start that goes on with the run in place goes on with it there.
///
/// Values are written about once a second, and before a checkpoint; what cannot be written any more
/// is a warning, once, and the training goes on.
class MlflowLog final : public StepObserver {
 public:
  /// `steps_done`: of a run that goes on in place; none for one that begins. IoError. The
  /// configuration outlives the object.
  MlflowLog(const AllConfig& config,
            const std::string& resolved_yaml,
            std::optional<int64_t> steps_done);
  /// A run that nobody has called finished has failed.
  ~MlflowLog() override;

  void after(FinishedStep& step) override;
  void flush() override { write(); }
  void finish(telemetry::MlflowStatus status);

  const telemetry::MlflowRun& run() const { return run_; }

  /// The file in an output folder.
  static std::string path_in(const std::string& output_dir);

 private:
  void write();
  void end(telemetry::MlflowStatus status) noexcept;

  const AllConfig& config_;
  telemetry::MlflowRun run_;
  std::chrono::steady_clock::time_point next_write_;
  std::string failure_;  // to be told after the next step
  bool has_failed_ = false;
  bool ended_ = false;
};

/// What a configuration asks for; null without an mlflow_dir.
std::unique_ptr<MlflowLog> make_mlflow_log(const AllConfig& config,
                                           const std::string& resolved_yaml,
                                           std::optional<int64_t> steps_done);

}  // namespace tapestry
