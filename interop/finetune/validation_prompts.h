// Examples as questions to a model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel_core/data/token_dataset.h"
#include "text/chat/chat_format.h"
#include "text/tokenizers/tokenizer.h"

namespace tapestry {

/// What a model is asked, and what the example has as its answer.
struct ValidationPrompt {
  std::string text;  ///< as people read it
  std::string expected;
  std::vector<int32_t> ids;  ///< what the model gets
};

/// The first `count` examples of the data set that have an answer: a prompt with its completion, or
/// a conversation up to the last thing that the assistant says. `format` as in
/// sft::answered_texts. Reads the lines that the data set's rows come from. Errors as
/// data::LineReader and sft::parse_example.
std::vector<ValidationPrompt> validation_prompts(const data::TokenDataset& examples,
                                                 const data::Tokenizer& tokenizer,
                                                 const chat::ChatFormat* format,
                                                 int64_t count);

}  // namespace tapestry
