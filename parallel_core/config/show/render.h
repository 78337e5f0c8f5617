// The configuration as text for people: resolved YAML, log, help and the documentation of all keys.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "parallel_core/config/config.h"

namespace tapestry {

/// Every section and key with its value and, as a comment, where the value came from
/// (`gpt.yaml:12`, `default`, `--set`, `derived from ...`). Reads back as the same values, but for
/// from_hf, whose folder is not needed again; the model's section keeps its name.
std::string resolved_yaml(const AllConfig& config);

/// A line of resolved_yaml.
struct ResolvedKey {
  std::string section;
  std::string key;     ///< "rotary_config.rotary_base" of an entry of a mapping
  std::string value;   ///< as YAML; empty of a mapping that has entries
  std::string origin;  ///< as above
};

/// The same in parts.
std::vector<ResolvedKey> resolved_keys(const AllConfig& config);

/// For the log: each section's name, its keys and values indented below it.
std::string config_log_text(const AllConfig& config);

/// "key=value, ..." of what was given and is not the default, by section; of keys without a default
/// only those of mappings.
std::vector<std::pair<std::string, std::string>> changed_keys(const AllConfig& config);

/// The sections, a line each, for `--help`.
std::string render_sections_help();

/// The keys of a section with type, default, condition and meaning, for `--help SECTION`; those
/// that another topic names (find_topic), in every section that has one. ValueError with the
/// nearest name for a topic that names none.
std::string render_configuration_help(const std::string& topic);

/// docs/configuration.md.
std::string render_configuration_markdown();

}  // namespace tapestry
