// Reading a configuration whose overrides were written in another way than --set.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "parallel_core/config/config.h"

namespace tapestry::config {

/// What places of overrides by --set begin with.
inline constexpr std::string_view kSetPlace = "--set ";

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
/// `beside_file`: they go before a file, which may say what they leave out, even without
/// --config_path.
CommandLine read_command_line(const std::vector<std::string>& words, bool beside_file = false);

/// Whether such a word may be called so: "lr", "train-iters", "model_config.num_layers".
bool is_flag(std::string_view name);

/// Reads overrides of LoadOptions that are such words with their values, "--lr 1e-3" or
/// "--lr=1e-3". ConfigError as read_command_line.
CommandLine read_flags(const std::vector<std::string>& flags);

/// ConfigError if one of the overrides is such a word, another one "section.key=value", and they
/// give a key different values.
void check_flags_agree(const std::vector<std::string>& overrides);

/// A name without section that init_configs_from_args knows, besides those of keys.
struct FlatName {
  std::string_view flag;
  std::string_view key;  // "section.key", or "section.key=value" of one that takes no value
};

/// Megatron's names that are no key's, and which of several sections a key's name means.
std::span<const FlatName> flat_names();

}  // namespace tapestry::config
