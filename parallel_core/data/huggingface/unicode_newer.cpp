#include "parallel_core/data/huggingface/unicode_newer.h"

#include <algorithm>
#include <cstdio>
#include <iterator>

namespace tapestry::data::huggingface {
namespace {

struct NewerRange {
  uint32_t first;
  uint32_t last;
  const char* category;
};

// Source: DerivedGeneralCategory.txt of Unicode 16 less that of Unicode 14.
constexpr NewerRange kNewerRanges[] = {
    {0x1C89, 0x1C89, "Lu"},   {0x1C8A, 0x1C8A, "Ll"},   {0xA7CB, 0xA7CC, "Lu"},
    {0xA7CD, 0xA7CD, "Ll"},   {0xA7DA, 0xA7DA, "Lu"},   {0xA7DB, 0xA7DB, "Ll"},
    {0xA7DC, 0xA7DC, "Lu"},   {0x105C0, 0x105F3, "Lo"}, {0x10D40, 0x10D49, "Nd"},
    {0x10D4A, 0x10D4D, "Lo"}, {0x10D4E, 0x10D4E, "Lm"}, {0x10D4F, 0x10D4F, "Lo"},
    {0x10D50, 0x10D65, "Lu"}, {0x10D6F, 0x10D6F, "Lm"}, {0x10D70, 0x10D85, "Ll"},
    {0x10EC2, 0x10EC4, "Lo"}, {0x1123F, 0x11240, "Lo"}, {0x11380, 0x11389, "Lo"},
    {0x1138B, 0x1138B, "Lo"}, {0x1138E, 0x1138E, "Lo"}, {0x11390, 0x113B5, "Lo"},
    {0x113B7, 0x113B7, "Lo"}, {0x113D1, 0x113D1, "Lo"}, {0x113D3, 0x113D3, "Lo"},
    {0x116D0, 0x116E3, "Nd"}, {0x11BC0, 0x11BE0, "Lo"}, {0x11BF0, 0x11BF9, "Nd"},
    {0x11F02, 0x11F02, "Lo"}, {0x11F04, 0x11F10, "Lo"}, {0x11F12, 0x11F33, "Lo"},
    {0x11F50, 0x11F59, "Nd"}, {0x1342F, 0x1342F, "Lo"}, {0x13441, 0x13446, "Lo"},
    {0x13460, 0x143FA, "Lo"}, {0x16100, 0x1611D, "Lo"}, {0x16130, 0x16139, "Nd"},
    {0x16D40, 0x16D42, "Lm"}, {0x16D43, 0x16D6A, "Lo"}, {0x16D6B, 0x16D6C, "Lm"},
    {0x16D70, 0x16D79, "Nd"}, {0x18CFF, 0x18CFF, "Lo"}, {0x1B132, 0x1B132, "Lo"},
    {0x1B155, 0x1B155, "Lo"}, {0x1CCF0, 0x1CCF9, "Nd"}, {0x1D2C0, 0x1D2D3, "No"},
    {0x1DF25, 0x1DF2A, "Ll"}, {0x1E030, 0x1E06D, "Lm"}, {0x1E4D0, 0x1E4EA, "Lo"},
    {0x1E4EB, 0x1E4EB, "Lm"}, {0x1E4F0, 0x1E4F9, "Nd"}, {0x1E5D0, 0x1E5ED, "Lo"},
    {0x1E5F0, 0x1E5F0, "Lo"}, {0x1E5F1, 0x1E5FA, "Nd"}, {0x2B739, 0x2B739, "Lo"},
    {0x2EBF0, 0x2EE5D, "Lo"}, {0x31350, 0x323AF, "Lo"}};

}  // namespace

std::string newer_ranges(std::string_view category) {
  std::string ranges;
  const auto append = [&](uint32_t first, uint32_t last) {
    char text[32];
    std::snprintf(text, sizeof(text), "\\x{%X}-\\x{%X}", first, last);
    ranges += text;
  };
  uint32_t first = 0;
  uint32_t last = 0;
  for (const NewerRange& range : kNewerRanges) {
    if (category.empty() || !std::string_view(range.category).starts_with(category)) {
      continue;
    }
    if (first != 0 && range.first == last + 1) {
      last = range.last;
      continue;
    }
    if (first != 0) {
      append(first, last);
    }
    first = range.first;
    last = range.last;
  }
  if (first != 0) {
    append(first, last);
  }
  return ranges;
}

const char* newer_category(uint32_t code_point) {
  const auto* after =
      std::upper_bound(std::begin(kNewerRanges), std::end(kNewerRanges), code_point,
                       [](uint32_t point, const NewerRange& range) { return point < range.first; });
  if (after == std::begin(kNewerRanges) || code_point > std::prev(after)->last) {
    return nullptr;
  }
  return std::prev(after)->category;
}

}  // namespace tapestry::data::huggingface
