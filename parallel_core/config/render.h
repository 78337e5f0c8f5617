// The configuration as text for people: resolved YAML, log, help and the documentation of all keys.
#pragma once

#include <string>

#include "parallel_core/config/config.h"

namespace tapestry {

/// Every section and key with its value and, as a comment, where the value came from
/// (`gpt.yaml:12`, `default`, `--set`, `derived from ...`). Reads back as the same values; the
/// model's section keeps its name.
std::string resolved_yaml(const AllConfig& config);

/// For the log: each section's name, its keys and values indented below it.
std::string config_log_text(const AllConfig& config);

/// All keys with type, default, condition and meaning, for `--help`.
std::string render_configuration_help();

/// docs/configuration.md.
std::string render_configuration_markdown();

}  // namespace tapestry
