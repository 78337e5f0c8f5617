// Which keys of rotary_config a rope_type reads.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tapestry::config {

/// Types that read a key of rotary_config, by its last name ("beta_fast"); empty for those that
/// every type reads.
std::vector<std::string_view> rope_types_with(std::string_view key);

/// Whether a key of rotary_config changes what a rotation of this type does.
bool rope_type_reads(std::string_view rope_type, std::string_view key);

}  // namespace tapestry::config
