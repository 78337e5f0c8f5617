// Text on its way through normalizers and pre-tokenizers, and where its bytes come from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizers/tokenizer.h"
#include "text/util/utf8.h"

namespace tapestry::data::huggingface {

/// A part of a text. `places` has, for each byte, the part of the original text that its character
/// comes from, or is null: the bytes are then those of the original text from `origin` on, or
/// nobody asks where they come from.
struct Slice {
  std::string_view text;
  const TextSpan* places = nullptr;
  int64_t origin = 0;

  Slice part(size_t begin, size_t end) const {
    return {text.substr(begin, end - begin), places == nullptr ? nullptr : places + begin,
            places == nullptr || begin >= text.size() ? origin + static_cast<int64_t>(begin)
                                                      : places[begin].begin};
  }
  /// The part of the original text that bytes [begin, end) come from, in whole characters.
  TextSpan place_of(size_t begin, size_t end) const;
};

/// A changed text, as a normalizer leaves it for the next one. Tracked texts know where each byte
/// comes from, as the Rust library `tokenizers` tells it in its NormalizedString.
class AlignedText {
 public:
  AlignedText(const Slice& slice, bool tracked);

  const std::string& text() const { return text_; }
  bool tracked() const { return tracked_; }
  Slice slice() const { return {text_, tracked_ ? places_.data() : nullptr, origin_}; }

 private:
  friend class Rewrite;
  std::string text_;
  std::vector<TextSpan> places_;
  bool tracked_;
  int64_t origin_;
  size_t most_;  // bytes that it may grow to
};

/// Bytes that a text of so many may become. Unicode's forms make eleven of one at most; a chain of
/// Replace would make a hundred bytes gigabytes.
inline size_t most_bytes_from(size_t bytes) {
  constexpr size_t kTimes = 32;
  constexpr size_t kSome = size_t{1} << 20U;
  return kTimes * bytes + kSome;
}
/// ValueError for what becomes longer.
void check_growth(size_t bytes, size_t most);

/// Steps that looking up the tokens of a text of so many bytes may take. Real vocabularies take as
/// many as their longest tokens have bytes; tokens of a megabyte that all begin alike would take
/// hours.
inline size_t most_steps_for(size_t bytes) {
  constexpr size_t kPerByte = 64;
  constexpr size_t kSome = size_t{1} << 16U;
  return kPerByte * bytes + kSome;
}

/// Writes a text anew, reading the old one from its beginning. What is written takes the place of
/// what is read; finish() puts the new text in the old one's stead. ValueError where it becomes
/// longer than most_bytes_from() allows.
class Rewrite {
 public:
  explicit Rewrite(AlignedText& text);

  /// The old text from here on.
  std::string_view rest() const { return std::string_view(text_.text_).substr(at_); }
  /// Keeps the next `bytes` of the old text.
  void keep(size_t bytes);
  /// Passes over the next `bytes`.
  void drop(size_t bytes) { at_ += bytes; }
  /// Writes `with` for the next `bytes`, which are one character: it comes from there.
  void replace(size_t bytes, std::string_view with);
  /// Writes `what`, which comes from where the byte before the next one does; the beginning of a
  /// text comes from nowhere.
  void insert(std::string_view what);
  /// Writes `what`, which comes from where the next byte does; nothing of the old text is read.
  void insert_before(std::string_view what);
  void finish();

 private:
  AlignedText& text_;
  size_t at_ = 0;
  std::string out_;
  std::vector<TextSpan> places_;
};

}  // namespace tapestry::data::huggingface
