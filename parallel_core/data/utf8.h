// Validity of UTF-8 text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tapestry::data {

/// Whether the bytes are well-formed UTF-8 (no overlong forms, no surrogates, at most U+10FFFF).
bool is_valid_utf8(std::string_view bytes);

/// The text with each ill-formed sequence replaced by U+FFFD: one for each maximal prefix of a
/// well-formed sequence, as the Unicode standard recommends (section 3.9) and Python does.
std::string replace_invalid_utf8(std::string_view bytes);

/// The code points of a text; U+FFFD where replace_invalid_utf8 puts one.
std::vector<uint32_t> code_points(std::string_view bytes);

/// The bytes of one code point. ValueError for a surrogate or a number above U+10FFFF.
std::string utf8(uint32_t code_point);

}  // namespace tapestry::data
