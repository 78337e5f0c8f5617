// What the folder of a Hugging Face model says of conversations.
#pragma once

#include <ctime>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/chat/chat_template.h"

namespace tapestry::chat {

/// A template and the texts of the special tokens that it may name.
struct ChatFormat {
  std::shared_ptr<const ChatTemplate> chat_template;
  std::shared_ptr<const ChatTemplate>
      tool_template;      ///< for conversations with tools; null: the same
  std::string bos_token;  ///< empty: the folder names none
  std::string eos_token;
  /// All that are named, these two among them: "pad_token", ...
  std::vector<std::pair<std::string, std::string>> special_tokens;
  /// What `strftime_now` tells; see ChatTemplate::render.
  std::optional<std::time_t> now;

  /// The text of a conversation. `messages`: a list of {"role", "content", ...}. As in
  /// transformers, `tools` and `documents` are none unless `extra`, an object of further variables,
  /// has them, and special tokens that the folder does not name are undefined. Errors of
  /// ChatTemplate::render; ValueError if the arguments are no list and no object.
  std::string render(const Json& messages, bool add_generation_prompt) const;
  std::string render(const Json& messages,
                     bool add_generation_prompt,
                     const Json& extra,
                     GenerationMarks* marks = nullptr) const;
};

/// The files of such a folder that say it, of which there need not be any.
std::vector<std::string_view> chat_format_files();

/// From `chat_template.jinja` if there is one, else `chat_template.json`, else the `chat_template`
/// of `tokenizer_config.json`: a text, or a list of {"name", "template"}, of which `name` is taken,
/// and "tool_use" for conversations with tools.
/// Tokens are those of `tokenizer_config.json`, and of `special_tokens_map.json` where that names
/// none. Nothing if the folder has no template. IoError, with file and field, for files that are
/// larger than 64 MB, no JSON, or of another form; ValueError for a template that is refused and a
/// `name` that the list does not have.
std::optional<ChatFormat> read_chat_format(const std::string& folder,
                                           const std::string& name = "default");

}  // namespace tapestry::chat
