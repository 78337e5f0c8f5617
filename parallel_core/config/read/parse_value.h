// From a node of the YAML tree to a value of a key's type.
#pragma once

#include <string>
#include <vector>

#include "parallel_core/config/schema/schema.h"
#include "parallel_core/config/yaml/raw_yaml.h"

namespace tapestry::config {

/// The node as a value of the key's type, with value aliases replaced. On a wrong type `error` says
/// what was expected and what was found, and the result is null.
Value parse_value(const Key& key, const RawNode& node, std::string& error);

}  // namespace tapestry::config
