// How examples become text and tokens: the tokenizer of a run, the format of its conversations.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "parallel_core/config/config.h"
#include "parallel_core/training/data/run_data.h"
#include "text/chat/chat_format.h"
#include "text/tokenizers/tokenizer.h"

namespace tapestry {

/// The tokenizer of dataset_config, whose file and remarks `run` gets. `key` is what names the
/// examples, for messages. ValueError where none is named, for the weights' missing one
/// (check_tokenizer_of_weights), and for more ids than the model has.
std::unique_ptr<data::Tokenizer> tokenizer_of_examples(const AllConfig& config,
                                                       const std::string& key,
                                                       RunData& run);

struct FoundChatFormat {
  std::optional<chat::ChatFormat> format;
  bool is_built_in = false;
  std::string why_none;   ///< what is wrong with the one that there is
  std::string chat_date;  ///< what it is told; empty where it does not ask
};

/// What writes conversations among the examples as text: dataset_config.chat_template, else what
/// the folder of the tokenizer has, else ChatML. None where the folder's cannot be used. A template
/// that asks for the day is told dataset_config.chat_date, else `day`, "YYYY-MM-DD".
FoundChatFormat find_chat_format(const AllConfig& config,
                                 const data::Tokenizer& tokenizer,
                                 const std::string& day);

/// CRC-64 of templates and special tokens; empty without a format.
std::string chat_format_checksum(const std::optional<chat::ChatFormat>& format);

/// Today, "YYYY-MM-DD".
std::string local_day();

/// The format alone, told today.
std::optional<chat::ChatFormat> chat_format_of_examples(const AllConfig& config,
                                                        const data::Tokenizer& tokenizer);

}  // namespace tapestry
