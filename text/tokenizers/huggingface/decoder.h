// How tokenizer.json makes text of tokens.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "text/tokenizers/huggingface/component.h"

namespace tapestry::data::huggingface {

/// A decoder at work. Tokens go in, and text comes out as soon as no later token can change it.
class DecoderRun {
 public:
  virtual ~DecoderRun() = default;
  virtual void add(std::string token) = 0;
  /// No more tokens come.
  virtual void finish() = 0;
};

/// A step of a decoder. Thread-safe.
class DecoderStep {
 public:
  virtual ~DecoderStep() = default;
  /// A run that gives what it makes to `next`. `fused`: what comes are parts of one token.
  virtual std::unique_ptr<DecoderRun> start(bool fused, DecoderRun& next) const = 0;
  /// Whether it makes one token of all.
  virtual bool fuses() const { return false; }
};

/// The `decoder` of tokenizer.json: Sequence, ByteLevel, Replace, ByteFallback, Fuse, Strip,
/// Metaspace, WordPiece, BPEDecoder. Without one, tokens are joined by spaces. ValueError, by its
/// name, for any other.
class Decoder {
 public:
  explicit Decoder(const Json& json);

  /// Text of tokens that come one by one.
  class Run {
   public:
    explicit Run(const Decoder& decoder);
    Run(Run&&) noexcept;
    Run& operator=(Run&&) noexcept;
    ~Run();
    void add(std::string token);
    void finish();
    /// The text since the last call.
    std::string take();

   private:
    class Text;
    std::unique_ptr<Text> text_;
    std::vector<std::unique_ptr<DecoderRun>> runs_;  // the last one takes the tokens
  };

 private:
  std::vector<std::unique_ptr<DecoderStep>> steps_;
};

}  // namespace tapestry::data::huggingface
