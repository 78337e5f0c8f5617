// Prompts from a file of JSON lines.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace tapestry {

/// One line: {"prompt": TEXT} or {"messages": [{"role", "content"}, ...], "tools": [...]}, and what
/// it wants otherwise than the others. Other keys have no meaning here.
struct PromptLine {
  int64_t line = 0;                                        ///< from 1
  std::optional<std::string> prompt;                       ///< a text to continue
  std::shared_ptr<const nlohmann::ordered_json> messages;  ///< or a conversation; null: none
  std::shared_ptr<const nlohmann::ordered_json> tools;     ///< for its template; null: none
  std::shared_ptr<const nlohmann::ordered_json>
      id;  ///< "id" of the line, for its answer; null: none
  std::optional<int64_t> seed;
  std::optional<int64_t> max_new_tokens;
};

/// A line of such a file. `place` is FILE:LINE. Errors as read_prompt_lines().
PromptLine parse_prompt_line(const std::string& text, int64_t number, const std::string& place);

/// The lines of a file; empty ones are passed over. IoError if it cannot be read; ValueError, with
/// FILE:LINE, for a line that is no JSON object, that has neither a prompt nor messages, or both,
/// and for a key of another type; and for a file without prompts.
std::vector<PromptLine> read_prompt_lines(const std::string& file);

}  // namespace tapestry
