// Text to token ids and back.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tapestry::data {

/// What tells one tokenizer from another.
struct TokenizerIdentity {
  /// "byte", "sentencepiece" or "character".
  std::string type;
  int64_t vocab_size = 0;
  /// CRC-64 of the model file (checksum.h); empty for bytes, which have none.
  std::string checksum;
  bool operator==(const TokenizerIdentity&) const = default;
};

/// "sentencepiece tokenizer of 512 ids (crc64 3f8a01c25d9e7b60)".
std::string describe(const TokenizerIdentity& identity);

/// Encoding and decoding are thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Number of ids, special ones included.
  virtual int64_t vocab_size() const = 0;
  /// Ids of a text, without any special id.
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;
  /// The text of the ids; special ids have none. ValueError for an id outside the vocabulary.
  virtual std::string decode(std::span<const int32_t> ids) const = 0;
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
  virtual TokenizerIdentity identity() const = 0;
};

/// Each byte is its own id, 0 .. 255; 256 ends a document.
class ByteTokenizer final : public Tokenizer {
 public:
  static constexpr int32_t kEod = 256;

  int64_t vocab_size() const override { return kEod + 1; }
  std::vector<int32_t> encode(std::string_view text) const override;
  std::string decode(std::span<const int32_t> ids) const override;
  int32_t eod_id() const override { return kEod; }
  int32_t pad_id() const override { return -1; }
  bool separable_at_newlines() const override { return true; }
  std::string describe() const override;
  TokenizerIdentity identity() const override { return {"byte", vocab_size(), ""}; }
};

/// Makes a tokenizer of type "byte", "sentencepiece" or "character". `model_file` is the model of
/// the latter two and must be empty for bytes. ValueError for another type or a missing model,
/// IoError for a model file that cannot be used.
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& type, const std::string& model_file);

}  // namespace tapestry::data
