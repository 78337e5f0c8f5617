// Letters and numbers of Unicode 15 and 16, which PCRE2 10.42 and utf8proc 2.8 do not know.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tapestry::data::huggingface {

/// The ranges of a general category ("L", "N", or "Lu", "Nd", ...) that are new since Unicode 14,
/// as PCRE2 reads them inside brackets: "\x{1C89}-\x{1C8A}...". Empty for another category.
std::string newer_ranges(std::string_view category);

/// The general category, "Lo" for example, of a code point that is new since Unicode 14 and a
/// letter or a number; null for others.
const char* newer_category(uint32_t code_point);

}  // namespace tapestry::data::huggingface
