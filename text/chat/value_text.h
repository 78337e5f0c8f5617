// Values as texts: str(), repr() and json.dumps().
#pragma once

#include <optional>
#include <string>

#include "text/chat/run.h"
#include "text/chat/value.h"

namespace tapestry::chat::jinja {

/// str(value), as it is put out. Fails for what Python would show with an address, such as
/// generators and macros: nobody means that.
std::string to_text(Run& run, const Value& value);
/// The same, without a copy of the value's own text.
void append_text(Run& run, std::string& out, const Value& value);
std::string repr(Run& run, const Value& value);
/// repr(float): the shortest digits that give the number back.
std::string repr_of_real(double number);

struct JsonStyle {
  bool ensure_ascii = false;
  std::optional<std::string> indent;  ///< of a level
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
};

std::string to_json(Run& run, const Value& value, const JsonStyle& style);

}  // namespace tapestry::chat::jinja
