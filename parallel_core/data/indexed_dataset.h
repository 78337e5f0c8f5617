// Megatron's indexed dataset: the tokens of all sequences in PREFIX.bin, lengths, byte offsets and
// document boundaries in PREFIX.idx. All numbers are little-endian.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "autograd/io/atomic_file.h"
#include "autograd/io/input_file.h"

namespace tapestry::data {

struct DocumentSources;

/// Element type of the .bin file; the values are the codes stored in the .idx file.
enum class TokenType : uint8_t {
  kUInt8 = 1,
  kInt8 = 2,
  kInt16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kUInt16 = 8
};

/// Bytes of one token.
int64_t size_of(TokenType type);

/// The type that a vocabulary is written with: u16 below 65500 ids, i32 otherwise.
TokenType token_type_for_vocabulary(int64_t vocab_size);

/// Opens PREFIX.idx or PREFIX.bin. IoError that says what may have been meant where there is none.
InputFile open_dataset_file(const std::string& prefix, const char* suffix);

/// Reads a dataset. The index is held in memory and checked completely when the object is made
/// (sizes, codes, boundaries, every sequence inside the .bin file); tokens are read on demand and
/// several threads may do so.
class IndexedDataset {
 public:
  /// `prefix` is the path without ".idx" and ".bin". IoError, naming file, offset and field, for
  /// anything malformed.
  explicit IndexedDataset(const std::string& prefix);

  const std::string& prefix() const { return prefix_; }
  TokenType token_type() const { return token_type_; }
  int64_t num_sequences() const { return static_cast<int64_t>(lengths_.size()); }
  int64_t num_documents() const { return static_cast<int64_t>(document_indices_.size()) - 1; }
  int64_t num_tokens() const { return num_tokens_; }
  /// Tokens of each sequence.
  std::span<const int32_t> sequence_lengths() const { return lengths_; }
  /// Document d is the sequences [boundaries[d], boundaries[d + 1]); two equal ones are an empty
  /// one.
  std::span<const int64_t> document_boundaries() const { return document_indices_; }
  /// Whether sequence follows sequence in the .bin file without gap, as the usual writer leaves it.
  bool contiguous() const { return contiguous_; }

  /// Appends tokens [offset, offset + count) of a sequence to `out`. IndexError if there are fewer.
  void read(int64_t sequence, int64_t offset, int64_t count, std::vector<int64_t>& out) const;
  /// All tokens of a sequence.
  std::vector<int64_t> sequence(int64_t index) const;

 private:
  void read_index();

  std::string prefix_;
  InputFile bin_;
  TokenType token_type_ = TokenType::kUInt16;
  std::vector<int32_t> lengths_;
  std::vector<int64_t> offsets_;
  std::vector<int64_t> document_indices_;
  int64_t num_tokens_ = 0;
  bool contiguous_ = true;
};

/// Writes a dataset, streaming: tokens go to the disk as they come, only the index (12 bytes a
/// sequence, 8 a document) is kept. Nothing appears under the final names before finish(); an
/// object destroyed before that leaves no file behind.
class IndexedDatasetWriter {
 public:
  /// IoError if the files cannot be made.
  IndexedDatasetWriter(const std::string& prefix, TokenType type);

  /// Appends tokens to the current sequence. ValueError if one does not fit the token type.
  void add_tokens(std::span<const int32_t> tokens);
  /// Ends the current sequence. A sequence without tokens is stored as such.
  void end_sequence();
  /// Ends the current document, which has the sequences ended since the last one; none at all is an
  /// empty document.
  void end_document();
  /// Syncs and names both files, and between them `record` (see tokenizer_record.h) as
  /// PREFIX.tokenizer.json and `sources` as PREFIX.sources.json and .npy (document_sources.h); an
  /// empty one removes what an earlier data set had. RuntimeError if a sequence or document is
  /// still open, or `sources` has another number of documents.
  void finish(std::string_view record = {}, const DocumentSources* sources = nullptr);

  int64_t num_tokens() const { return num_tokens_; }
  int64_t num_sequences() const { return static_cast<int64_t>(lengths_.size()); }
  int64_t num_documents() const { return static_cast<int64_t>(document_indices_.size()) - 1; }

 private:
  std::string prefix_;
  TokenType token_type_;
  AtomicFile bin_;
  AtomicFile idx_;
  std::vector<int32_t> lengths_;
  std::vector<int64_t> document_indices_{0};
  std::vector<char> scratch_;
  int64_t open_tokens_ = 0;
  int64_t num_tokens_ = 0;
};

}  // namespace tapestry::data
