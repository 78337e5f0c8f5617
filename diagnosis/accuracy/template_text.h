// Which template turns conversations into text, as far as files say it.
#pragma once

#include <string>
#include <string_view>

#include "parallel_core/config/config.h"

namespace tapestry::accuracy {

/// "crc64 0123456789abcdef": what tells one text from another in a row.
std::string template_mark(std::string_view text);

/// The mark of a tokenizer folder's template: chat_template.jinja, else the `chat_template` of
/// tokenizer_config.json; empty without one. IoError for a file that cannot be read.
std::string folder_template(const std::string& folder);

/// Of dataset_config.chat_template, else of the folder of the tokenizer or of the model that the
/// run starts from; empty without one. IoError as folder_template.
std::string run_template(const AllConfig& config);

}  // namespace tapestry::accuracy
