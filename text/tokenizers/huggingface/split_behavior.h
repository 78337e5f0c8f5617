// What becomes of the parts of a text that a pattern matches.
#pragma once

#include <cstddef>
#include <string>

#include "text/tokenizers/huggingface/pre_tokenizer.h"

namespace tapestry::data::huggingface {

enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

/// By its name in tokenizer.json; ValueError for another one.
SplitBehavior split_behavior(const Component& component, const std::string& name);

/// Takes matches and what lies between them, from the beginning of a text to its end, and gives the
/// pieces to a sink.
class Splitter {
 public:
  Splitter(const Slice& text, SplitBehavior behavior, bool invert, PieceSink& sink)
      : text_(text), behavior_(behavior), invert_(invert), sink_(sink) {}

  /// [begin, end) matches; what lies before it and behind the last one does not.
  void match(size_t begin, size_t end) {
    if (begin != at_) {
      part(at_, begin, invert_);
    }
    part(begin, end, !invert_);
    at_ = end;
  }
  /// The text ends.
  void finish() {
    if (at_ != text_.text.size()) {
      part(at_, text_.text.size(), invert_);
    }
    give();
  }

 private:
  void part(size_t begin, size_t end, bool match);
  void give() {
    if (held_ && held_end_ > held_begin_) {
      sink_.piece(text_.part(held_begin_, held_end_));
    }
    held_ = false;
  }
  void hold(size_t begin, size_t end) {
    give();
    held_ = true;
    held_begin_ = begin;
    held_end_ = end;
  }

  Slice text_;
  SplitBehavior behavior_;
  bool invert_;
  PieceSink& sink_;
  size_t at_ = 0;
  bool held_ = false;
  bool last_match_ = false;
  size_t held_begin_ = 0;
  size_t held_end_ = 0;
};

}  // namespace tapestry::data::huggingface
