// Regular expressions: by which keys and files choose names (docs/expressions.md), and which split
// texts. The one seam to PCRE2.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tapestry {

/// An expression of PCRE2 (Perl's, of which Python's and ECMAScript's are all but subsets) with
/// Unicode; copies share it, and several threads may use one. What it may take is bounded wherever
/// it comes from: an expression has at most 32 KiB and groups at most 100 deep, a match a million
/// steps and 16 MiB.
class RegularExpression {
 public:
  struct Range {
    size_t begin = 0;
    size_t end = 0;
  };

  /// Over names; '$' is their end alone. `what` names the place that it comes from in messages:
  /// "lora_config.target_cells". ValueError, "WHAT: 'TEXT' is no regular expression: REASON", for a
  /// text that is none.
  explicit RegularExpression(std::string text, const std::string& what = "");
  /// Over long texts of valid UTF-8, for Search: machine code, '^' and '$' at lines, ten times the
  /// steps at a place, and processor time in proportion to the text. `to_pcre2` translates the text
  /// from the syntax that it has. ValueError, as above and from `to_pcre2`.
  static RegularExpression for_texts(std::string text, std::string (*to_pcre2)(std::string_view));
  /// REASON, or nothing for a text that is one.
  static std::string complaint(const std::string& text);

  const std::string& text() const { return text_; }

  // All throw ValueError, "WHAT: 'TEXT' cannot be matched against 'NAME': REASON", where that takes
  // too many steps.

  /// Whether it matches the name as a whole.
  bool matches(std::string_view name) const;
  /// Whether it matches some part of the name.
  bool is_found_in(std::string_view name) const;
  /// The groups of a match at the beginning of the name, 0 the whole; empty if there is none, and a
  /// group that took no part is an empty text.
  std::vector<std::string> groups_at_start(std::string_view name) const;
  /// The text with $1, ${1}, $0 and $$ replaced from a match of the whole name; nothing if there is
  /// none. ValueError for a group that the expression does not have.
  std::optional<std::string> replacement(std::string_view name, const std::string& text) const;

  /// Searches one text again and again, with an expression made for_texts().
  class Search {
   public:
    Search(const RegularExpression& expression, std::string_view text)
        : expression_(expression), text_(text) {}
    /// The first match at or behind `from`. ValueError with the reason where a match, or all of the
    /// text, takes too much.
    bool find(size_t from, Range& range);

   private:
    void spend(double seconds);
    [[noreturn]] void fail(const std::string& reason) const;

    const RegularExpression& expression_;
    std::string_view text_;
    size_t calls_ = 0;
    double spent_ = 0;  // seconds of processor time
  };

 private:
  struct Compiled;
  RegularExpression() = default;
  /// The groups of a match, 0 the whole; empty: there is none.
  std::vector<std::optional<Range>> match(std::string_view name, unsigned options) const;

  std::string text_;
  std::string place_;  // "WHAT: "
  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace tapestry
