#include "text/tokenizers/huggingface/decoder.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "autograd/tensor/error.h"
#include "text/tokenizers/huggingface/aligned_text.h"
#include "text/tokenizers/huggingface/byte_characters.h"
#include "text/util/utf8.h"

namespace tapestry::data::huggingface {
namespace decoders {
namespace {

// That replacements may make of a token, or of all where they are joined, if they make it longer.
constexpr size_t kMostBytes = size_t{64} << 20U;
constexpr const char* kReplacement = "\xEF\xBF\xBD";

void replace_all(std::string& text, std::string_view what, std::string_view with) {
  size_t found = text.find(what);
  if (found == std::string::npos) {
    return;
  }
  std::string out;
  size_t at = 0;
  for (; found != std::string::npos; found = text.find(what, at)) {
    out.append(text, at, found - at).append(with);
    at = found + what.size();
  }
  text = out.append(text, at);
}

// Joins what comes, for a step that has to see a token whole.
class Joined final : public DecoderRun {
 public:
  explicit Joined(std::unique_ptr<DecoderRun> inner) : inner_(std::move(inner)) {}
  void add(std::string token) override { all_ += token; }
  void finish() override {
    inner_->add(std::exchange(all_, {}));
    inner_->finish();
  }

 private:
  std::unique_ptr<DecoderRun> inner_;
  std::string all_;
};

std::unique_ptr<DecoderRun> joined_if(bool fused, std::unique_ptr<DecoderRun> run) {
  if (fused) {
    run = std::make_unique<Joined>(std::move(run));
  }
  return run;
}

// A step whose run is `Run(step, next)`; parts of one token are joined before it.
template <class Step, class Run>
class WholeTokens : public DecoderStep {
 public:
  std::unique_ptr<DecoderRun> start(bool fused, DecoderRun& next) const override {
    return joined_if(fused, std::make_unique<Run>(static_cast<const Step&>(*this), next));
  }
};

// A run that gives every token on as step.apply(token, whether it is the first) makes it.
template <class Step>
class EachToken final : public DecoderRun {
 public:
  EachToken(const Step& step, DecoderRun& next) : step_(step), next_(next) {}
  void add(std::string token) override {
    next_.add(step_.apply(std::move(token), std::exchange(first_, false)));
  }
  void finish() override { next_.finish(); }

 private:
  const Step& step_;
  DecoderRun& next_;
  bool first_ = true;
};

class ByteLevel final : public DecoderStep {
 public:
  bool fuses() const override { return true; }
  std::unique_ptr<DecoderRun> start(bool fused, DecoderRun& next) const override {
    return joined_if(fused, std::make_unique<Run>(next));
  }

 private:
  class Run final : public DecoderRun {
   public:
    explicit Run(DecoderRun& next) : next_(next) {}
    void add(std::string token) override {
      // What is not made of such characters stands for itself.
      held_ += bytes_of_token(token).value_or(token);
      const size_t whole = without_cut_character(held_);
      if (whole > 0) {
        next_.add(replace_invalid_utf8(std::string_view(held_).substr(0, whole)));
        held_.erase(0, whole);
      }
    }
    void finish() override {
      if (!held_.empty()) {
        next_.add(replace_invalid_utf8(std::exchange(held_, {})));
      }
      next_.finish();
    }

   private:
    DecoderRun& next_;
    std::string held_;
  };
};

class Fuse final : public DecoderStep {
 public:
  bool fuses() const override { return true; }
  std::unique_ptr<DecoderRun> start(bool /*fused*/, DecoderRun& next) const override {
    class Run final : public DecoderRun {
     public:
      explicit Run(DecoderRun& next) : next_(next) {}
      void add(std::string token) override { next_.add(std::move(token)); }
      void finish() override { next_.finish(); }

     private:
      DecoderRun& next_;
    };
    return std::make_unique<Run>(next);
  }
};

// <0xE2> is a byte; bytes side by side are a text, or U+FFFD each.
class ByteFallback final : public DecoderStep {
 public:
  std::unique_ptr<DecoderRun> start(bool fused, DecoderRun& next) const override {
    return joined_if(fused, std::make_unique<Run>(next));
  }

 private:
  class Run final : public DecoderRun {
   public:
    explicit Run(DecoderRun& next) : next_(next) {}
    void add(std::string token) override {
      const int byte = byte_of(token);
      if (byte >= 0) {
        bytes_.push_back(static_cast<char>(byte));
        return;
      }
      flush();
      next_.add(std::move(token));
    }
    void finish() override {
      flush();
      next_.finish();
    }

   private:
    static int byte_of(std::string_view token) {
      constexpr size_t kLength = 6;
      if (token.size() != kLength || !token.starts_with("<0x") || token.back() != '>') {
        return -1;
      }
      int value = 0;
      for (const char c : token.substr(3, 2)) {
        const int digit = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                 : -1;
        if (digit < 0) {
          return -1;
        }
        value = value * 16 + digit;
      }
      return value;
    }
    void flush() {
      if (bytes_.empty()) {
        return;
      }
      if (is_valid_utf8(bytes_)) {
        next_.add(std::exchange(bytes_, {}));
        return;
      }
      for (size_t i = 0; i < bytes_.size(); ++i) {
        next_.add(kReplacement);
      }
      bytes_.clear();
    }

    DecoderRun& next_;
    std::string bytes_;
  };
};

class Replace final : public WholeTokens<Replace, EachToken<Replace>> {
 public:
  explicit Replace(const Component& component)
      : pattern_(component.pattern("pattern")), content_(component.text("content")) {}
  std::string apply(const std::string& token, bool /*first*/) const {
    std::string text;
    size_t at = 0;
    Pattern::Finder finder(pattern_, token);
    Pattern::Match match;
    while (finder.next(match)) {
      text.append(token, at, match.begin - at).append(content_);
      check<ValueError>(text.size() <= std::max(kMostBytes, token.size()),
                        "decoder: a token becomes longer than ", kMostBytes,
                        " bytes; the file's replacements make too much of it");
      at = match.end;
    }
    return text.append(token, at);
  }

 private:
  Pattern pattern_;
  std::string content_;
};

// Takes `start` characters from the beginning of a token, and `stop` from its end, if they are
// there.
class Strip final : public DecoderStep {
 public:
  explicit Strip(const Component& component)
      : content_(component.text("content")),
        start_(component.integer("start", 0, kMost)),
        stop_(component.integer("stop", 0, kMost)) {
    if (content_.empty() || character_length(content_, 0) != content_.size()) {
      component.fail(concat("\"content\" is \"", content_, "\", expected one character"));
    }
  }
  std::unique_ptr<DecoderRun> start(bool fused, DecoderRun& next) const override {
    return std::make_unique<Run>(*this, fused, next);
  }

 private:
  static constexpr int64_t kMost = 1 << 20;

  class Run final : public DecoderRun {
   public:
    Run(const Strip& step, bool fused, DecoderRun& next)
        : step_(step), fused_(fused), next_(next), left_(step.start_) {}
    void add(std::string token) override {
      if (!fused_) {
        left_ = step_.start_;
      }
      size_t begin = 0;
      while (left_ > 0 && std::string_view(token).substr(begin).starts_with(step_.content_)) {
        begin += step_.content_.size();
        --left_;
      }
      token.erase(0, begin);
      if (!token.empty()) {
        left_ = 0;
      }
      token.insert(0, std::exchange(held_, {}));
      // What may be the end.
      const size_t length = step_.content_.size();
      size_t end = token.size();
      for (int64_t i = 0; i < step_.stop_ && end >= length &&
                          token.compare(end - length, length, step_.content_) == 0;
           ++i) {
        end -= length;
      }
      if (fused_) {
        held_ = token.substr(end);
      }
      token.resize(end);
      next_.add(std::move(token));
    }
    void finish() override {
      held_.clear();
      next_.finish();
    }

   private:
    const Strip& step_;
    bool fused_;
    DecoderRun& next_;
    int64_t left_;
    std::string held_;
  };

  std::string content_;
  int64_t start_;
  int64_t stop_;
};

// The sign becomes a space, and nothing in the first token.
class Metaspace final : public DecoderStep {
 public:
  explicit Metaspace(const Component& component)
      : replacement_(component.text("replacement")),
        prefix_(component.text("prepend_scheme",
                               component.flag("add_prefix_space", true) ? "always" : "never") !=
                "never") {
    if (replacement_.empty()) {
      component.fail("\"replacement\" is empty, expected one character");
    }
  }
  std::unique_ptr<DecoderRun> start(bool fused, DecoderRun& next) const override {
    class Run final : public DecoderRun {
     public:
      Run(const Metaspace& step, bool fused, DecoderRun& next)
          : step_(step), fused_(fused), next_(next) {}
      void add(std::string token) override {
        replace_all(token, step_.replacement_, first_ && step_.prefix_ ? "" : " ");
        first_ = fused_;
        next_.add(std::move(token));
      }
      void finish() override { next_.finish(); }

     private:
      const Metaspace& step_;
      bool fused_;
      DecoderRun& next_;
      bool first_ = true;
    };
    return std::make_unique<Run>(*this, fused, next);
  }

 private:
  std::string replacement_;
  bool prefix_;
};

class WordPiece final : public WholeTokens<WordPiece, EachToken<WordPiece>> {
 public:
  explicit WordPiece(const Component& component)
      : prefix_(component.text("prefix")), cleanup_(component.flag("cleanup")) {}
  std::string apply(std::string token, bool first) const {
    if (!first) {
      if (token.starts_with(prefix_)) {
        token.erase(0, prefix_.size());
      } else {
        token.insert(token.begin(), ' ');
      }
    }
    if (cleanup_) {
      constexpr std::pair<const char*, const char*> kRules[] = {
          {" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
          {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
          {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
      for (const auto& [what, with] : kRules) {
        replace_all(token, what, with);
      }
    }
    return token;
  }

 private:
  std::string prefix_;
  bool cleanup_;
};

// The suffix that ends a word becomes a space, but nothing in the last token.
class BpeSuffix;
class BpeSuffixRun final : public DecoderRun {
 public:
  BpeSuffixRun(const BpeSuffix& step, DecoderRun& next) : step_(step), next_(next) {}
  void add(std::string token) override;
  void finish() override;

 private:
  const BpeSuffix& step_;
  DecoderRun& next_;
  bool has_ = false;
  std::string held_;
};
class BpeSuffix final : public WholeTokens<BpeSuffix, BpeSuffixRun> {
 public:
  explicit BpeSuffix(const Component& component) : suffix_(component.text("suffix", "</w>")) {
    if (suffix_.empty()) {
      component.fail("\"suffix\" is empty");
    }
  }
  const std::string& suffix() const { return suffix_; }

 private:
  std::string suffix_;
};
void BpeSuffixRun::add(std::string token) {
  if (has_) {
    replace_all(held_, step_.suffix(), " ");
    next_.add(std::move(held_));
  }
  has_ = true;
  held_ = std::move(token);
}
void BpeSuffixRun::finish() {
  if (has_) {
    replace_all(held_, step_.suffix(), "");
    next_.add(std::exchange(held_, {}));
    has_ = false;
  }
  next_.finish();
}

// For files without a decoder.
class Spaced final : public DecoderStep {
 public:
  std::unique_ptr<DecoderRun> start(bool /*fused*/, DecoderRun& next) const override {
    class Run final : public DecoderRun {
     public:
      explicit Run(DecoderRun& next) : next_(next) {}
      void add(std::string token) override {
        next_.add(std::exchange(first_, false) ? std::move(token) : concat(" ", token));
      }
      void finish() override { next_.finish(); }

     private:
      DecoderRun& next_;
      bool first_ = true;
    };
    return std::make_unique<Run>(next);
  }
};

void add_decoder(const Component& component, std::vector<std::unique_ptr<DecoderStep>>& steps) {
  const std::string& type = component.type();
  if (type == "Sequence") {
    for (const Component& part : component.parts("decoders")) {
      add_decoder(part, steps);
    }
  } else if (type == "ByteLevel") {
    steps.push_back(std::make_unique<ByteLevel>());
  } else if (type == "Replace") {
    steps.push_back(std::make_unique<Replace>(component));
  } else if (type == "ByteFallback") {
    steps.push_back(std::make_unique<ByteFallback>());
  } else if (type == "Fuse") {
    steps.push_back(std::make_unique<Fuse>());
  } else if (type == "Strip") {
    steps.push_back(std::make_unique<Strip>(component));
  } else if (type == "Metaspace") {
    steps.push_back(std::make_unique<Metaspace>(component));
  } else if (type == "WordPiece") {
    steps.push_back(std::make_unique<WordPiece>(component));
  } else if (type == "BPEDecoder") {
    steps.push_back(std::make_unique<BpeSuffix>(component));
  } else {
    component.refuse();
  }
}

}  // namespace
}  // namespace decoders

class Decoder::Run::Text final : public DecoderRun {
 public:
  void add(std::string token) override { text += token; }
  void finish() override {}
  std::string text;
};

Decoder::Decoder(const Json& json) {
  if (json.is_null()) {
    steps_.push_back(std::make_unique<decoders::Spaced>());
  } else {
    decoders::add_decoder(Component(json, "decoder"), steps_);
  }
}

Decoder::Run::Run(const Decoder& decoder) : text_(std::make_unique<Text>()) {
  std::vector<bool> fused(decoder.steps_.size());
  for (size_t i = 1; i < fused.size(); ++i) {
    fused[i] = fused[i - 1] || decoder.steps_[i - 1]->fuses();
  }
  DecoderRun* next = text_.get();
  for (size_t i = decoder.steps_.size(); i-- > 0;) {
    runs_.push_back(decoder.steps_[i]->start(fused[i], *next));
    next = runs_.back().get();
  }
}

Decoder::Run::Run(Run&&) noexcept = default;
Decoder::Run& Decoder::Run::operator=(Run&&) noexcept = default;
Decoder::Run::~Run() = default;

void Decoder::Run::add(std::string token) {
  if (runs_.empty()) {
    text_->add(std::move(token));
  } else {
    runs_.back()->add(std::move(token));
  }
}

void Decoder::Run::finish() {
  if (!runs_.empty()) {
    runs_.back()->finish();
  }
}

std::string Decoder::Run::take() { return std::exchange(text_->text, {}); }

}  // namespace tapestry::data::huggingface
