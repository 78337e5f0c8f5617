// Regular expressions by which keys and files choose names; docs/expressions.md.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/util/pcre2_code.h"

namespace tapestry {

/// An expression of PCRE2 (Perl's, of which Python's and ECMAScript's are all but subsets) over
/// names; copies share it, and several threads may use one. What matching may take is bounded.
class RegularExpression {
 public:
  /// `what` names the place that it comes from in messages: "lora_config.target_cells". ValueError,
  /// "WHAT: 'TEXT' is no regular expression: REASON", for a text that is none.
  explicit RegularExpression(std::string text, const std::string& what = "");
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
  /// The text with $1, $2, ... as the groups of a match of the whole name; nothing if there is
  /// none. ValueError for a group that the expression does not have.
  std::optional<std::string> replacement(std::string_view name, const std::string& text) const;

 private:
  std::vector<std::optional<Pcre2Code::Range>> match(std::string_view name,
                                                     Pcre2Code::Where where) const;

  std::string text_;
  std::string place_;  // "WHAT: "
  Pcre2Code code_;
};

}  // namespace tapestry
