// What splits and replaces: a text, or a regular expression by PCRE2 with its JIT.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace tapestry::data::huggingface {

/// Matching is thread-safe. Texts are valid UTF-8.
class Pattern {
 public:
  /// A regular expression in Oniguruma's syntax (pattern_syntax.h). ValueError, with the
  /// expression, for one that cannot be compiled.
  static Pattern regex(std::string_view expression);
  /// The text itself; an empty one is found before each character.
  static Pattern literal(std::string_view text);

  Pattern(Pattern&&) noexcept;
  Pattern& operator=(Pattern&&) noexcept;
  ~Pattern();

  struct Match {
    size_t begin = 0;
    size_t end = 0;
  };
  /// Finds one match after the other; an empty one directly behind another match is none.
  class Finder {
   public:
    Finder(const Pattern& pattern, std::string_view text) : pattern_(pattern), text_(text) {}
    /// False if there is none left. RuntimeError where the expression takes too many steps.
    bool next(Match& match);

   private:
    const Pattern& pattern_;
    std::string_view text_;
    size_t from_ = 0;
    size_t last_end_ = static_cast<size_t>(-1);
  };

  /// A text that is the same wherever it matches; empty for expressions.
  const std::string& literal_text() const { return literal_; }

 private:
  struct Code;
  Pattern();
  bool find(std::string_view text, size_t from, Match& match) const;

  std::string literal_;
  std::unique_ptr<Code> code_;  // null for a literal
};

}  // namespace tapestry::data::huggingface
