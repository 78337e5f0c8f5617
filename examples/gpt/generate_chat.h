// Conversations with a model on a terminal.
#pragma once

#include <optional>
#include <string>

#include "examples/gpt/generate_answers.h"
#include "parallel_core/comm/process_group.h"

namespace tapestry::examples {

/// The chat template of a model's folder, told the time; nothing if it has none.
std::optional<chat::ChatFormat> chat_of(const std::string& folder);

/// Reads lines from standard input, each what the user says, and prints what the model answers, as
/// it comes, until the input ends. "/reset" begins anew. The first process reads, and tells the
/// others. A line that the template or the tokenizer refuses is reported, and not said.
void converse(Answers& answers, ProcessGroup& world);

}  // namespace tapestry::examples
