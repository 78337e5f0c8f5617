// Patterns as tokenizers write them, for Oniguruma, in the words of PCRE2.
#pragma once

#include <string>
#include <string_view>

namespace tapestry::data::huggingface {

/// A pattern in Oniguruma's Ruby syntax as one that PCRE2 (UTF, UCP, MULTILINE) reads alike:
/// - \s is Unicode's White_Space (PCRE2 adds U+180E), \w what is alphabetic, marks, digits and
///   connectors, \b lies between these and others, \h is a hexadecimal digit; \p{L}, \p{N} and
///   their kin have the characters of unicode_newer.h as well;
/// - \p{Han} is the script itself, not its extensions;
/// - x{1,3}+ repeats the group, it is not possessive; x{,3} is x{0,3}; (?m) lets a dot match a
/// newline;
/// - [a&&[^b]] is the intersection.
/// ValueError for classes inside of classes that are no intersection, and for brackets that do not
/// close; PCRE2 finds the other mistakes.
std::string pcre2_pattern(std::string_view oniguruma);

}  // namespace tapestry::data::huggingface
