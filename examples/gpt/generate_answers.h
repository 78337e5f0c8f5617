// What the program `generate` prints: prompts as tokens, and continuations as text or JSON.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "parallel_core/inference/generation.h"
#include "parallel_core/inference/open_model.h"
#include "parallel_core/inference/prompt_lines.h"
#include "text/chat/chat_format.h"

namespace tapestry::examples {

/// A prompt as the model has seen it, and the tokens of its answer, with the one that has ended it.
struct AnsweredPrompt {
  std::vector<int32_t> prompt;
  std::vector<int32_t> answer;
};

class Answers {
 public:
  /// `opened` outlives it. Only a process that `speaks` prints; all make the same calls.
  Answers(const OpenModel& opened,
          const GenerationOptions& sampling,
          const GenerationBatch& batch,
          std::vector<std::string> stops,
          bool speaks);

  /// For conversations: the template, and what the system says before all else ("": nothing).
  void set_chat(chat::ChatFormat format, const std::string& system);

  /// Continues all prompts and prints each continuation as soon as those before it are printed: the
  /// prompt and what follows it, of a conversation the answer alone; or, with `json`, a line.
  void print_all(const std::vector<PromptLine>& lines, bool chat, bool json);
  /// Continues all prompts and prints nothing.
  std::vector<AnsweredPrompt> answer_all(const std::vector<PromptLine>& lines, bool chat);
  /// Continues one prompt and prints its text as it comes, and the prompt before it.
  void stream(const PromptLine& line, bool chat);
  /// The answer to a conversation, printed as it comes; its text is returned. `number` is that of
  /// the answer, from 0.
  std::string answer(const nlohmann::ordered_json& messages, int64_t number);
  /// A conversation's beginning: empty, or what the system says.
  nlohmann::ordered_json new_conversation() const;

  bool speaks() const { return speaks_; }

 private:
  struct Prompt;
  Prompt prompt_of(const PromptLine& line, bool chat, int64_t number) const;
  std::string text_of_messages(const nlohmann::ordered_json& messages,
                               const nlohmann::ordered_json* tools) const;
  std::string json_line(const PromptLine& line,
                        int64_t number,
                        const Prompt& prompt,
                        const GenerationResult& result) const;
  std::string token_text(int32_t id) const;
  void show(const std::string& text) const;

  const OpenModel& opened_;
  GenerationOptions sampling_;
  std::vector<std::string> stops_;
  bool speaks_;
  TextGenerator generator_;
  std::optional<chat::ChatFormat> chat_;
  std::string system_;
};

}  // namespace tapestry::examples
