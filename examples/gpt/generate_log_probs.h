// What `generate --logprobs K --to FILE` does: a teacher's log-probabilities for distillation.
#pragma once

#include <cstdint>
#include <string>

#include "examples/gpt/generate_answers.h"
#include "parallel_core/comm/process_group.h"
#include "parallel_core/inference/open_model.h"
#include "text/chat/chat_format.h"

namespace tapestry::examples {

struct LogProbsFile {
  std::string prompts;  ///< JSON lines: prompts to be answered, or with a completion to be scored
  std::string to;
  int64_t top_k = 1;
  double temperature = 1;
  int64_t most_tokens = 0;  ///< of a text with its answer
};

/// Whether a line of the file is a conversation, so that a chat template is needed.
bool has_conversations(const std::string& prompts);

/// Answers the prompts without a completion, then scores all texts and writes the file
/// (post_training/distil/teacher_file.h). Collective over the processes that share the model.
/// `format`: for conversations that have a completion; null: none.
void write_log_probs(const OpenModel& opened,
                     Answers& answers,
                     const chat::ChatFormat* format,
                     const LogProbsFile& file,
                     bool chat);

}  // namespace tapestry::examples
