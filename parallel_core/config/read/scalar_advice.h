// What the writer of a value that a key cannot take probably meant.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "parallel_core/config/schema/schema.h"
#include "parallel_core/config/yaml/raw_yaml.h"

namespace tapestry::config {

/// The number that a text spells in a way that is none of YAML's decimal numbers: `1_000`, `1,000`,
/// `0x10`, `10k`, `2**10`, `8*1024`, `1/8`, `10%`, `0,1`, a typographic minus. Empty if it spells
/// none.
std::optional<double> number_meant(std::string_view text);

/// The remedy for a value of the wrong form, beginning with "; ": what was probably meant, else
/// what the key takes and its default.
std::string value_advice(const Key& key, const RawNode& node);

/// True if the plain text is Python's None, where the key has no choice of that name.
bool is_none(const Key& key, const RawNode& node);

}  // namespace tapestry::config
