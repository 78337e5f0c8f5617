// Which keys of a configuration change bits in exact mode.
#pragma once

#include <string>
#include <string_view>

namespace tapestry::accuracy {

/// False for keys that only say how the work is divided among ranks, micro-batches and threads,
/// what is watched or written, and where files lie.
bool changes_bits(std::string_view section, std::string_view key);

}  // namespace tapestry::accuracy
