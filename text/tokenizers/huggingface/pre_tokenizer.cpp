#include "text/tokenizers/huggingface/pre_tokenizer.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "autograd/tensor/error.h"
#include "text/tokenizers/huggingface/byte_characters.h"
#include "text/tokenizers/huggingface/normal_form.h"
#include "text/tokenizers/huggingface/split_behavior.h"
#include "text/tokenizers/huggingface/unicode_older.h"

namespace tapestry::data::huggingface {
namespace pre_tokenizers {
namespace {

constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// \w+|[^\w\s]+ as Rust's regular expressions have it, in which numbers that are no digits are no
// words.
constexpr const char* kWordsPattern = R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200C}\x{200D}]+|)"
                                      R"([^\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200C}\x{200D}\s]+)";

void split_by(const Pattern& pattern,
              const Slice& piece,
              SplitBehavior behavior,
              bool invert,
              PieceSink& sink) {
  Splitter splitter(piece, behavior, invert, sink);
  Pattern::Finder finder(pattern, piece.text);
  Pattern::Match match;
  while (finder.next(match)) {
    splitter.match(match.begin, match.end);
  }
  splitter.finish();
}

// Splits at single characters.
template <class Is>
void split_at(const Slice& piece, SplitBehavior behavior, PieceSink& sink, const Is& is) {
  Splitter splitter(piece, behavior, false, sink);
  for (size_t at = 0; at < piece.text.size();) {
    const size_t length = character_length(piece.text, at);
    if (is(code_point_at(piece.text, at))) {
      splitter.match(at, at + length);
    }
    at += length;
  }
  splitter.finish();
}

// A copy with `prefix` before it, which comes from where the first character does.
AlignedText with_prefix(const Slice& piece, std::string_view prefix, bool tracked) {
  AlignedText text(piece, tracked);
  Rewrite out(text);
  out.insert_before(prefix);
  out.keep(piece.text.size());
  out.finish();
  return text;
}

class ByteLevel final : public PreTokenizer {
 public:
  ByteLevel(const Component& component, bool writes_characters)
      : prefix_(component.flag("add_prefix_space", true)),
        writes_characters_(writes_characters),
        splits_(component.flag("use_regex", true)),
        pattern_(Pattern::regex(kGpt2Pattern)) {}

  void split(const Slice& piece, bool tracked, PieceSink& sink) const override {
    if (prefix_ && !piece.text.starts_with(' ')) {
      const AlignedText text = with_prefix(piece, " ", tracked);
      cut(text.slice(), tracked, sink);
    } else {
      cut(piece, tracked, sink);
    }
  }

 private:
  // Writes each byte of a piece as its character.
  class Writer final : public PieceSink {
   public:
    Writer(bool tracked, PieceSink& sink) : tracked_(tracked), sink_(sink) {}
    void piece(const Slice& piece) override {
      AlignedText text(piece, tracked_);
      Rewrite out(text);
      std::string written;
      while (!out.rest().empty()) {
        const std::string_view rest = out.rest();
        const size_t length = character_length(rest, 0);
        written.clear();
        for (size_t i = 0; i < length; ++i) {
          written += character_of_byte(static_cast<uint8_t>(rest[i]));
        }
        out.replace(length, written);
      }
      out.finish();
      sink_.piece(text.slice());
    }

   private:
    bool tracked_;
    PieceSink& sink_;
  };

  void cut(const Slice& piece, bool tracked, PieceSink& sink) const {
    if (writes_characters_) {
      Writer writer(tracked, sink);
      cut_to(piece, writer);
    } else {
      cut_to(piece, sink);
    }
  }
  void cut_to(const Slice& piece, PieceSink& sink) const {
    if (splits_) {
      split_by(pattern_, piece, SplitBehavior::kIsolated, false, sink);
    } else {
      sink.piece(piece);
    }
  }

  bool prefix_;
  bool writes_characters_;
  bool splits_;
  Pattern pattern_;
};

class Split final : public PreTokenizer {
 public:
  explicit Split(const Component& component)
      : pattern_(component.pattern("pattern")),
        behavior_(split_behavior(component, component.text("behavior"))),
        invert_(component.flag("invert", false)) {}
  // With a pattern of its own.
  Split(Pattern pattern, SplitBehavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

  void split(const Slice& piece, bool /*tracked*/, PieceSink& sink) const override {
    split_by(pattern_, piece, behavior_, invert_, sink);
  }

 private:
  Pattern pattern_;
  SplitBehavior behavior_;
  bool invert_;
};

class Digits final : public PreTokenizer {
 public:
  explicit Digits(const Component& component)
      : behavior_(component.flag("individual_digits", false) ? SplitBehavior::kIsolated
                                                             : SplitBehavior::kContiguous) {}
  void split(const Slice& piece, bool /*tracked*/, PieceSink& sink) const override {
    split_at(piece, behavior_, sink, [](uint32_t point) {
      return point < 0x80 ? point >= '0' && point <= '9' : general_category(point)[0] == 'N';
    });
  }

 private:
  SplitBehavior behavior_;
};

bool is_punctuation(uint32_t p) {
  const bool ascii = (p >= 33 && p <= 47) || (p >= 58 && p <= 64) || (p >= 91 && p <= 96) ||
                     (p >= 123 && p <= 126);
  return ascii || (p >= 0x80 && is_old_punctuation(p));
}

class Punctuation final : public PreTokenizer {
 public:
  explicit Punctuation(const Component& component)
      : behavior_(split_behavior(component, component.text("behavior", "Isolated"))) {}
  void split(const Slice& piece, bool /*tracked*/, PieceSink& sink) const override {
    split_at(piece, behavior_, sink, is_punctuation);
  }

 private:
  SplitBehavior behavior_;
};

class WhitespaceSplit final : public PreTokenizer {
 public:
  void split(const Slice& piece, bool /*tracked*/, PieceSink& sink) const override {
    split_at(piece, SplitBehavior::kRemoved, sink, is_white_space);
  }
};

class CharDelimiterSplit final : public PreTokenizer {
 public:
  explicit CharDelimiterSplit(const Component& component) {
    const std::string text = component.text("delimiter");
    if (text.empty() || character_length(text, 0) != text.size()) {
      component.fail(concat("\"delimiter\" is \"", text, "\", expected one character"));
    }
    delimiter_ = code_point_at(text, 0);
  }
  void split(const Slice& piece, bool /*tracked*/, PieceSink& sink) const override {
    split_at(piece, SplitBehavior::kRemoved, sink,
             [&](uint32_t point) { return point == delimiter_; });
  }

 private:
  uint32_t delimiter_ = 0;
};

// White space goes, punctuation stands alone.
class Bert final : public PreTokenizer {
 public:
  void split(const Slice& piece, bool tracked, PieceSink& sink) const override {
    class Words final : public PieceSink {
     public:
      explicit Words(PieceSink& sink) : sink_(sink) {}
      void piece(const Slice& piece) override {
        split_at(piece, SplitBehavior::kIsolated, sink_, is_punctuation);
      }

     private:
      PieceSink& sink_;
    };
    Words words(sink);
    WhitespaceSplit().split(piece, tracked, words);
  }
};

class FixedLength final : public PreTokenizer {
 public:
  explicit FixedLength(const Component& component)
      : length_(component.has("length") ? component.integer("length", 1, int64_t{1} << 30U) : 5) {}
  void split(const Slice& piece, bool /*tracked*/, PieceSink& sink) const override {
    size_t begin = 0;
    int64_t count = 0;
    for (size_t at = 0; at < piece.text.size();) {
      at += character_length(piece.text, at);
      if (++count == length_ || at == piece.text.size()) {
        sink.piece(piece.part(begin, at));
        begin = at;
        count = 0;
      }
    }
  }

 private:
  int64_t length_;
};

class Metaspace final : public PreTokenizer {
 public:
  explicit Metaspace(const Component& component)
      : replacement_(component.text("replacement")), splits_(component.flag("split", true)) {
    if (replacement_.empty() || character_length(replacement_, 0) != replacement_.size()) {
      component.fail(concat("\"replacement\" is \"", replacement_, "\", expected one character"));
    }
    const std::string scheme = component.text(
        "prepend_scheme", component.flag("add_prefix_space", true) ? "always" : "never");
    if (scheme != "always" && scheme != "first" && scheme != "never") {
      component.fail(concat("the prepend_scheme ", scheme, " is not implemented"));
    }
    always_ = scheme == "always";
    first_ = scheme == "first";
  }

  bool looks_at_origin() const override { return first_; }

  void split(const Slice& piece, bool tracked, PieceSink& sink) const override {
    AlignedText text(piece, tracked);
    Rewrite out(text);
    const bool has_prefix = piece.text.starts_with(replacement_) || piece.text.starts_with(' ');
    if (!has_prefix && (always_ || (first_ && piece.origin == 0))) {
      out.insert_before(replacement_);
    }
    while (!out.rest().empty()) {
      const size_t next = std::min(out.rest().find(' '), out.rest().size());
      out.keep(next);
      if (!out.rest().empty()) {
        out.replace(1, replacement_);
      }
    }
    out.finish();
    const Slice whole = text.slice();
    if (!splits_) {
      sink.piece(whole);
      return;
    }
    Splitter splitter(whole, SplitBehavior::kMergedWithNext, false, sink);
    for (size_t at = whole.text.find(replacement_); at != std::string_view::npos;
         at = whole.text.find(replacement_, at + replacement_.size())) {
      splitter.match(at, at + replacement_.size());
    }
    splitter.finish();
  }

 private:
  std::string replacement_;
  bool splits_;
  bool always_ = false;
  bool first_ = false;
};

void add_steps(const Component& component,
               bool last,
               bool model_of_bytes,
               PreTokenizerSteps& steps) {
  const std::string& type = component.type();
  auto& list = steps.steps;
  if (type == "Sequence") {
    const std::vector<Component> parts = component.parts("pretokenizers");
    for (size_t i = 0; i < parts.size(); ++i) {
      add_steps(parts[i], last && i + 1 == parts.size(), model_of_bytes, steps);
    }
  } else if (type == "ByteLevel") {
    steps.byte_level = last && model_of_bytes;
    list.push_back(std::make_unique<ByteLevel>(component, !steps.byte_level));
  } else if (type == "Split") {
    list.push_back(std::make_unique<Split>(component));
  } else if (type == "Digits") {
    list.push_back(std::make_unique<Digits>(component));
  } else if (type == "Metaspace") {
    list.push_back(std::make_unique<Metaspace>(component));
  } else if (type == "Whitespace") {
    list.push_back(std::make_unique<Split>(Pattern::regex(kWordsPattern), SplitBehavior::kRemoved,
                                           /*invert=*/true));
  } else if (type == "WhitespaceSplit") {
    list.push_back(std::make_unique<WhitespaceSplit>());
  } else if (type == "Punctuation") {
    list.push_back(std::make_unique<Punctuation>(component));
  } else if (type == "CharDelimiterSplit") {
    list.push_back(std::make_unique<CharDelimiterSplit>(component));
  } else if (type == "BertPreTokenizer") {
    list.push_back(std::make_unique<Bert>());
  } else if (type == "FixedLength") {
    list.push_back(std::make_unique<FixedLength>(component));
  } else {
    component.refuse();
  }
}

// Runs the steps from one on, piece by piece.
class Chain final : public PieceSink {
 public:
  Chain(const PreTokenizerSteps& steps, size_t next, bool tracked, PieceSink& sink)
      : steps_(steps), next_(next), tracked_(tracked), sink_(sink) {}
  void piece(const Slice& piece) override {
    if (next_ + 1 == steps_.steps.size()) {
      steps_.steps[next_]->split(piece, tracked_, sink_);
      return;
    }
    Chain chain(steps_, next_ + 1, tracked_, sink_);
    steps_.steps[next_]->split(piece, tracked_, chain);
  }

 private:
  const PreTokenizerSteps& steps_;
  size_t next_;
  bool tracked_;
  PieceSink& sink_;
};

}  // namespace
}  // namespace pre_tokenizers

void PreTokenizerSteps::split(const Slice& text, bool tracked, PieceSink& sink) const {
  if (steps.empty()) {
    sink.piece(text);
    return;
  }
  pre_tokenizers::Chain(*this, 0, tracked, sink).piece(text);
}

PreTokenizerSteps make_pre_tokenizer(const Json& json, bool model_of_bytes) {
  PreTokenizerSteps steps;
  if (!json.is_null()) {
    pre_tokenizers::add_steps(Component(json, "pre_tokenizer"), true, model_of_bytes, steps);
  }
  return steps;
}

bool ends_with_byte_level(const Json& json) {
  if (!json.is_object()) {
    return false;
  }
  const Json type = json.value("type", Json());
  if (type == "Sequence") {
    const auto parts = json.find("pretokenizers");
    return parts != json.end() && parts->is_array() && !parts->empty() &&
           ends_with_byte_level(parts->back());
  }
  return type == "ByteLevel";
}

}  // namespace tapestry::data::huggingface
