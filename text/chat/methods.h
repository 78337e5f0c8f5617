// The methods of texts, lists and dicts.
#pragma once

#include <optional>
#include <string_view>

#include "text/chat/object.h"
#include "text/chat/run.h"
#include "text/chat/value.h"

namespace tapestry::chat::jinja {

using Method = Value (*)(Run& run, const Value& self, const Arguments& arguments);

/// Null where there is none of the name.
Method find_text_method(std::string_view name);
Method find_list_method(std::string_view name);  ///< of lists and tuples
Method find_dict_method(std::string_view name);

/// Whether any type has such a method here. A template that calls another one is refused.
bool is_known_method(std::string_view name);

/// What Python's getattr gives, a key of a dict is none: a method, or what an object has. A method
/// that Python has and we have not fails when it is called; one that changes its object is
/// undefined, as in the sandbox.
std::optional<Value> attribute_of(Run& run, const Value& value, std::string_view name);

}  // namespace tapestry::chat::jinja
