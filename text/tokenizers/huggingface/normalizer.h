// What tokenizer.json does to a text before it is split.
#pragma once

#include <memory>

#include "text/tokenizers/huggingface/aligned_text.h"
#include "text/tokenizers/huggingface/component.h"

namespace tapestry::data::huggingface {

/// Thread-safe.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  virtual void apply(AlignedText& text) const = 0;
};

/// The `normalizer` of tokenizer.json: Sequence, NFC, NFD, NFKC, NFKD, Lowercase, StripAccents,
/// Strip, Prepend, Replace, ByteLevel, Nmt, BertNormalizer, Precompiled. Null for null. ValueError,
/// by its name, for any other.
std::unique_ptr<Normalizer> make_normalizer(const Json& json);

/// SentencePiece's own rules, `precompiled_charsmap`; precompiled.cpp.
std::unique_ptr<Normalizer> make_precompiled_normalizer(const Component& component);

}  // namespace tapestry::data::huggingface
