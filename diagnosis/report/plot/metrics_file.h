// metrics.jsonl as a file: where it is, and its lines.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace tapestry::plot {

/// The file itself, given as such or as the folder that it lies in. IoError for an unknown path and
/// for a folder without it, with folders below that have it.
std::string metrics_file(const std::string& path);

struct MetricsLine {
  int64_t step = 0;  ///< from 1 on
  const nlohmann::json& json;
  const std::string& place;  ///< file and line, for messages
};

/// Calls on_line for each line in turn; there is at least one. False if the last one lacks its end,
/// as in a file that is being written; it is left out. IoError, with file and line, for what is no
/// metrics.jsonl, and for a file without a whole line.
bool read_metrics_lines(const std::string& file_name,
                        const std::function<void(const MetricsLine& line)>& on_line);

/// A number, or one of the texts "nan", "inf" and "-inf", as which JSON has the rest of them.
std::optional<double> metrics_number(const nlohmann::json& value);

/// Names of runs: the paths without what all of them begin with ("a" and "b" of runs/a and runs/b;
/// the last folder of a single path). ValueError if a path is given twice.
std::vector<std::string> run_names(const std::vector<std::string>& paths);

}  // namespace tapestry::plot
