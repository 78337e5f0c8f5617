// A run in the files in which MLflow keeps runs ("file store").
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

namespace tapestry::telemetry {

/// Which run of a file store.
struct MlflowRunId {
  std::string experiment;  ///< digits: the name of its folder
  std::string run;         ///< 32 hexadecimal digits: the name of its folder in that
};

/// How a run is made.
struct MlflowRunOptions {
  std::string store;       ///< the folder that is usually called mlruns
  std::string experiment;  ///< by name; made if there is no active one of that name
  std::string run_name;
  std::string source;  ///< the program
};

/// RunStatus of MLflow's protocol.
enum class MlflowStatus : int { kRunning = 1, kFinished = 3, kFailed = 4, kKilled = 5 };

/// Writes one run below STORE/EXPERIMENT_ID/RUN_ID: meta.yaml, params/KEY, tags/KEY, artifacts/,
/// and metrics/KEY with lines "milliseconds value step", which are only appended, so that MLflow
/// can show them while they grow and whatever kills the run. All functions but metric(), which
/// keeps values in memory until flush(), throw IoError. Source: mlflow/store/tracking/file_store.py
/// of MLflow 2.x.
class MlflowRun {
 public:
  /// Goes on with a run, if it is given and its folder is there, else makes one.
  explicit MlflowRun(const MlflowRunOptions& options,
                     const std::optional<MlflowRunId>& before = {});

  const MlflowRunId& id() const { return id_; }
  const std::string& folder() const { return folder_; }
  bool goes_on() const { return goes_on_; }

  /// Drops values of later steps, and lines that were cut off, of a run that goes on.
  void keep_steps_until(int64_t step);
  void param(const std::string& key, std::string_view value) const;
  void tag(const std::string& key, std::string_view value) const;
  /// Into its folder of artifacts, unless the experiment keeps them elsewhere.
  void artifact(const std::string& name, std::string_view content) const;
  void metric(const std::string& key, double value, int64_t milliseconds, int64_t step);
  void flush();
  /// The state that MLflow shows, and when the run ended.
  void set_status(MlflowStatus status);

  /// A name that MLflow takes: letters, digits, `_`, `-`, `.`, ` ` and `/` stay, the rest is `_`.
  static std::string valid_key(std::string_view name);

 private:
  void make(const MlflowRunOptions& options);
  void go_on();
  void write_meta(MlflowStatus status, std::optional<int64_t> end) const;

  MlflowRunId id_;
  std::string folder_;
  bool goes_on_ = false;
  std::string run_name_;
  std::string user_;
  std::string artifacts_;  // its URI
  int64_t start_ = 0;      // milliseconds since 1970
  std::mutex writing_;     // what was taken from pending_ is written before more is
  std::mutex adding_;
  std::map<std::string, std::string> pending_;  // lines by key
};

}  // namespace tapestry::telemetry
