#include "text/tokenizers/huggingface/unicode_older.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "text/tokenizers/huggingface/normal_form.h"

namespace tapestry::data::huggingface {
namespace unicode_older {
namespace {

struct SinceRange {
  uint32_t first;
  uint32_t last;
  int since;  // 9: Unicode 9, 10: a later one
};

// Marks, punctuation and formats that are such since Unicode 9 or later. Source: the library's own
// answers (`tokenizers` 0.23), one code point after the other.
constexpr SinceRange kSince[] = {
    {0x61D, 0x61D, 9},      {0x7FD, 0x7FD, 10},     {0x890, 0x891, 10},     {0x897, 0x89F, 10},
    {0x8CA, 0x8D3, 10},     {0x8D4, 0x8E1, 9},      {0x8E2, 0x8E2, 9},      {0x9FD, 0x9FD, 9},
    {0x9FE, 0x9FE, 10},     {0xA76, 0xA76, 9},      {0xAFA, 0xAFF, 10},     {0xB55, 0xB55, 10},
    {0xC04, 0xC04, 10},     {0xC3C, 0xC3C, 10},     {0xC77, 0xC77, 9},      {0xC84, 0xC84, 9},
    {0xCF3, 0xD00, 10},     {0xD3B, 0xD3C, 10},     {0xD81, 0xD81, 10},     {0xEBA, 0xEBA, 10},
    {0xECE, 0xECE, 10},     {0x1715, 0x1715, 10},   {0x180F, 0x180F, 10},   {0x1885, 0x1886, 9},
    {0x1ABF, 0x1ACE, 10},   {0x1B4E, 0x1B4F, 9},    {0x1B7D, 0x1B7F, 9},    {0x1CF7, 0x1CF7, 10},
    {0x1DF6, 0x1DFA, 10},   {0x1DFB, 0x1DFB, 9},    {0x2E43, 0x2E5D, 9},    {0xA82C, 0xA82C, 10},
    {0xA8C5, 0xA8C5, 9},    {0xA8FF, 0xA8FF, 10},   {0xA9BD, 0xA9BD, 9},    {0x10D24, 0x10D27, 10},
    {0x10D69, 0x10D6D, 10}, {0x10D6E, 0x10D6E, 9},  {0x10EAB, 0x10EAC, 10}, {0x10EAD, 0x10EAD, 9},
    {0x10EFC, 0x10EFF, 10}, {0x10F46, 0x10F50, 10}, {0x10F55, 0x10F59, 9},  {0x10F82, 0x10F85, 10},
    {0x10F86, 0x10F89, 9},  {0x11070, 0x11074, 10}, {0x110C2, 0x110C2, 10}, {0x110CD, 0x110CD, 10},
    {0x11145, 0x11146, 10}, {0x111C9, 0x111C9, 10}, {0x111CE, 0x111CF, 10}, {0x1123E, 0x1123E, 9},
    {0x11241, 0x11241, 10}, {0x1133B, 0x1133B, 10}, {0x113B8, 0x113D2, 10}, {0x113D4, 0x113D8, 9},
    {0x113E1, 0x113E2, 10}, {0x11438, 0x1143F, 9},  {0x11442, 0x11444, 9},  {0x11446, 0x1145D, 9},
    {0x1145E, 0x1145E, 10}, {0x11660, 0x1166C, 9},  {0x116B9, 0x116B9, 9},  {0x1182C, 0x1183A, 10},
    {0x1183B, 0x1183B, 9},  {0x11930, 0x11943, 10}, {0x11944, 0x11946, 9},  {0x119D1, 0x119E0, 10},
    {0x119E2, 0x119E2, 9},  {0x119E4, 0x11A0A, 10}, {0x11A33, 0x11A3E, 10}, {0x11A3F, 0x11A46, 9},
    {0x11A47, 0x11A5B, 10}, {0x11A8A, 0x11A99, 10}, {0x11A9A, 0x11AA2, 9},  {0x11B00, 0x11B09, 9},
    {0x11BE1, 0x11BE1, 9},  {0x11C30, 0x11C3D, 9},  {0x11C3F, 0x11C45, 9},  {0x11C70, 0x11CA7, 9},
    {0x11CAA, 0x11CB0, 9},  {0x11CB2, 0x11CB3, 9},  {0x11CB5, 0x11CB6, 9},  {0x11D31, 0x11D47, 10},
    {0x11D8A, 0x11D97, 10}, {0x11EF3, 0x11EF6, 10}, {0x11EF7, 0x11EF8, 9},  {0x11F00, 0x11F03, 10},
    {0x11F34, 0x11F42, 10}, {0x11F43, 0x11F4F, 9},  {0x11F5A, 0x11F5A, 10}, {0x11FFF, 0x11FFF, 9},
    {0x12FF1, 0x12FF2, 9},  {0x13430, 0x1343F, 10}, {0x13440, 0x13455, 10}, {0x1611E, 0x1612F, 10},
    {0x16D6D, 0x16D6F, 9},  {0x16E97, 0x16E9A, 9},  {0x16F4F, 0x16F4F, 10}, {0x16F7F, 0x16F87, 10},
    {0x16FE2, 0x16FE2, 9},  {0x16FE4, 0x16FF1, 10}, {0x1CF00, 0x1CF46, 10}, {0x1E000, 0x1E02A, 9},
    {0x1E08F, 0x1E08F, 10}, {0x1E130, 0x1E136, 10}, {0x1E2AE, 0x1E2AE, 10}, {0x1E2EC, 0x1E2EF, 10},
    {0x1E4EC, 0x1E4EF, 10}, {0x1E5EE, 0x1E5EF, 10}, {0x1E5FF, 0x1E5FF, 9},  {0x1E944, 0x1E95F, 9},
};

// Characters that have a compatible or canonical decomposition since Unicode 10 or later.
constexpr SinceRange kDecomposed[] = {
    {0x32FF, 0x32FF, 10},   {0xA7F2, 0xA7F4, 10},   {0xAB69, 0xAB69, 10},   {0x10781, 0x107BA, 10},
    {0x11938, 0x11938, 10}, {0x1E030, 0x1E06D, 10}, {0x1F16C, 0x1F16C, 10}, {0x1FBF0, 0x1FBF9, 10}};

template <size_t N>
int since(const SinceRange (&ranges)[N], uint32_t code_point) {
  const auto* after =
      std::upper_bound(std::begin(ranges), std::end(ranges), code_point,
                       [](uint32_t point, const SinceRange& range) { return point < range.first; });
  return after == std::begin(ranges) || code_point > std::prev(after)->last
             ? 0
             : std::prev(after)->since;
}

}  // namespace
}  // namespace unicode_older

bool is_old_punctuation(uint32_t code_point) {
  // The two are a symbol and a mark by now.
  return code_point == 0x166D || code_point == 0x111C9 ||
         (general_category(code_point)[0] == 'P' &&
          unicode_older::since(unicode_older::kSince, code_point) == 0);
}

bool is_old_mark(uint32_t code_point) {
  // The two are letters by now.
  return code_point == 0x1CF2 || code_point == 0x1CF3 ||
         (general_category(code_point)[0] == 'M' &&
          unicode_older::since(unicode_older::kSince, code_point) < 10);
}

bool is_old_nonspacing_mark(uint32_t code_point) {
  // Two are spacing marks since.
  return code_point == 0x1734 || code_point == 0x1171E ||
         (general_category(code_point) == std::string_view("Mn") &&
          unicode_older::since(unicode_older::kSince, code_point) == 0);
}

bool is_old_control(uint32_t code_point) {
  const std::string_view category = general_category(code_point);
  return (category == "Cc" || category == "Cf" || category == "Co") &&
         unicode_older::since(unicode_older::kSince, code_point) == 0;
}

bool is_old_in_normal_forms(uint32_t code_point) {
  return unicode_older::since(unicode_older::kSince, code_point) < 10 &&
         unicode_older::since(unicode_older::kDecomposed, code_point) == 0;
}

}  // namespace tapestry::data::huggingface
