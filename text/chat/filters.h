// The filters, by what they are for; builtins.h finds them by name.
#pragma once

#include <string_view>

#include "text/chat/builtins.h"

namespace tapestry::chat::jinja {

/// upper, trim, replace, indent, tojson, int, ...
Filter find_text_filter(std::string_view name);
/// first, join, map, select, sort, ...
Filter find_sequence_filter(std::string_view name);

}  // namespace tapestry::chat::jinja
