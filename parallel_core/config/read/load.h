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

/// The configuration of a file (none if the path is empty) with the overrides, those of `options`
/// last. Errors as init_configs_from_yaml.
AllConfig load_with(const std::string& path,
                    const std::vector<Override>& overrides,
                    const LoadOptions& options);

/// A name without section that init_configs_from_args knows, besides those of keys.
struct FlatName {
  std::string_view flag;
  std::string_view key;  // "section.key", or "section.key=value" of one that takes no value
};

/// Megatron's names that are no key's, and which of several sections a key's name means.
std::span<const FlatName> flat_names();

}  // namespace tapestry::config
