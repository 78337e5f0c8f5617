// Regular expressions by which keys and files choose names.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace tapestry {

/// An expression in ECMAScript's grammar, as std::regex reads it; copies share it. std::regex takes
/// the compiler seconds wherever it is used, so it is used behind this class alone.
class RegularExpression {
 public:
  /// ValueError, "'TEXT' is no regular expression: REASON", for a text that is none.
  explicit RegularExpression(const std::string& text);
  /// REASON, or nothing for a text that is one.
  static std::string complaint(const std::string& text);

  /// Whether it matches the name as a whole.
  bool matches(std::string_view name) const;
  /// Whether it matches some part of the name.
  bool is_found_in(std::string_view name) const;
  /// The text with $1, $2, ... as the groups of a match of the whole name; nothing if there is
  /// none.
  std::optional<std::string> replacement(std::string_view name, const std::string& text) const;

 private:
  struct Compiled;
  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace tapestry
