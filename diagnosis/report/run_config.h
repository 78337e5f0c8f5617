// config.yaml of a run, and how those of several runs differ.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace tapestry::report {

struct ConfigEntry {
  std::string section;
  std::string key;    ///< "rotary_config.rotary_base" of an entry of a mapping
  std::string value;  ///< as YAML
  std::string
      origin;  ///< "default", "run.yaml:12", "--set", ...; empty where the file does not say

  bool is_default() const { return origin == "default"; }
};

/// The entries of a config.yaml as runs write it. IoError, naming `source`, for what is no mapping
/// of sections.
std::vector<ConfigEntry> parse_config(const std::string& yaml, const std::string& source);

/// A key in the configurations of several runs.
struct ConfigRow {
  std::string section;
  std::string key;
  std::vector<std::optional<std::string>> values;  ///< of each run; empty: it has no such key
  std::vector<std::string> origins;
  bool differs = false;
  bool given = false;  ///< in some run not the default
};

/// All keys, by section, in the order of the first run that has them. The model's section, which
/// may carry several names, goes by the first run's.
std::vector<ConfigRow> compare_configs(const std::vector<std::vector<ConfigEntry>>& configs);

}  // namespace tapestry::report
