// Text to token ids and back.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tapestry::data {

/// What tells one tokenizer from another.
struct TokenizerIdentity {
  /// "byte", "sentencepiece", "character" or "huggingface".
  std::string type;
  int64_t vocab_size = 0;
  /// CRC-64 of the model file (checksum.h), of vocab.json and merges.txt one after the other; empty
  /// for bytes, which have none.
  std::string checksum;
  bool operator==(const TokenizerIdentity&) const = default;
};

/// "sentencepiece tokenizer of 512 ids (crc64 3f8a01c25d9e7b60)".
std::string describe(const TokenizerIdentity& identity);

/// A part of a text, in bytes: [begin, end).
struct TextSpan {
  int64_t begin = 0;
  int64_t end = 0;
  bool operator==(const TextSpan&) const = default;
};

/// Ids and, for each, the part of the text that it stands for. A character that became several ids
/// is the part of each of them, so that parts may overlap; they never go back. A part is empty
/// where the tokenizer has put something in that the text does not have.
struct Encoding {
  std::vector<int32_t> ids;
  std::vector<TextSpan> spans;
};

/// The text of ids that come one by one; what TextStream (text_stream.h) is made of.
class TextDecoder {
 public:
  virtual ~TextDecoder() = default;
  /// The text that is certain now. ValueError for an id outside the vocabulary.
  virtual std::string add(int32_t id) = 0;
  /// What is left when no more come; the decoder is then as new.
  virtual std::string finish() = 0;
};

/// Encoding and decoding are thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Number of ids, special ones included.
  virtual int64_t vocab_size() const = 0;
  /// Ids of a text, without any special id.
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;
  /// The same ids, with the parts of `text` that they stand for.
  virtual Encoding encode_with_spans(std::string_view text) const = 0;
  /// Ids that a post-processor puts before and after a text where special ones are asked for; empty
  /// for tokenizers that have none. encode() does not put them there.
  virtual std::vector<int32_t> ids_before() const { return {}; }
  virtual std::vector<int32_t> ids_after() const { return {}; }
  /// The text of the ids; special ids have none. ValueError for an id outside the vocabulary.
  virtual std::string decode(std::span<const int32_t> ids) const = 0;
  /// The same with special tokens as they are spelt, where they are: "<s>".
  virtual std::string decode_with_special(std::span<const int32_t> ids) const = 0;
  /// Text as decode() gives it, while ids come. It must not outlive the tokenizer.
  virtual std::unique_ptr<TextDecoder> text_decoder() const = 0;
  /// The id of a token by how the vocabulary spells it: "<|im_end|>". None if there is no such one.
  virtual std::optional<int32_t> id_of(std::string_view token) const = 0;
  /// The id that begins a text, or -1. encode() does not put it there.
  virtual int32_t bos_id() const { return -1; }
  /// The id that ends a document, or -1.
  virtual int32_t eod_id() const = 0;
  /// The id that fills up short rows, or -1.
  virtual int32_t pad_id() const = 0;
  /// Whether encode(a + b) == encode(a) + encode(b) for every a that ends with a newline, so that a
  /// long text can be encoded in pieces.
  virtual bool separable_at_newlines() const = 0;
  /// For messages: "byte tokenizer, 257 ids".
  virtual std::string describe() const = 0;
  /// What its files say and it does not do: sentences that begin with the file.
  virtual std::vector<std::string> remarks() const { return {}; }
  virtual TokenizerIdentity identity() const = 0;
};

/// Each byte is its own id, 0 .. 255; 256 ends a document.
class ByteTokenizer final : public Tokenizer {
 public:
  static constexpr int32_t kEod = 256;

  int64_t vocab_size() const override { return kEod + 1; }
  std::vector<int32_t> encode(std::string_view text) const override;
  Encoding encode_with_spans(std::string_view text) const override;
  std::string decode(std::span<const int32_t> ids) const override;
  /// As decode(): the end of a document has no spelling.
  std::string decode_with_special(std::span<const int32_t> ids) const override {
    return decode(ids);
  }
  std::unique_ptr<TextDecoder> text_decoder() const override;
  /// Of a text of one byte.
  std::optional<int32_t> id_of(std::string_view token) const override;
  int32_t eod_id() const override { return kEod; }
  int32_t pad_id() const override { return -1; }
  bool separable_at_newlines() const override { return true; }
  std::string describe() const override;
  TokenizerIdentity identity() const override { return {"byte", vocab_size(), ""}; }
};

}  // namespace tapestry::data
