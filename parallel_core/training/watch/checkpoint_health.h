// Which checkpoints of a run are healthy, by the gradients of its token table.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "parallel_core/config/config.h"
#include "parallel_core/training/step/step_observer.h"

namespace tapestry {

inline constexpr const char* kHealthFile = "health_ckpts.json";

/// health_ckpts.json: a list of {"is_health": 0 | 1, "ckpt_name": "step_00000002"}, where 0 says
/// healthy and 1 unhealthy.
class HealthRecord {
 public:
  /// What the file holds; of two entries of a name the later counts. Nothing if there is no file;
  /// IoError if it is none of this kind.
  static HealthRecord read(const std::string& path);

  /// Empty for a checkpoint without an entry.
  std::optional<bool> is_healthy(const std::string& name) const;
  bool has_healthy() const;
  /// Adds an entry at the end, in place of one of the same name.
  void add(const std::string& name, bool healthy);
  /// Drops entries of other checkpoints.
  void keep(const std::set<std::string>& names);
  /// The last healthy one by name, if there is one.
  std::optional<std::string> newest_healthy() const;

  /// The file's text, indented by 4.
  std::string text() const;

 private:
  struct Entry {
    std::string name;
    bool healthy;
  };
  std::vector<Entry> entries_;
};

/// Where the record of a run's checkpoints lies: in health_ckpts_record_dir, else in the folder of
/// the run, which is that above `checkpoint` (a folder with checkpoints may be given too).
std::string health_record_path(const MonitorConfig& monitor, const std::string& run_folder);

/// A step's embedding local norm: on each rank of the first stage the sum of squares of the token
/// table's local gradient (ModelGradients::measure_local), over the ranks of its tensor-parallel
/// group; of these the largest, infinite if one is not finite. The same on all ranks.
class EmbeddingNorm final : public StepObserver {
 public:
  /// ValueError if no rank of the first stage has a token table. Collective. The cell outlives the
  /// object.
  explicit EmbeddingNorm(TrainOneStepCell& cell);
  StepPhase phase() const override { return StepPhase::kMonitors; }
  void after(FinishedStep& step) override;

 private:
  std::vector<std::string> tables_;
};

/// "embedding_local_norm: 251.79117", of a float32.
std::string embedding_norm_line(double value);

}  // namespace tapestry
