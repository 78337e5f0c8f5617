// Validity of UTF-8 text.
#pragma once

#include <cstddef>
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

}  // namespace tapestry::data
