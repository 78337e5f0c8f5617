#include "text/util/utf8.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "autograd/tensor/error.h"

namespace tapestry::data {
namespace {

constexpr std::string_view kReplacementText = "\xEF\xBF\xBD";

}  // namespace

// Unicode standard, table 3-7.
Utf8Sequence first_sequence(std::string_view bytes) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) {
    return {.length = 1, .valid = true, .code_point = lead};
  }
  size_t length = 0;
  uint8_t low = 0x80;
  uint8_t high = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    low = lead == 0xE0 ? 0xA0 : 0x80;
    high = lead == 0xED ? 0x9F : 0xBF;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    low = lead == 0xF0 ? 0x90 : 0x80;
    high = lead == 0xF4 ? 0x8F : 0xBF;
  } else {
    return {.length = 1, .valid = false};
  }
  for (size_t i = 1; i < length; ++i) {
    if (i >= bytes.size()) {
      return {.length = i, .valid = false, .cut = true};
    }
    if (byte(i) < low || byte(i) > high) {
      return {.length = i, .valid = false};
    }
    low = 0x80;
    high = 0xBF;
  }
  return {.length = length, .valid = true, .code_point = code_point_at(bytes, 0)};
}

bool is_valid_utf8(std::string_view bytes) {
  for (size_t at = 0; at < bytes.size();) {
    const Utf8Sequence sequence = first_sequence(bytes.substr(at));
    if (!sequence.valid) {
      return false;
    }
    at += sequence.length;
  }
  return true;
}

std::string replace_invalid_utf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  for (size_t at = 0; at < bytes.size();) {
    const Utf8Sequence sequence = first_sequence(bytes.substr(at));
    if (sequence.valid) {
      text.append(bytes.substr(at, sequence.length));
    } else {
      text.append(kReplacementText);
    }
    at += sequence.length;
  }
  return text;
}

ValidText::ValidText(std::string_view bytes) : text_(bytes) {
  if (is_valid_utf8(bytes)) {
    return;
  }
  for (size_t at = 0; at < bytes.size();) {
    const Utf8Sequence sequence = first_sequence(bytes.substr(at));
    if (sequence.valid) {
      repaired_.append(bytes.substr(at, sequence.length));
    } else {
      replaced_.push_back({static_cast<int64_t>(repaired_.size()), static_cast<int64_t>(at),
                           static_cast<int64_t>(sequence.length)});
      repaired_.append(kReplacementText);
    }
    at += sequence.length;
  }
  text_ = repaired_;
}

const ValidText::Replaced* ValidText::last_before(int64_t at) const {
  const auto after =
      std::upper_bound(replaced_.begin(), replaced_.end(), at,
                       [](int64_t value, const Replaced& part) { return value <= part.in_text; });
  return after == replaced_.begin() ? nullptr : &*std::prev(after);
}

int64_t ValidText::begin_in_bytes(int64_t begin) const {
  const Replaced* part = last_before(begin);
  if (part == nullptr) {
    return begin;
  }
  const int64_t behind = begin - part->in_text - static_cast<int64_t>(kReplacementText.size());
  return behind < 0 ? part->in_bytes : part->in_bytes + part->length + behind;
}

int64_t ValidText::end_in_bytes(int64_t end) const {
  const Replaced* part = last_before(end);
  if (part == nullptr) {
    return end;
  }
  const int64_t behind = end - part->in_text - static_cast<int64_t>(kReplacementText.size());
  return part->in_bytes + part->length + std::max<int64_t>(behind, 0);
}

size_t without_cut_character(std::string_view bytes) {
  constexpr size_t kLongestCut = 3;
  for (size_t length = 1; length <= std::min(kLongestCut, bytes.size()); ++length) {
    const Utf8Sequence sequence = first_sequence(bytes.substr(bytes.size() - length));
    if (sequence.cut && sequence.length == length) {
      return bytes.size() - length;
    }
  }
  return bytes.size();
}

size_t count_characters(std::string_view text) {
  return text.size() -
         static_cast<size_t>(std::count_if(text.begin(), text.end(), continues_character));
}

std::vector<uint32_t> code_points(std::string_view bytes) {
  std::vector<uint32_t> points;
  points.reserve(bytes.size());
  while (!bytes.empty()) {
    const Utf8Sequence sequence = first_sequence(bytes);
    points.push_back(sequence.code_point);
    bytes.remove_prefix(sequence.length);
  }
  return points;
}

void append_utf8(std::string& text, uint32_t code_point) {
  check<ValueError>(code_point <= 0x10FFFF && (code_point < 0xD800 || code_point > 0xDFFF),
                    "utf8: ", code_point, " is no code point of Unicode text");
  const auto add_tail = [&](unsigned shift) {
    text.push_back(static_cast<char>(0x80U | (code_point >> shift & 0x3FU)));
  };
  if (code_point < 0x80) {
    text.push_back(static_cast<char>(code_point));
  } else if (code_point < 0x800) {
    text.push_back(static_cast<char>(0xC0U | code_point >> 6U));
    add_tail(0);
  } else if (code_point < 0x10000) {
    text.push_back(static_cast<char>(0xE0U | code_point >> 12U));
    add_tail(6);
    add_tail(0);
  } else {
    text.push_back(static_cast<char>(0xF0U | code_point >> 18U));
    add_tail(12);
    add_tail(6);
    add_tail(0);
  }
}

std::string utf8(uint32_t code_point) {
  std::string text;
  append_utf8(text, code_point);
  return text;
}

}  // namespace tapestry::data
