// A configuration as a file in one of the two spellings: that of the schema (1.x), and that of
// MindFormers 2.0.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "parallel_core/config/config.h"

namespace tapestry::config {

/// Reads a file of either spelling from its text.
using ReadText = std::function<AllConfig(const std::string& text)>;

/// Sections and keys of the schema whose values are not their defaults, with a comment for each
/// that says where it comes from. What reads back as another configuration is written in full.
std::string old_spelling(const AllConfig& config, const ReadText& read);

/// Sections and keys of MindFormers 2.0 for `data_parallel_size` ranks; what they cannot say stands
/// below `tapestry`, with a comment. `read` must read for as many ranks. The file reads back as the
/// same values; RuntimeError with the keys that would be others.
std::string new_spelling(const AllConfig& config, int64_t data_parallel_size, const ReadText& read);

}  // namespace tapestry::config
