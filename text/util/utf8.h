// UTF-8: the one decoder. It is our own since utf8proc does not say how long an ill-formed sequence
// is, and since tokenizers ask for characters in their innermost loops.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tapestry::data {

/// What the bytes, of which there is at least one, begin with.
struct Utf8Sequence {
  size_t length;  ///< of an ill-formed one: the maximal prefix of a well-formed one
  bool valid;
  bool cut = false;  ///< the bytes end inside of it
  uint32_t code_point = 0xFFFD;
};
Utf8Sequence first_sequence(std::string_view bytes);

/// Whether the bytes are well-formed UTF-8 (no overlong forms, no surrogates, at most U+10FFFF).
bool is_valid_utf8(std::string_view bytes);

/// The text with each ill-formed sequence replaced by U+FFFD: one for each maximal prefix of a
/// well-formed sequence, as the Unicode standard recommends (section 3.9) and Python does.
std::string replace_invalid_utf8(std::string_view bytes);

/// Bytes as valid text, and where its characters come from. A view: the bytes outlive it.
class ValidText {
 public:
  explicit ValidText(std::string_view bytes);
  // text() may point into the object.
  ValidText(const ValidText&) = delete;
  ValidText& operator=(const ValidText&) = delete;

  /// The bytes themselves if they are valid, else as replace_invalid_utf8 makes it.
  std::string_view text() const { return text_; }
  /// Where [begin, end) of text() is in the bytes: of a U+FFFD that stands for bytes, all of these.
  int64_t begin_in_bytes(int64_t begin) const;
  int64_t end_in_bytes(int64_t end) const;

 private:
  struct Replaced {
    int64_t in_text;  // where its U+FFFD begins
    int64_t in_bytes;
    int64_t length;  // bytes that it stands for
  };
  const Replaced* last_before(int64_t at) const;

  std::string repaired_;
  std::string_view text_;
  std::vector<Replaced> replaced_;
};

/// How many of the bytes are certain when more can follow: all but a last character that is cut.
size_t without_cut_character(std::string_view bytes);

/// The code points of a text; U+FFFD where replace_invalid_utf8 puts one.
std::vector<uint32_t> code_points(std::string_view bytes);

/// The bytes of one code point. ValueError for a surrogate or a number above U+10FFFF.
std::string utf8(uint32_t code_point);
/// Appends them.
void append_utf8(std::string& text, uint32_t code_point);

// ---- Of valid UTF-8, which nothing here checks.

/// Whether the byte is one of a character behind its first.
inline bool continues_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80;
}

/// Where the character begins that ends at `at`, which is above 0.
inline size_t character_before(std::string_view text, size_t at) {
  do {
    --at;
  } while (at > 0 && continues_character(text[at]));
  return at;
}

size_t count_characters(std::string_view text);

/// Bytes of the character that begins at `at`.
inline size_t character_length(std::string_view text, size_t at) {
  const auto lead = static_cast<unsigned char>(text[at]);
  return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

/// The code point that begins at `at`.
inline uint32_t code_point_at(std::string_view text, size_t at) {
  constexpr uint32_t kLeadBits[] = {0, 0x7F, 0x1F, 0xF, 7};
  const size_t length = character_length(text, at);
  uint32_t point = static_cast<uint8_t>(text[at]) & kLeadBits[length];
  for (size_t i = 1; i < length; ++i) {
    point = point << 6U | (static_cast<uint8_t>(text[at + i]) & 0x3FU);
  }
  return point;
}

}  // namespace tapestry::data
