// JSON values as the tree that YAML is read into.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "parallel_core/config/yaml/raw_yaml.h"

namespace tapestry::config {

/// Every node carries `place`. Strings are strings whatever they look like. Appends to `errors` if
/// nesting is deeper than kMaxYamlDepth.
RawNode raw_node(const nlohmann::json& json, const Place& place, std::vector<std::string>& errors);

}  // namespace tapestry::config
