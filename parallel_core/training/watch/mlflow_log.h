// What MLflow sees of a run.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "parallel_core/config/config.h"
#include "parallel_core/telemetry/mlflow_run.h"
#include "parallel_core/telemetry/periodic_thread.h"
#include "parallel_core/training/step/step_observer.h"

namespace tapestry {

/// On rank 0. Adds the run to telemetry.mlflow_dir: as parameters the keys that are not left at
/// their defaults, as metrics the single values of metrics.jsonl (step_fields) with what
/// monitor_config measures as `monitor/TAG`, config.yaml as an artifact. OUTPUT_DIR/mlflow_run.json
/// says which run it is, so that a start that goes on with the run in place goes on with it there.
///
/// A thread writes the values about once a second, and they are written before a checkpoint; what
/// cannot be written any more is a warning, once, and the training goes on.
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
  void write() noexcept;
  std::string take_failure();
  void close(telemetry::MlflowStatus status) noexcept;

  const AllConfig& config_;
  telemetry::MlflowRun run_;
  std::mutex mutex_;
  std::string failure_;  // to be told after the next step
  bool has_failed_ = false;
  bool ended_ = false;
  telemetry::PeriodicThread thread_;  // the last member: what it uses is there before and after it
};

/// What a configuration asks for; null without an mlflow_dir.
std::unique_ptr<MlflowLog> make_mlflow_log(const AllConfig& config,
                                           const std::string& resolved_yaml,
                                           std::optional<int64_t> steps_done);

}  // namespace tapestry
