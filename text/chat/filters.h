// The filters, by what they are for; builtins.h finds them by name.
#pragma once

#include <span>
#include <string_view>
#include <utility>

#include "text/chat/builtins.h"

namespace tapestry::chat::jinja {

using NamedFilter = std::pair<std::string_view, Filter>;

/// upper, trim, replace, indent, tojson, int, ...
std::span<const NamedFilter> all_text_filters();
/// first, join, map, select, sort, ...
std::span<const NamedFilter> all_sequence_filters();

}  // namespace tapestry::chat::jinja
