// Filters, tests and functions that every template has.
#pragma once

#include <string>
#include <string_view>

#include "text/chat/object.h"
#include "text/chat/run.h"
#include "text/chat/value.h"

namespace tapestry::chat::jinja {

using Filter = Value (*)(Run& run, const Value& input, const Arguments& arguments);
using Test = bool (*)(Run& run, const Value& input, const Arguments& arguments);

/// Null where there is none of the name.
Filter find_filter(std::string_view name);
Test find_test(std::string_view name);
/// What is said of a filter that there is not: its name, and which there are.
std::string unknown_filter(std::string_view name);

/// range, dict, namespace, raise_exception, and strftime_now if Run says what it tells; undefined
/// for any other name.
Value global_of(Run& run, std::string_view name);

}  // namespace tapestry::chat::jinja
