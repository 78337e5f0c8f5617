#include "text/chat/text.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "text/util/utf8.h"

namespace tapestry::chat::jinja {

namespace {

char32_t next_code_point(std::string_view text, size_t& at) {
  const data::Utf8Sequence next = data::first_sequence(text.substr(at));
  at += next.length;
  return next.code_point;
}

utf8proc_category_t category_of(char32_t code_point) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code_point));
}

bool is_letter(char32_t code_point) {
  const utf8proc_category_t category = category_of(code_point);
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

bool is_number(char32_t code_point) {
  const utf8proc_category_t category = category_of(code_point);
  return category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO;
}

// Digits that no decimal number is written with: superscripts, circled ones, ...
bool is_other_digit(char32_t code_point) {
  struct Range {
    char32_t first;
    char32_t last;
  };
  static constexpr std::array<Range, 20> kRanges = {
      {{0xB2, 0xB3},       {0xB9, 0xB9},       {0x1369, 0x1371},   {0x19DA, 0x19DA},
       {0x2070, 0x2070},   {0x2074, 0x2079},   {0x2080, 0x2089},   {0x2460, 0x2468},
       {0x2474, 0x247C},   {0x2488, 0x2490},   {0x24EA, 0x24EA},   {0x24F5, 0x24FD},
       {0x24FF, 0x24FF},   {0x2776, 0x277E},   {0x2780, 0x2788},   {0x278A, 0x2792},
       {0x10A40, 0x10A43}, {0x10E60, 0x10E68}, {0x11052, 0x1105A}, {0x1F100, 0x1F10A}}};
  return std::any_of(kRanges.begin(), kRanges.end(), [&](const Range& range) {
    return code_point >= range.first && code_point <= range.last;
  });
}

bool is_upper_letter(char32_t c) {
  return category_of(c) == UTF8PROC_CATEGORY_LU || (c >= 0x2160 && c <= 0x216F) ||
         (c >= 0x24B6 && c <= 0x24CF);
}

bool is_lower_letter(char32_t c) {
  return category_of(c) == UTF8PROC_CATEGORY_LL || c == 0xAA || c == 0xBA ||
         (c >= 0x2170 && c <= 0x217F) || (c >= 0x24D0 && c <= 0x24E9) ||
         (c >= 0x2B0 && c <= 0x2B8) || (c >= 0x2C0 && c <= 0x2C1) || (c >= 0x2E0 && c <= 0x2E4) ||
         (c >= 0x1D2C && c <= 0x1D6A);
}

bool is_cased(char32_t c) {
  return is_upper_letter(c) || is_lower_letter(c) || category_of(c) == UTF8PROC_CATEGORY_LT;
}

bool is_passed_over_for_case(char32_t c) {
  const utf8proc_category_t category = category_of(c);
  return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_ME ||
         category == UTF8PROC_CATEGORY_CF || category == UTF8PROC_CATEGORY_LM ||
         category == UTF8PROC_CATEGORY_SK || c == '\'' || c == '.' || c == ':' || c == 0xB7 ||
         c == 0x2019 || c == 0x2018;
}

struct SpecialCase {
  char32_t letter;
  std::u32string_view upper;
  std::u32string_view title;
};

const SpecialCase* special_case_of(char32_t letter) {
  static constexpr SpecialCase kLetters[] = {
#include "text/chat/special_case.inc"
  };
  const auto* found = std::lower_bound(
      std::begin(kLetters), std::end(kLetters), letter,
      [](const SpecialCase& entry, char32_t wanted) { return entry.letter < wanted; });
  return found != std::end(kLetters) && found->letter == letter ? found : nullptr;
}

void append_upper(std::string& out, char32_t letter) {
  if (const SpecialCase* special = letter < 0x80 ? nullptr : special_case_of(letter)) {
    out += to_utf8(special->upper);
    return;
  }
  data::append_utf8(out, static_cast<char32_t>(utf8proc_toupper(static_cast<int32_t>(letter))));
}

void append_title(std::string& out, char32_t letter) {
  if (const SpecialCase* special = letter < 0x80 ? nullptr : special_case_of(letter)) {
    out += to_utf8(special->title);
    return;
  }
  data::append_utf8(out, static_cast<char32_t>(utf8proc_totitle(static_cast<int32_t>(letter))));
}

// A sigma at the end of a word has a form of its own.
bool is_final_sigma(std::u32string_view text, size_t at) {
  size_t before = at;
  while (before > 0 && is_passed_over_for_case(text[before - 1])) {
    --before;
  }
  if (before == 0 || !is_cased(text[before - 1])) {
    return false;
  }
  size_t after = at + 1;
  while (after < text.size() && is_passed_over_for_case(text[after])) {
    ++after;
  }
  return after == text.size() || !is_cased(text[after]);
}

void append_lower(std::string& out, std::u32string_view text, size_t at) {
  const char32_t letter = text[at];
  if (letter == 0x3A3) {
    data::append_utf8(out, is_final_sigma(text, at) ? 0x3C2 : 0x3C3);
  } else if (letter == 0x130) {
    out += to_utf8(U"i\u0307");
  } else {
    data::append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<int32_t>(letter))));
  }
}

}  // namespace

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

std::u32string to_code_points(std::string_view text) {
  std::u32string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    out += next_code_point(text, at);
  }
  return out;
}

std::string to_utf8(std::u32string_view code_points) {
  std::string out;
  for (const char32_t c : code_points) {
    data::append_utf8(out, c);
  }
  return out;
}

size_t place_of_code_point(std::string_view text, size_t index) {
  size_t at = 0;
  for (; at < text.size(); ++at) {
    if (!data::continues_character(text[at]) && index-- == 0) {
      break;
    }
  }
  return at;
}

size_t find_first(std::string_view text, std::string_view wanted) {
  const void* found =
      wanted.empty() ? text.data() : memmem(text.data(), text.size(), wanted.data(), wanted.size());
  return found == nullptr ? std::string_view::npos
                          : static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

// Knuth, Morris and Pratt's way, from behind.
size_t find_last(std::string_view text, std::string_view wanted) {
  const size_t size = wanted.size();
  if (size <= 1 || size > text.size()) {
    return text.rfind(wanted);
  }
  const auto letter = [&](size_t i) { return wanted[size - 1 - i]; };
  std::vector<uint32_t> border(size, 0);
  for (size_t i = 1, same = 0; i < size; ++i) {
    while (same > 0 && letter(i) != letter(same)) {
      same = border[same - 1];
    }
    same += letter(i) == letter(same) ? 1 : 0;
    border[i] = static_cast<uint32_t>(same);
  }
  size_t same = 0;
  for (size_t at = text.size(); at-- > 0;) {
    while (same > 0 && text[at] != letter(same)) {
      same = border[same - 1];
    }
    same += text[at] == letter(same) ? 1 : 0;
    if (same == size) {
      return at;
    }
  }
  return std::string_view::npos;
}

size_t line_end_at(std::string_view text, size_t at) {
  const std::string_view rest = text.substr(at);
  const auto c = static_cast<unsigned char>(rest[0]);
  if (c == '\r') {
    return rest.starts_with("\r\n") ? 2 : 1;
  }
  if ((c >= 0x0A && c <= 0x0C) || (c >= 0x1C && c <= 0x1E)) {
    return 1;
  }
  return rest.starts_with("\xC2\x85")                                           ? 2
         : rest.starts_with("\xE2\x80\xA8") || rest.starts_with("\xE2\x80\xA9") ? 3
                                                                                : 0;
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '"':
        out += "&#34;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::vector<size_t> code_point_starts(std::string_view text) {
  std::vector<size_t> starts;
  starts.reserve(data::count_characters(text) + 1);
  for (size_t at = 0; at < text.size(); ++at) {
    if (!data::continues_character(text[at])) {
      starts.push_back(at);
    }
  }
  starts.push_back(text.size());
  return starts;
}

bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

bool is_printable(char32_t c) {
  switch (category_of(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    case UTF8PROC_CATEGORY_ZS:
      return c == ' ';
    default:
      return true;
  }
}

bool is_name_start(char32_t c) {
  return c == '_' || (c < 0x80 ? (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') : is_letter(c));
}

bool is_name_part(char32_t c) {
  return is_name_start(c) || (c < 0x80 ? c >= '0' && c <= '9' : is_number(c));
}

std::string_view strip(std::string_view text, Side side, std::optional<std::string_view> letters) {
  std::u32string wanted = letters ? to_code_points(*letters) : std::u32string();
  std::sort(wanted.begin(), wanted.end());
  wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
  const auto goes = [&](char32_t c) {
    return letters ? std::binary_search(wanted.begin(), wanted.end(), c) : is_space(c);
  };
  size_t begin = 0;
  while (side != Side::kRight && begin < text.size()) {
    size_t next = begin;
    if (!goes(next_code_point(text, next))) {
      break;
    }
    begin = next;
  }
  size_t end = text.size();
  while (side != Side::kLeft && end > begin) {
    const size_t start = data::character_before(text, end);
    size_t next = start;
    if (!goes(next_code_point(text, next))) {
      break;
    }
    end = start;
  }
  return text.substr(begin, end - begin);
}

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t start = at;
    if (is_space(next_code_point(text, at))) {
      if (start > begin) {
        words.push_back(text.substr(begin, start - begin));
      }
      begin = at;
    }
  }
  if (begin < text.size()) {
    words.push_back(text.substr(begin));
  }
  return words;
}

std::string to_upper(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    append_upper(out, next_code_point(text, at));
  }
  return out;
}

std::string to_lower(std::string_view text) {
  const std::u32string letters = to_code_points(text);
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < letters.size(); ++at) {
    append_lower(out, letters, at);
  }
  return out;
}

std::string capitalize(std::string_view text) {
  const std::u32string letters = to_code_points(text);
  std::string out;
  for (size_t at = 0; at < letters.size(); ++at) {
    if (at == 0) {
      append_title(out, letters[at]);
    } else {
      append_lower(out, letters, at);
    }
  }
  return out;
}

std::string title(std::string_view text) {
  const std::u32string letters = to_code_points(text);
  std::string out;
  bool in_word = false;
  for (size_t at = 0; at < letters.size(); ++at) {
    if (in_word) {
      append_lower(out, letters, at);
    } else {
      append_title(out, letters[at]);
    }
    in_word = is_cased(letters[at]);
  }
  return out;
}

bool is_digit(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text, at);
    if (category_of(c) != UTF8PROC_CATEGORY_ND && !is_other_digit(c)) {
      return false;
    }
  }
  return !text.empty();
}

bool is_upper(std::string_view text) {
  bool cased = false;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text, at);
    if (is_lower_letter(c) || category_of(c) == UTF8PROC_CATEGORY_LT) {
      return false;
    }
    cased = cased || is_upper_letter(c);
  }
  return cased;
}

bool is_lower(std::string_view text) {
  bool cased = false;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text, at);
    if (is_upper_letter(c) || category_of(c) == UTF8PROC_CATEGORY_LT) {
      return false;
    }
    cased = cased || is_lower_letter(c);
  }
  return cased;
}

}  // namespace tapestry::chat::jinja
