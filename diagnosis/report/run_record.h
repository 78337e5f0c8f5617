// What is known of a run from the files of its output folder.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "diagnosis/report/envelope.h"
#include "diagnosis/report/run_config.h"
#include "diagnosis/report/samples.h"

namespace tapestry::report {

/// A checkpoint that health_ckpts.json speaks of.
struct CheckpointHealth {
  std::string name;
  bool healthy = false;
};

/// Bytes of one kind of memory after the last step, and the most since the start.
struct MemoryOfKind {
  std::string kind;
  double current_bytes = 0;
  double peak_bytes = 0;
};

inline constexpr size_t kRanksOfARecord = 64;

struct RunRecord {
  std::string name;
  std::string folder;          ///< of its metrics.jsonl
  std::vector<int64_t> steps;  ///< ascending, at least one
  /// Of each number in a line of metrics.jsonl its values at these steps, NaN where a line does not
  /// have it or it is not finite. "bubble/measured" is a number in the object "bubble"; of a list,
  /// "lr" is the first number, "lr/1" the second one where it ever differs from the first;
  /// "monitor/TAG" is what a monitor says of the run, "ranks/TAG/R" what it says of rank R, of the
  /// first kRanksOfARecord ranks.
  std::map<std::string, std::vector<double>> columns;
  /// Of other objects of numbers, by their names, such as grad_norms, each number's course; and of
  /// what monitors say of single parameters, such as local_norm.
  std::map<std::string, std::map<std::string, Envelope>> tables;
  std::vector<MemoryOfKind> memory;
  /// Steps without an update: gradients that were not finite, and those skipped for their norm.
  std::vector<int64_t> not_finite;
  std::vector<int64_t> skipped;
  std::vector<CheckpointHealth> health;  ///< in the order of the file, the last word on each
  std::vector<ConfigEntry> config;       ///< empty: not known
  LastSamples samples;                   ///< of a run that samples completions
  std::vector<std::string> notes;        ///< what was left out, in words

  /// The column, or none.
  const std::vector<double>* column(const std::string& name) const;
};

/// The runs in the output folders, or metrics.jsonl, of `paths`, with names (plot::run_names). A
/// step that a file has twice was trained again from a checkpoint: the later lines replace the
/// earlier ones from there on; where the steps start over as a whole, another run begins, "part
/// 2". A last line without its end, of a run that is writing it, is left out and noted. What a
/// folder has beside metrics.jsonl may be missing, and is not read unless `with_folders`. IoError,
/// with file and line: unknown path, folder without metrics.jsonl, no steps, other content;
/// ValueError if a path is given twice.
std::vector<RunRecord> read_run_records(const std::vector<std::string>& paths,
                                        bool with_folders = true);

}  // namespace tapestry::report
