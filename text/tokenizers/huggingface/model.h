// What makes tokens of a piece.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "text/tokenizers/huggingface/component.h"
#include "text/tokenizers/huggingface/piece_cache.h"
#include "text/tokenizers/huggingface/vocabulary.h"

namespace tapestry::data::huggingface {

/// A token, and the bytes of the piece that it stands for.
struct TokenPart {
  int32_t id = 0;
  uint32_t begin = 0;
  uint32_t end = 0;
  /// Its text is that of the piece, not what the vocabulary says of its id.
  bool unknown = false;
};

/// What one thread encodes with; it is of one model.
struct ModelSpace {
  PieceCache cache;
  std::vector<TokenPart> parts;
  std::vector<int32_t> ids;
  // For merging (bpe.cpp).
  std::vector<uint32_t> next, previous, rank;
  std::vector<int32_t> product;
  std::vector<uint64_t> heap;
  // For paths (unigram.cpp).
  std::vector<double> score;
};

/// Thread-safe, as long as each thread has a ModelSpace of its own.
class Model {
 public:
  virtual ~Model() = default;
  const Vocabulary& vocabulary() const { return vocabulary_; }
  /// Appends the ids of a piece, which is not empty. ValueError for a piece with characters that
  /// the model cannot say.
  virtual void encode(std::string_view piece, ModelSpace& space, std::vector<int32_t>& ids) const;
  /// The tokens of a piece, with the bytes that they stand for, to space.parts.
  virtual void encode_parts(std::string_view piece, ModelSpace& space) const = 0;

 protected:
  explicit Model(Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {}

 private:
  Vocabulary vocabulary_;
};

/// The `model` of tokenizer.json: BPE or Unigram. ValueError, by its name, for any other. With
/// `bytes` it is to be given bytes in place of the characters that stand for them; `takes_bytes`
/// says whether it does.
struct MadeModel {
  std::unique_ptr<Model> model;
  bool takes_bytes = false;
};
MadeModel make_model(const Json& json, bool bytes);

}  // namespace tapestry::data::huggingface
