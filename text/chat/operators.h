// What Python's operators do with values. What a type does not have fails, as Python raises.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "text/chat/object.h"
#include "text/chat/run.h"
#include "text/chat/value.h"

namespace tapestry::chat::jinja {

enum class BinaryOperator { kAdd, kSubtract, kMultiply, kDivide, kFloorDivide, kModulo, kPower };

Value apply(Run& run, BinaryOperator op, const Value& left, const Value& right);
Value negate(Run& run, const Value& value);
Value plus(Run& run, const Value& value);

bool equal(Run& run, const Value& a, const Value& b);
/// a < b; of numbers, texts, lists and tuples.
bool less(Run& run, const Value& a, const Value& b);
/// item in container.
bool contains(Run& run, const Value& container, const Value& item);

/// What `for` goes through, a copy; an iterator is used up.
Values items_of(Run& run, const Value& value);
/// len(value).
int64_t length_of(Run& run, const Value& value);

/// value[key]; undefined where there is none, as in Jinja.
Value get_item(Run& run, const Value& value, const Value& key);
/// value.name: the type's own methods first, then the key.
Value get_attribute(Run& run, const Value& value, std::string_view name);
/// value[start:stop:step]; None where one is left out.
Value get_slice(
    Run& run, const Value& value, const Value& start, const Value& stop, const Value& step);

/// Calls what is callable.
Value call(Run& run, const Value& callee, const Arguments& arguments);

/// Fails where an undefined value is used as if it were one.
[[noreturn]] void fail_undefined(Run& run, const Value& value);

/// The arguments of natives. `what` names argument and function.
const std::string& expect_text(Run& run, const Value& value, std::string_view what);
int64_t expect_integer(Run& run, const Value& value, std::string_view what);

}  // namespace tapestry::chat::jinja
