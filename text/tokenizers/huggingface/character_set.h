// A set of characters on its way from Oniguruma's words to PCRE2's.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tapestry::data::huggingface {

/// PCRE2's classes know unions alone; what else Oniguruma has (intersections, sets inside of sets,
/// negated ones) becomes alternatives and looks ahead that match one character.
class CharacterSet {
 public:
  CharacterSet() = default;  // no character
  /// What stands inside brackets: "a-z\\p{L}".
  explicit CharacterSet(std::string items) : items_(std::move(items)) {}

  bool empty() const { return items_.empty() && others_.empty(); }
  void add(const CharacterSet& other);
  CharacterSet negated() const;
  CharacterSet intersection(const CharacterSet& other) const;
  /// With the other cases of each member, for a place where case does not count.
  CharacterSet with_cases() const;

  /// An expression that matches one character of the set.
  std::string expression() const;

 private:
  std::string items_;
  std::vector<std::string> others_;  // expressions; "[^...]" for a negated list of items
};

/// The set of Oniguruma's \p{name}; ValueError for a name that is not known here.
CharacterSet property_set(std::string_view name);
/// The set of [:name:].
CharacterSet posix_set(std::string_view name);
/// \w inside of brackets. Outside Oniguruma asks a table of its own for the first 256 characters,
/// in which superscripts and fractions are word characters, too.
CharacterSet word_set();
CharacterSet word_set_outside();
CharacterSet space_set();      ///< \s: Unicode's White_Space, which PCRE2's lacks U+180E to be
CharacterSet hex_digit_set();  ///< \h

}  // namespace tapestry::data::huggingface
