#include "text/tokenizers/huggingface/aligned_text.h"

#include <utility>

#include "autograd/tensor/error.h"

namespace tapestry::data::huggingface {

TextSpan Slice::place_of(size_t begin, size_t end) const {
  if (begin >= end) {
    const int64_t at = places != nullptr && begin > 0 ? places[begin - 1].end
                                                      : origin + static_cast<int64_t>(begin);
    return {at, at};
  }
  if (places != nullptr) {
    return {places[begin].begin, places[end - 1].end};
  }
  while (begin > 0 && continues_character(text[begin])) {
    --begin;
  }
  while (end < text.size() && continues_character(text[end])) {
    ++end;
  }
  return {origin + static_cast<int64_t>(begin), origin + static_cast<int64_t>(end)};
}

AlignedText::AlignedText(const Slice& slice, bool tracked)
    : text_(slice.text),
      tracked_(tracked),
      origin_(slice.origin),
      most_(most_bytes_from(slice.text.size())) {
  if (!tracked_) {
    return;
  }
  if (slice.places != nullptr) {
    places_.assign(slice.places, slice.places + slice.text.size());
    return;
  }
  places_.reserve(text_.size());
  for (size_t at = 0; at < text_.size();) {
    const size_t length = character_length(text_, at);
    const int64_t begin = origin_ + static_cast<int64_t>(at);
    places_.insert(places_.end(), length, {begin, begin + static_cast<int64_t>(length)});
    at += length;
  }
}

void check_growth(size_t bytes, size_t most) {
  check<ValueError>(bytes <= most, "a text becomes longer than ", most,
                    " bytes, 32 for each that it had and some; the file's replacements make too "
                    "much of it");
}

Rewrite::Rewrite(AlignedText& text) : text_(text) {
  out_.reserve(text.text_.size() + text.text_.size() / 8);
  if (text.tracked_) {
    places_.reserve(out_.capacity());
  }
}

void Rewrite::keep(size_t bytes) {
  out_.append(text_.text_, at_, bytes);
  if (text_.tracked_) {
    const auto from = text_.places_.begin() + static_cast<std::ptrdiff_t>(at_);
    places_.insert(places_.end(), from, from + static_cast<std::ptrdiff_t>(bytes));
  }
  at_ += bytes;
}

void Rewrite::replace(size_t bytes, std::string_view with) {
  check_growth(out_.size() + with.size(), text_.most_);
  out_.append(with);
  if (text_.tracked_) {
    places_.insert(places_.end(), with.size(), text_.places_[at_]);
  }
  at_ += bytes;
}

void Rewrite::insert(std::string_view what) {
  check_growth(out_.size() + what.size(), text_.most_);
  out_.append(what);
  if (text_.tracked_) {
    places_.insert(places_.end(), what.size(), at_ == 0 ? TextSpan{} : text_.places_[at_ - 1]);
  }
}

void Rewrite::insert_before(std::string_view what) {
  check_growth(out_.size() + what.size(), text_.most_);
  out_.append(what);
  if (text_.tracked_) {
    const bool behind = at_ >= text_.places_.size();
    places_.insert(places_.end(), what.size(), behind ? TextSpan{} : text_.places_[at_]);
  }
}

void Rewrite::finish() {
  text_.text_ = std::move(out_);
  text_.places_ = std::move(places_);
}

}  // namespace tapestry::data::huggingface
