// SentencePiece models: loading, and training of new ones.
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
#include "text/util/heartbeat.h"

namespace tapestry::data {

/// A SentencePiece model. Text that is not valid UTF-8 has the bad bytes replaced by U+FFFD.
///
/// Where tokenizer_config.json or added_tokens.json stand beside it, as in a folder of
/// transformers' LlamaTokenizer, their tokens are found in a text before the model sees what is
/// between them, and have ids behind its pieces: a stretch behind a token begins with a space of
/// the model's own unless `legacy` is false. Named pieces ("<s>") are then tokens, too, and
/// add_bos_token and add_eos_token say what is put around texts.
class SentencePieceTokenizer final : public Tokenizer {
 public:
  /// IoError if the file is missing, not a SentencePiece model, or damaged; ValueError for tokens
  /// beside it whose ids are not the next ones.
  explicit SentencePieceTokenizer(const std::string& model_file);
  ~SentencePieceTokenizer() override;

  int64_t vocab_size() const override;
  std::vector<int32_t> encode(std::string_view text) const override;
  /// Where the model normalizes the text the parts are SentencePiece's own; each byte of a
  /// character without a piece has the whole character.
  Encoding encode_with_spans(std::string_view text) const override;
  std::string decode(std::span<const int32_t> ids) const override;
  /// Each stretch between control pieces is decoded alone.
  std::string decode_with_special(std::span<const int32_t> ids) const override;
  std::unique_ptr<TextDecoder> text_decoder() const override;
  std::vector<int32_t> ids_before() const override { return before_; }
  std::vector<int32_t> ids_after() const override { return after_; }
  /// Of a token, or of a piece as the model spells it: "<s>", "\u2581the".
  std::optional<int32_t> id_of(std::string_view token) const override;
  /// The id of the piece that begins a sentence, usually "<s>".
  int32_t bos_id() const override;
  /// The id of the piece that ends a sentence, usually "</s>".
  int32_t eod_id() const override;
  int32_t pad_id() const override;
  /// The id of what has no piece; -1: none.
  int32_t unk_id() const;
  /// How the model spells a piece: "<s>". ValueError for an id outside the vocabulary.
  std::string piece(int32_t id) const;
  bool separable_at_newlines() const override { return separable_; }
  /// The files beside the model that say more of it.
  const std::vector<std::string>& files_beside() const { return files_beside_; }
  std::vector<std::string> remarks() const override { return remarks_; }
  std::string describe() const override;
  TokenizerIdentity identity() const override { return {"sentencepiece", vocab_size(), checksum_}; }

 private:
  struct Processor;
  struct Beside;
  class Decoder;
  class PieceDecoder;

  void read_folder(const std::string& bytes);
  std::optional<int32_t> find_piece(std::string_view piece) const;
  void encode_stretch(
      std::string_view text, bool first, int64_t begin, bool spans, Encoding& out) const;
  Encoding encode_valid(std::string_view text, bool spans) const;
  std::string decode_pieces(std::span<const int32_t> ids) const;
  std::string decode_tokens(std::span<const int32_t> ids, bool with_special) const;

  void check_id(int32_t id) const;

  std::unique_ptr<Processor> processor_;
  std::unique_ptr<Beside> beside_;  // null: there are no such files
  std::string model_file_;
  std::string checksum_;
  std::vector<std::string> files_beside_;
  std::vector<std::string> remarks_;
  std::vector<int32_t> before_;
  std::vector<int32_t> after_;
  int32_t bos_ = -1;
  int32_t eod_ = -1;
  int32_t pad_ = -1;
  bool separable_ = false;
};

/// What a serialized model says about how it treats text; formats of the ModelProto message.
struct SentencePieceModelInfo {
  int64_t pieces = 0;
  bool newline_is_user_defined = false;
  /// Whether a piece other than "\n" itself has a newline in it.
  bool newline_inside_piece = false;
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool has_normalization_rules = false;
  int64_t model_type = 1;  ///< 1 unigram, 2 BPE, 3 words, 4 characters
};

/// An entry of a model's vocabulary, whose id is its place.
struct SentencePiece {
  std::string text;
  float score = 0;
  int64_t type = 1;  ///< 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte
};

/// Walks through a serialized model. ValueError, with the offset, if the bytes are not one.
SentencePieceModelInfo inspect_sentencepiece_model(std::string_view bytes);

/// The vocabulary of a serialized model. ValueError, with the offset, if the bytes are not one.
std::vector<SentencePiece> sentencepiece_pieces(std::string_view bytes);

struct SentencePieceTrainingOptions {
  int64_t vocab_size = 512;
  /// Share of the text whose characters get pieces of their own; the others are encoded as bytes.
  /// None: 0.9995, or less where the vocabulary has no room for so many characters.
  std::optional<double> character_coverage;
  /// Raises vocab_size where the characters of the coverage, and a quarter as many longer pieces,
  /// do not fit.
  bool grow_vocab = false;
  /// Text beyond this is thinned out evenly: every n-th line is used.
  uint64_t max_bytes = uint64_t{256} << 20U;
  /// Told what is read and, now and then, that training goes on, which can take minutes.
  WorkReport report = nullptr;
};

struct TrainedSentencePiece {
  /// The serialized model.
  std::string model;
  /// Where it is not quite what was asked for: another size, fewer characters.
  std::vector<std::string> remarks;
};

/// Trains a byte-pair model on lines of text. White space and newlines survive encoding and
/// decoding unchanged; what the pieces do not cover is encoded as bytes. The same lines give the
/// same model. A text that has fewer pieces than vocab_size gets those that it has. ValueError if
/// there is no text, the size is out of range, or too small for a given character_coverage.
TrainedSentencePiece train_sentencepiece(const std::vector<std::string>& lines,
                                         const SentencePieceTrainingOptions& options);

/// Trains on the texts and writes the model. The result are the remarks.
std::vector<std::string> train_sentencepiece(const TextInput& input,
                                             const std::string& model_file,
                                             const SentencePieceTrainingOptions& options);

}  // namespace tapestry::data
