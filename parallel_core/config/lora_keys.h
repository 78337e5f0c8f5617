// What the texts of lora_config mean: regular expressions over the names of a model's parts.
#pragma once

#include <string>

#include "parallel_core/config/config.h"
#include "text/util/regular_expression.h"

namespace tapestry {

/// A regular expression that whole names are matched against, or what is behind one of their dots.
class NamePattern {
 public:
  /// ValueError, with `what` for the place that it comes from, if it is no regular expression.
  NamePattern(const std::string& text, const std::string& what)
      : whole_(text, what), end_("(?:.*\\.)?(?:" + text + ")", what) {}

  const std::string& text() const { return whole_.text(); }
  /// True if it matches all of `name`. ValueError if that takes too many steps.
  bool matches(const std::string& name) const { return whole_.matches(name); }
  /// True if it matches all of `name`, or all that is behind one of its dots.
  bool matches_end(const std::string& name) const { return end_.matches(name); }

 private:
  RegularExpression whole_;
  RegularExpression end_;
};

/// Whether modules_to_save mean the output layer by its own name, lm_head. Of a model whose base
/// has one matrix for the table of embeddings and the output layer, the two are then trained apart.
/// ValueError for a text that is no regular expression.
bool saves_output_layer(const LoraConfig& lora);

}  // namespace tapestry
