// Tokenizers as Hugging Face keeps them: tokenizer.json, or vocab.json and merges.txt.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizers/tokenizer.h"

namespace tapestry::data {

/// Does what the Rust library `tokenizers` does with the same file, and transformers with the files
/// beside it (apply_folder): the same ids, the same text of ids, the same places. Special tokens in
/// a text are tokens; bytes that are not UTF-8 are read as U+FFFD, one for each maximal part. What
/// the file says of truncation and padding is passed over, and so is clean_up_tokenization_spaces.
class HuggingFaceTokenizer final : public Tokenizer {
 public:
  /// `path`: a tokenizer.json, or a folder that has one, or vocab.json and merges.txt. IoError,
  /// naming the file, for files that are missing, too large or not of the form, ValueError for a
  /// component that is not implemented, by its name.
  explicit HuggingFaceTokenizer(const std::string& path);
  ~HuggingFaceTokenizer() override;

  int64_t vocab_size() const override;
  /// ValueError where a pattern of the file takes too many steps, or its model cannot say the text.
  std::vector<int32_t> encode(std::string_view text) const override;
  Encoding encode_with_spans(std::string_view text) const override;
  std::vector<int32_t> ids_before() const override;
  std::vector<int32_t> ids_after() const override;
  /// Ids that no token has, of padded vocabularies, have no text.
  std::string decode(std::span<const int32_t> ids) const override;
  std::string decode_with_special(std::span<const int32_t> ids) const override;
  std::unique_ptr<TextDecoder> text_decoder() const override;
  std::optional<int32_t> id_of(std::string_view token) const override;
  /// How the vocabulary spells an id; empty where no token has it. ValueError outside of the
  /// vocabulary.
  std::string token(int32_t id) const;
  /// Special tokens are named by tokenizer_config.json and special_tokens_map.json in the same
  /// folder, else by generation_config.json and config.json; else the end of a text is the first
  /// that there is of <|endoftext|>, </s>, <|end_of_text|> and their kin, and its beginning what
  /// the post-processor puts there.
  int32_t bos_id() const override;
  int32_t eod_id() const override;
  int32_t pad_id() const override;
  /// Patterns look over the ends of lines.
  bool separable_at_newlines() const override { return false; }
  std::string describe() const override;
  std::vector<std::string> remarks() const override;
  TokenizerIdentity identity() const override;

 private:
  struct Parts;
  std::unique_ptr<const Parts> parts_;
};

}  // namespace tapestry::data
