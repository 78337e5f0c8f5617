// A tokenizer of any type.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "text/tokenizers/tokenizer.h"

namespace tapestry::data {

/// The types that there are, for messages.
inline constexpr const char* kTokenizerTypes = "byte, sentencepiece, character or huggingface";

bool is_tokenizer_type(std::string_view type);

/// The file of a model, where for huggingface its folder was named: the tokenizer.json in it; still
/// the folder if that has vocab.json and merges.txt instead.
std::string tokenizer_file(const std::string& type, const std::string& model);

/// Makes a tokenizer of one of these types. `model_file` is the model of the others and must be
/// empty for bytes; for huggingface it is a tokenizer.json, or a folder (huggingface_tokenizer.h).
/// ValueError for another type or a missing model, IoError for a model file that cannot be used.
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& type, const std::string& model_file);

}  // namespace tapestry::data
