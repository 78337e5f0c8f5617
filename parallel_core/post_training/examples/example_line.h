// A line of a file of examples, in TRL's formats.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "autograd/io/json.h"
#include "parallel_core/post_training/examples/task_examples.h"

namespace tapestry::post_training {

/// The order of members matters to templates that print them.
using Json = nlohmann::ordered_json;

/// Most bytes of a line, and most arrays and objects inside one another in it.
inline constexpr int64_t kMaxLineBytes = int64_t{64} << 20;
inline constexpr int kMaxNesting = 100;

/// What a line says. Texts are strings, conversations arrays of messages, {"role", "content"}.
struct ExampleLine {
  bool is_conversation = false;
  Json prompt;                ///< null: there is none (kReward)
  std::vector<Json> answers;  ///< of a pair chosen and rejected; a completion; of a prompt none
  std::optional<bool> label;  ///< of an answer alone
  std::optional<double> margin;
  Json
      variables;  ///< of the template beside the messages: "tools", members of chat_template_kwargs
  std::string object;  ///< kPrompt: the JSON object on one line
};

/// Reads a line in one of the forms that `format` has. Where the prompt is inside both answers it
/// is taken out: what both begin with, of texts without a space at its end; of answers of which one
/// begins the other, all but its last letter or message. Source: TRL's extract_prompt, which
/// compares character by character, message by message. Other members are passed over, as are those
/// that are null. ValueError that begins with `place` (FILE:LINE): data::parse_json_line, members
/// that are missing or of another type, answers of two kinds or without a message in common.
ExampleLine parse_example_line(const std::string& line,
                               const std::string& place,
                               ExampleFormat format);

/// The columns of a format, for messages.
const char* columns_of(ExampleFormat format);

}  // namespace tapestry::post_training
