#include "diagnosis/report/plot/letters.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "text/util/utf8.h"

namespace tapestry::plot {
namespace {

struct Letter {
  std::string_view bytes;
  char32_t code = 0;
  bool valid = false;
};

// Of ill-formed text a byte at a time.
Letter first_letter(std::string_view text) {
  const data::Utf8Sequence first = data::first_sequence(text);
  return first.valid ? Letter{text.substr(0, first.length), first.code_point, true}
                     : Letter{text.substr(0, 1)};
}

struct Codes {
  char32_t first;
  char32_t last;
};

bool is_in(char32_t code, const std::vector<Codes>& ranges) {
  return std::any_of(ranges.begin(), ranges.end(),
                     [&](const Codes& range) { return code >= range.first && code <= range.last; });
}

// C0, DEL, C1; line and paragraph separators; marks that turn the direction of a line; the two that
// XML does not take.
bool is_control(char32_t code) {
  return code < 0x20 || (code >= 0x7F && code < 0xA0) || (code >= 0x2028 && code <= 0x202E) ||
         (code >= 0x2066 && code <= 0x2069) || code == 0xFFFE || code == 0xFFFF;
}

// The blocks of Unicode's EastAsianWidth.txt with the properties W and F, and the common combining
// marks.
int columns_of_code(char32_t code) {
  static const std::vector<Codes> kWide = {
      {0x1100, 0x115F}, {0x2E80, 0x303E},   {0x3041, 0xA4CF},   {0xA960, 0xA97C},
      {0xAC00, 0xD7A3}, {0xF900, 0xFAFF},   {0xFE30, 0xFE6F},   {0xFF00, 0xFF60},
      {0xFFE0, 0xFFE6}, {0x1F300, 0x1F64F}, {0x1F900, 0x1F9FF}, {0x20000, 0x3FFFD}};
  static const std::vector<Codes> kCombining = {
      {0x0300, 0x036F}, {0x1AB0, 0x1AFF}, {0x1DC0, 0x1DFF}, {0x200B, 0x200F},
      {0x20D0, 0x20FF}, {0xFE00, 0xFE0F}, {0xFE20, 0xFE2F}};
  return is_in(code, kCombining) ? 0 : is_in(code, kWide) ? 2 : 1;
}

// The longest beginning of at most so many columns.
std::string_view beginning(std::string_view text, int columns) {
  size_t taken = 0;
  int used = 0;
  while (taken < text.size()) {
    const Letter letter = first_letter(text.substr(taken));
    used += columns_of_code(letter.code);
    if (used > columns) {
      break;
    }
    taken += letter.bytes.size();
  }
  return text.substr(0, taken);
}

// The longest end of at most so many columns.
std::string_view ending(std::string_view text, int columns) {
  int left = columns_of(text);
  while (left > columns) {
    const Letter letter = first_letter(text);
    left -= columns_of_code(letter.code);
    text.remove_prefix(letter.bytes.size());
  }
  return text;
}

}  // namespace

std::string printable(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const Letter letter = first_letter(text);
    const bool keep = letter.valid && !is_control(letter.code);
    result += keep ? letter.bytes : "?";
    text.remove_prefix(letter.bytes.size());
  }
  return result;
}

std::string escape_markup(std::string_view text) {
  std::string result;
  for (const char c : printable(text)) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      case '\'':
        result += "&#39;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

int columns_of(std::string_view text) {
  int columns = 0;
  while (!text.empty()) {
    const Letter letter = first_letter(text);
    columns += columns_of_code(letter.code);
    text.remove_prefix(letter.bytes.size());
  }
  return columns;
}

std::string cut(std::string_view text, int columns) {
  if (columns_of(text) <= columns) {
    return std::string(text);
  }
  constexpr std::string_view kDots = "...";
  const int left = columns - static_cast<int>(kDots.size());
  if (left < 2) {
    return std::string(beginning(text, columns));
  }
  const int end = (left + 1) / 2;
  return std::string(beginning(text, left - end)) + std::string(kDots) +
         std::string(ending(text, end));
}

}  // namespace tapestry::plot
