#include "text/tokenizers/huggingface/normalizer.h"

#include <string_view>
#include <utility>
#include <vector>

#include "text/tokenizers/huggingface/byte_characters.h"
#include "text/tokenizers/huggingface/normal_form.h"
#include "text/tokenizers/huggingface/unicode_older.h"

namespace tapestry::data::huggingface {
namespace normalizers {
namespace {

std::unique_ptr<Normalizer> make(const Component& component);

class Sequence final : public Normalizer {
 public:
  explicit Sequence(const Component& component) {
    for (const Component& part : component.parts("normalizers")) {
      parts_.push_back(make(part));
    }
  }
  void apply(AlignedText& text) const override {
    for (const auto& part : parts_) {
      part->apply(text);
    }
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> parts_;
};

class Form final : public Normalizer {
 public:
  Form(bool compatible, bool composed) : form_(compatible, composed) {}
  void apply(AlignedText& text) const override { form_.apply(text); }

 private:
  NormalForm form_;
};

// Drops the characters that `Drops` says.
template <class Drops>
void filter(AlignedText& text, const Drops& drops) {
  Rewrite out(text);
  while (!out.rest().empty()) {
    const size_t length = character_length(out.rest(), 0);
    if (drops(code_point_at(out.rest(), 0))) {
      out.drop(length);
    } else {
      out.keep(length);
    }
  }
  out.finish();
}

bool is_ascii(std::string_view text) {
  for (const char c : text) {
    if (static_cast<unsigned char>(c) >= 0x80) {
      return false;
    }
  }
  return true;
}

void lowercase(AlignedText& text) {
  Rewrite out(text);
  std::string lower;
  while (!out.rest().empty()) {
    const std::string_view rest = out.rest();
    const size_t length = character_length(rest, 0);
    lower.clear();
    append_lowercase(lower, code_point_at(rest, 0));
    const size_t first = character_length(lower, 0);
    out.replace(length, std::string_view(lower).substr(0, first));
    if (first < lower.size()) {
      out.insert(std::string_view(lower).substr(first));
    }
  }
  out.finish();
}

class Lowercase final : public Normalizer {
 public:
  void apply(AlignedText& text) const override { lowercase(text); }
};

class StripAccents final : public Normalizer {
 public:
  void apply(AlignedText& text) const override {
    if (!is_ascii(text.text())) {
      filter(text, is_old_mark);
    }
  }
};

class Strip final : public Normalizer {
 public:
  explicit Strip(const Component& component)
      : left_(component.flag("strip_left")), right_(component.flag("strip_right")) {}

  void apply(AlignedText& text) const override {
    const std::string& all = text.text();
    size_t begin = 0;
    while (left_ && begin < all.size() && is_white_space(code_point_at(all, begin))) {
      begin += character_length(all, begin);
    }
    size_t end = right_ ? begin : all.size();
    for (size_t at = begin; right_ && at < all.size(); at += character_length(all, at)) {
      if (!is_white_space(code_point_at(all, at))) {
        end = at + character_length(all, at);
      }
    }
    Rewrite out(text);
    out.drop(begin);
    out.keep(end - begin);
    out.finish();
  }

 private:
  bool left_;
  bool right_;
};

class Prepend final : public Normalizer {
 public:
  explicit Prepend(const Component& component) : prefix_(component.text("prepend")) {}
  void apply(AlignedText& text) const override {
    if (text.text().empty()) {
      return;
    }
    Rewrite out(text);
    out.insert_before(prefix_);
    out.keep(text.text().size());
    out.finish();
  }

 private:
  std::string prefix_;
};

class Replace final : public Normalizer {
 public:
  explicit Replace(const Component& component)
      : pattern_(component.pattern("pattern")), content_(component.text("content")) {}

  void apply(AlignedText& text) const override {
    Pattern::Finder finder(pattern_, text.text());
    Pattern::Match match;
    if (!finder.next(match)) {
      return;
    }
    Rewrite out(text);
    size_t at = 0;
    do {
      out.keep(match.begin - at);
      out.drop(match.end - match.begin);
      out.insert(content_);
      at = match.end;
    } while (finder.next(match));
    out.keep(text.text().size() - at);
    out.finish();
  }

 private:
  Pattern pattern_;
  std::string content_;
};

class ByteLevel final : public Normalizer {
 public:
  void apply(AlignedText& text) const override {
    Rewrite out(text);
    while (!out.rest().empty()) {
      const std::string_view rest = out.rest();
      const size_t length = character_length(rest, 0);
      std::string written;
      for (size_t i = 0; i < length; ++i) {
        written += character_of_byte(static_cast<uint8_t>(rest[i]));
      }
      out.replace(length, written);
    }
    out.finish();
  }
};

// The library's rules for machine translation: control characters go, odd spaces become one.
class Nmt final : public Normalizer {
 public:
  void apply(AlignedText& text) const override {
    filter(text, [](uint32_t p) {
      return (p >= 0x1 && p <= 0x8) || p == 0xB || (p >= 0xE && p <= 0x1F) || p == 0x7F ||
             p == 0x8F || p == 0x9F;
    });
    Rewrite out(text);
    while (!out.rest().empty()) {
      const uint32_t p = code_point_at(out.rest(), 0);
      const size_t length = character_length(out.rest(), 0);
      const bool space = p == 0x9 || p == 0xA || p == 0xC || p == 0xD || p == 0x1680 ||
                         (p >= 0x200B && p <= 0x200F) || p == 0x2028 || p == 0x2029 ||
                         p == 0x2581 || p == 0xFEFF || p == 0xFFFD;
      if (space) {
        out.replace(length, " ");
      } else {
        out.keep(length);
      }
    }
    out.finish();
  }
};

class Bert final : public Normalizer {
 public:
  explicit Bert(const Component& component)
      : clean_(component.flag("clean_text", true)),
        chinese_(component.flag("handle_chinese_chars", true)),
        lowercase_(component.flag("lowercase", true)),
        strip_accents_(component.flag("strip_accents", lowercase_)),
        decomposed_(/*compatible=*/false, /*composed=*/false) {}

  void apply(AlignedText& text) const override {
    if (clean_) {
      clean(text);
    }
    if (chinese_ && !is_ascii(text.text())) {
      space_chinese(text);
    }
    if (strip_accents_) {
      decomposed_.apply(text);
      filter(text, is_old_nonspacing_mark);
    }
    if (lowercase_) {
      lowercase(text);
    }
  }

 private:
  static void clean(AlignedText& text) {
    filter(text, [](uint32_t p) {
      const bool control = p != '\t' && p != '\n' && p != '\r' && is_old_control(p);
      return p == 0 || p == 0xFFFD || control;
    });
    Rewrite out(text);
    while (!out.rest().empty()) {
      const size_t length = character_length(out.rest(), 0);
      if (is_white_space(code_point_at(out.rest(), 0))) {
        out.replace(length, " ");
      } else {
        out.keep(length);
      }
    }
    out.finish();
  }

  static void space_chinese(AlignedText& text) {
    Rewrite out(text);
    while (!out.rest().empty()) {
      const uint32_t p = code_point_at(out.rest(), 0);
      const size_t length = character_length(out.rest(), 0);
      const bool chinese = (p >= 0x4E00 && p <= 0x9FFF) || (p >= 0x3400 && p <= 0x4DBF) ||
                           (p >= 0x20000 && p <= 0x2A6DF) || (p >= 0x2A700 && p <= 0x2B73F) ||
                           (p >= 0x2B740 && p <= 0x2B81F) || (p >= 0x2B920 && p <= 0x2CEAF) ||
                           (p >= 0xF900 && p <= 0xFAFF) || (p >= 0x2F800 && p <= 0x2FA1F);
      if (chinese) {
        out.insert_before(" ");
      }
      out.keep(length);
      if (chinese) {
        out.insert(" ");
      }
    }
    out.finish();
  }

  bool clean_;
  bool chinese_;
  bool lowercase_;
  bool strip_accents_;
  NormalForm decomposed_;
};

std::unique_ptr<Normalizer> make(const Component& component) {
  const std::string& type = component.type();
  if (type == "Sequence") {
    return std::make_unique<Sequence>(component);
  }
  if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
    return std::make_unique<Form>(type[2] == 'K', type.back() == 'C');
  }
  if (type == "Lowercase") {
    return std::make_unique<Lowercase>();
  }
  if (type == "StripAccents") {
    return std::make_unique<StripAccents>();
  }
  if (type == "Strip") {
    return std::make_unique<Strip>(component);
  }
  if (type == "Prepend") {
    return std::make_unique<Prepend>(component);
  }
  if (type == "Replace") {
    return std::make_unique<Replace>(component);
  }
  if (type == "ByteLevel") {
    return std::make_unique<ByteLevel>();
  }
  if (type == "Nmt") {
    return std::make_unique<Nmt>();
  }
  if (type == "BertNormalizer") {
    return std::make_unique<Bert>(component);
  }
  if (type == "Precompiled") {
    return make_precompiled_normalizer(component);
  }
  component.refuse();
}

}  // namespace
}  // namespace normalizers

std::unique_ptr<Normalizer> make_normalizer(const Json& json) {
  return json.is_null() ? nullptr : normalizers::make(Component(json, "normalizer"));
}

}  // namespace tapestry::data::huggingface
