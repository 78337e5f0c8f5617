// What tokenizer.json puts around the ids of a text, and how it trims where they come from.
#pragma once

#include <cstdint>
#include <vector>

#include "text/tokenizers/huggingface/component.h"

namespace tapestry::data::huggingface {

/// The `post_processor` of tokenizer.json: Sequence, TemplateProcessing (its `single`), ByteLevel,
/// BertProcessing, RobertaProcessing. ValueError, by its name, for any other.
class PostProcessor {
 public:
  explicit PostProcessor(const Json& json);

  const std::vector<int32_t>& before() const { return before_; }
  const std::vector<int32_t>& after() const { return after_; }
  /// Each time that white space is taken from the places of tokens: whether one space before the
  /// first token is left, as a prefix may have put it there.
  const std::vector<bool>& trims() const { return trims_; }

 private:
  void add(const Component& component);
  void add_template(const Component& component);

  std::vector<int32_t> before_;
  std::vector<int32_t> after_;
  std::vector<bool> trims_;
};

}  // namespace tapestry::data::huggingface
