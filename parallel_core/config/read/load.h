// Reading a configuration whose overrides were written in another way than --set.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "parallel_core/config/config.h"

namespace tapestry::config {

/// One value that goes before the file.
struct Override {
  std::string text;   // "section.key=value", the value in YAML
  std::string place;  // how it was written, for messages: "--lr 1e-4"
};

/// What the words of a command line ask for.
struct CommandLine {
  std::string path;  // of --config_path; empty without
  std::vector<Override> overrides;
};

/// Reads the words that init_configs_from_args takes. ConfigError with all that is wrong with them.
CommandLine read_command_line(const std::vector<std::string>& words);

/// A name without section that init_configs_from_args knows, besides those of keys.
struct FlatName {
  std::string_view flag;
  std::string_view key;  // "section.key", or "section.key=value" of one that takes no value
};

/// Megatron's names that are no key's, and which of several sections a key's name means.
std::span<const FlatName> flat_names();

}  // namespace tapestry::config
