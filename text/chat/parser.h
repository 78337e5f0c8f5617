// From tokens to the tree.
#pragma once

#include <string>
#include <string_view>

#include "text/chat/syntax.h"

namespace tapestry::chat::jinja {

/// ValueError "NAME:LINE: ..." for what is no Jinja, what is not known here, and nesting of more
/// than kMaxSyntaxDepth.
Syntax parse(std::string_view source, const std::string& name);

}  // namespace tapestry::chat::jinja
