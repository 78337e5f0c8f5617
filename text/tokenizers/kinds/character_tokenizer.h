// One id for each character that occurs in a text, as in nanoGPT's character example.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/sources/text_source.h"
#include "text/tokenizers/tokenizer.h"

namespace tapestry::data {

/// The characters (code points) of a text in increasing order have the ids 0, 1, ...; the id after
/// the last one ends a document. Bytes that are not UTF-8 are read as U+FFFD.
///
/// The model file is JSON: {"tokenizer_type": "character", "characters": ["\n", " ", "!", ...]}.
class CharacterTokenizer final : public Tokenizer {
 public:
  /// IoError if the file is missing or not of this form: characters that are not one code point
  /// each, or not in increasing order.
  explicit CharacterTokenizer(const std::string& model_file);

  int64_t vocab_size() const override { return static_cast<int64_t>(characters_.size()) + 1; }
  /// ValueError, naming it, for a character without an id.
  std::vector<int32_t> encode(std::string_view text) const override;
  Encoding encode_with_spans(std::string_view text) const override;
  std::string decode(std::span<const int32_t> ids) const override;
  /// As decode(): the end of a document has no spelling.
  std::string decode_with_special(std::span<const int32_t> ids) const override {
    return decode(ids);
  }
  std::unique_ptr<TextDecoder> text_decoder() const override;
  /// Of a text of one character.
  std::optional<int32_t> id_of(std::string_view token) const override;
  int32_t eod_id() const override { return static_cast<int32_t>(characters_.size()); }
  int32_t pad_id() const override { return -1; }
  bool separable_at_newlines() const override { return true; }
  std::string describe() const override;
  TokenizerIdentity identity() const override { return {"character", vocab_size(), checksum_}; }

 private:
  // ValueError, naming the character, if there is none.
  int32_t id_of_character(uint32_t point) const;

  std::string model_file_;
  std::string checksum_;
  std::vector<uint32_t> characters_;
};

/// Writes the model file of all characters of the input. ValueError if it has no text, and as
/// read_documents.
void train_character_tokenizer(const TextInput& input, const std::string& model_file);

}  // namespace tapestry::data
