// How tokenizer.json cuts a text into the pieces that its model sees.
#pragma once

#include <memory>
#include <vector>

#include "text/tokenizers/huggingface/aligned_text.h"
#include "text/tokenizers/huggingface/component.h"

namespace tapestry::data::huggingface {

/// Takes pieces in order; empty ones do not come.
class PieceSink {
 public:
  virtual void piece(const Slice& piece) = 0;

 protected:
  ~PieceSink() = default;
};

/// One step. Thread-safe.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  /// Gives the pieces of `piece`, which is not empty, to `sink`; they live while it looks at them.
  /// `tracked`: somebody asks where pieces come from.
  virtual void split(const Slice& piece, bool tracked, PieceSink& sink) const = 0;
  /// Whether what it does to a piece depends on whether that begins the text.
  virtual bool looks_at_origin() const { return false; }
};

/// The steps of a `pre_tokenizer`, one behind the other.
struct PreTokenizerSteps {
  std::vector<std::unique_ptr<PreTokenizer>> steps;
  /// The last step was ByteLevel: the pieces are for a model that sees bytes. Its characters are
  /// not written out; model_of_bytes() says whether the model can do so.
  bool byte_level = false;

  /// Cuts a text that is not empty.
  void split(const Slice& text, bool tracked, PieceSink& sink) const;
};

/// The `pre_tokenizer` of tokenizer.json: Sequence, ByteLevel, Split, Digits, Metaspace,
/// Whitespace, WhitespaceSplit, Punctuation, CharDelimiterSplit, BertPreTokenizer, FixedLength. No
/// step for null. With `model_of_bytes` a last ByteLevel leaves bytes as they are. ValueError, by
/// its name, for any other.
PreTokenizerSteps make_pre_tokenizer(const Json& json, bool model_of_bytes);

/// Whether the last step is ByteLevel.
bool ends_with_byte_level(const Json& json);

}  // namespace tapestry::data::huggingface
