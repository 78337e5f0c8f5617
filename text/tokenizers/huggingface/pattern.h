// What splits and replaces: a text, or a regular expression.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "text/util/regular_expression.h"

namespace tapestry::data::huggingface {

/// Matching is thread-safe. Texts are valid UTF-8.
class Pattern {
 public:
  /// A regular expression in Oniguruma's syntax (pattern_syntax.h). ValueError, with the
  /// expression, for one that cannot be compiled.
  static Pattern regex(std::string_view expression);
  /// The text itself; an empty one is found before each character.
  static Pattern literal(std::string_view text);

  using Match = RegularExpression::Range;
  /// Finds one match after the other; an empty one directly behind another match is none.
  class Finder {
   public:
    Finder(const Pattern& pattern, std::string_view text);
    /// False if there is none left. ValueError where the expression takes too many steps.
    bool next(Match& match);

   private:
    bool find(Match& match);

    const Pattern& pattern_;
    std::string_view text_;
    std::optional<RegularExpression::Search> search_;
    size_t from_ = 0;
    size_t last_end_ = static_cast<size_t>(-1);
  };

  /// A text that is the same wherever it matches; empty for expressions.
  const std::string& literal_text() const { return literal_; }

 private:
  Pattern() = default;

  std::string literal_;
  std::optional<RegularExpression> expression_;  // none for a literal
};

}  // namespace tapestry::data::huggingface
