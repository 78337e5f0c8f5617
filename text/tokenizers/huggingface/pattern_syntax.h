// Patterns as tokenizers write them, for Oniguruma, in the words of PCRE2.
#pragma once

#include <string>
#include <string_view>

namespace tapestry::data::huggingface {

/// A pattern in Oniguruma's Ruby syntax as one that PCRE2 (UTF, UCP, MULTILINE) reads alike:
/// - classes, properties and [:names:] have the members that Oniguruma gives them
///   (character_set.h), of Unicode 16; \b lies between characters of \w and others;
/// - brackets inside of brackets are unions, [a&&[^b]] is the intersection of what stands on either
///   side; where case does not count, both cases of each member are meant;
/// - x{1,3}+ repeats the group, it is not possessive; x{,3} is x{0,3}; (?m) lets a dot match a
///   newline; \v is U+000B; a letter behind a backslash that means nothing is that letter.
/// Not known: cases of several characters (\xDF and "ss" under (?i)), marks newer than Unicode 14
/// in \X.
/// ValueError for a name or an escape that is not known and for brackets that do not close; PCRE2
/// finds the other mistakes.
std::string pcre2_pattern(std::string_view oniguruma);

}  // namespace tapestry::data::huggingface
