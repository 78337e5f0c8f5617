// What Unicode 15 and 16 added, which PCRE2 10.42 and utf8proc 2.8 do not know. Oniguruma 6.9.10,
// as the library `tokenizers` has it, is of Unicode 16.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tapestry::data::huggingface {

/// The ranges of a general category ("L", "N", or "Lu", "Nd", ...) that are new since Unicode 14,
/// as PCRE2 reads them inside brackets: "\x{1C89}-\x{1C8A}...". Empty for another category; all
/// of them for "".
std::string newer_ranges(std::string_view category);

/// The general category, "Lo" for example, of a code point that is new since Unicode 14 or has
/// another one since; null for others.
const char* newer_category(uint32_t code_point);

/// Pairs of cases that are new: the first and the last upper case, the first lower case.
inline constexpr uint32_t kNewerCases[][3] = {
    {0x1C89, 0x1C89, 0x1C8A}, {0xA7CB, 0xA7CB, 0x264}, {0xA7CC, 0xA7CC, 0xA7CD},
    {0xA7DA, 0xA7DA, 0xA7DB}, {0xA7DC, 0xA7DC, 0x19B}, {0x10D50, 0x10D65, 0x10D70}};

/// What a script or a property has gained since Unicode 14, by its name in lower case without
/// underscores.
struct NewerMembers {
  const char* name;
  bool unknown;  ///< PCRE2 does not know the name
  const char* ranges;
};
/// Null for one that has gained nothing.
const NewerMembers* newer_members(std::string_view name);

}  // namespace tapestry::data::huggingface
