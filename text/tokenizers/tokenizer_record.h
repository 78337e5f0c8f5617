// What is written down beside a data set of the tokenizer that made it.
#pragma once

#include <optional>
#include <string>

#include "text/tokenizers/tokenizer.h"

namespace tapestry::data {

/// The file PREFIX.tokenizer.json: {"tokenizer_type", "vocab_size", "crc64", "tokenizer_model"};
/// the last two are missing for bytes.
struct TokenizerRecord {
  TokenizerIdentity tokenizer;
  /// The model file, relative to the folder of the data set; empty for bytes.
  std::string model;
  bool operator==(const TokenizerRecord&) const = default;
};

std::string tokenizer_record_path(const std::string& prefix);

/// The record of a data set that `tokenizer`, read from `model_file`, makes.
TokenizerRecord make_tokenizer_record(const std::string& prefix,
                                      const Tokenizer& tokenizer,
                                      const std::string& model_file);

std::string tokenizer_record_text(const TokenizerRecord& record);

/// The record of a data set; none if it has none, as those of other programs. IoError if the file
/// is not of this form.
std::optional<TokenizerRecord> read_tokenizer_record(const std::string& prefix);

/// Where the record's model file is, seen from the current folder; empty for bytes.
std::string recorded_model_path(const std::string& prefix, const TokenizerRecord& record);

}  // namespace tapestry::data
