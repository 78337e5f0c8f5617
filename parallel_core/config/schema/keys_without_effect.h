// The keys that a configuration may hold although no code reads them.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "parallel_core/config/schema/schema.h"

namespace tapestry::config {

/// The keys of a section: those that are read, and behind them those that are not; entries of a
/// mapping stand together.
std::vector<Key> with_keys_without_effect(std::string_view section, std::span<const Key> read);

}  // namespace tapestry::config
