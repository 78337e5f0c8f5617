// Examples for supervised fine-tuning, as people write them: one JSON object a line.
#pragma once

#include <cstdint>
#include <string>

#include "autograd/io/json.h"

namespace tapestry::sft {

/// The order of members matters to templates that print them.
using Json = nlohmann::ordered_json;

enum class ExampleKind {
  kText,      ///< {"text"}: all of it is learned
  kPrompt,    ///< {"prompt", "completion"}: the completion is learned
  kMessages,  ///< {"messages"}, perhaps {"tools"}: what the assistant says is learned
};

struct Example {
  ExampleKind kind = ExampleKind::kText;
  std::string prompt;
  std::string completion;  ///< or the text
  Json messages;           ///< objects with a string "role"
  Json tools;              ///< an array, or null
};

/// Most bytes of a line, and most arrays and objects inside one another in it.
inline constexpr int64_t kMaxLineBytes = int64_t{64} << 20;
inline constexpr int kMaxNesting = 100;

/// Reads a line. `place` (FILE:LINE) begins messages. Alpaca's {"instruction", "input", "output"}
/// (with "system" and "history") and ShareGPT's {"conversations": [{"from", "value"}]} (with
/// "system") become messages. Members that belong to no kind of example are
/// passed over, as are those that are null. ValueError as data::parse_json_line, for a
/// line with none or more than one kind of example, and for members of another type: prompt,
/// completion and text are strings, messages is an array, not empty, of objects whose "role" is a
/// string and whose "content" is a string, an array or null, or is missing.
Example parse_example(const std::string& line, const std::string& place);

}  // namespace tapestry::sft
