#include "parallel_core/data/huggingface/pattern_syntax.h"

#include <cctype>
#include <utility>
#include <vector>

#include "autograd/tensor/error.h"
#include "parallel_core/data/huggingface/unicode_newer.h"

namespace tapestry::data::huggingface {
namespace {

// Inside brackets.
constexpr const char* kSpace =
    R"(\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
constexpr const char* kNoSpace =
    R"(\x{0}-\x{8}\x{E}-\x{1F}!-\x{84}\x{86}-\x{9F}\x{A1}-\x{167F}\x{1681}-\x{1FFF}\x{200B}-\x{2027})"
    R"(\x{202A}-\x{202E}\x{2030}-\x{205E}\x{2060}-\x{2FFF}\x{3001}-\x{10FFFF})";
constexpr const char* kHexDigit = "0-9A-Fa-f";
constexpr int kDeepestClass = 16;

std::string word_class() {
  return R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})" + newer_ranges("L") + newer_ranges("Nd");
}

// Outside of brackets Oniguruma asks a table of its own for the first 256 characters, in which
// superscripts and fractions are word characters; inside, and for \\p{Word}, they are not.
std::string word_escape() { return word_class() + R"(\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE})"; }

// The content of brackets for a property by its name; empty if it is to be left to PCRE2 as it is.
std::string property_class(std::string name) {
  constexpr std::pair<const char*, const char*> kLongNames[] = {{"letter", "L"},
                                                                {"number", "N"},
                                                                {"digit", "Nd"},
                                                                {"uppercaseletter", "Lu"},
                                                                {"mark", "M"},
                                                                {"separator", "Z"},
                                                                {"lowercaseletter", "Ll"},
                                                                {"otherletter", "Lo"},
                                                                {"symbol", "S"},
                                                                {"other", "C"},
                                                                {"titlecaseletter", "Lt"},
                                                                {"modifierletter", "Lm"},
                                                                {"punctuation", "P"},
                                                                {"decimalnumber", "Nd"}};
  std::string plain;
  for (const char c : name) {
    if (c != ' ' && c != '_' && c != '-') {
      plain.push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(c))));
    }
  }
  if (plain == "space" || plain == "whitespace") {
    return kSpace;
  }
  if (plain == "word") {
    return word_class();
  }
  if (plain == "alpha" || plain == "alphabetic") {
    return R"(\p{Alphabetic})" + newer_ranges("L");
  }
  if (plain == "alnum") {
    return R"(\p{Alphabetic}\p{Nd})" + newer_ranges("L") + newer_ranges("Nd");
  }
  if (plain == "upper" || plain == "lower") {
    return plain == "upper" ? R"(\p{Uppercase})" : R"(\p{Lowercase})";
  }
  if (plain == "punct") {  // of POSIX, as Oniguruma has it
    return R"(\p{P}\p{S})";
  }
  if (plain == "any" || plain == "ascii") {
    return plain == "any" ? R"(\x{0}-\x{10FFFF})" : R"(\x{0}-\x{7F})";
  }
  for (const auto& [known, category] : kLongNames) {
    if (plain == known) {
      name = category;
    }
  }
  if (name.size() <= 2 || name == "L&") {
    return concat("\\p{", name, "}", name.size() <= 2 ? newer_ranges(name) : std::string());
  }
  const size_t value = name.find_first_of("=:");
  return concat("\\p{sc:", value == std::string::npos ? name : name.substr(value + 1), "}");
}

// The content of brackets for [:name:].
std::string posix_class(const std::string& name) {
  for (const char* known :
       {"alpha", "alnum", "digit", "lower", "punct", "space", "upper", "word"}) {
    if (name == known) {
      return property_class(name);
    }
  }
  return concat("[:", name, ":]");
}

class PatternTranslator {
 public:
  explicit PatternTranslator(std::string_view pattern) : in_(pattern) {}

  std::string translate() {
    while (at_ < in_.size()) {
      element();
    }
    return std::move(out_);
  }

 private:
  void element() {
    const char c = in_[at_];
    switch (c) {
      case '\\':
        begin_atom();
        out_ += escape(/*in_class=*/false);
        return;
      case '[':
        begin_atom();
        out_ += bracket(0);
        return;
      case '(':
        begin_atom();
        open_.push_back(out_.size());
        group();
        return;
      case ')':
        if (!open_.empty()) {
          atom_ = open_.back();
          open_.pop_back();
        }
        out_ += in_[at_++];
        return;
      case '{':
        if (range_quantifier()) {
          return;
        }
        break;
      case '*':
      case '+':
      case '?':
      case '|':
        out_ += in_[at_++];
        return;
      default:
        break;
    }
    begin_atom();
    do {
      out_ += in_[at_++];
    } while (at_ < in_.size() && (static_cast<unsigned char>(in_[at_]) & 0xC0U) == 0x80);
  }

  void begin_atom() { atom_ = out_.size(); }

  // "(?" with flags: Ruby's m is what others call s.
  void group() {
    out_ += in_[at_++];
    const std::string_view rest = in_.substr(at_);
    constexpr std::string_view kCalls = "0123456789R&";
    check<ValueError>(
        !(rest.size() > 1 && rest[0] == '?' && kCalls.find(rest[1]) != std::string_view::npos) &&
            !rest.starts_with("?P>") && !rest.starts_with("?C") &&
            !(rest.size() > 2 && (rest[1] == '+' || rest[1] == '-') && rest[0] == '?' &&
              std::isdigit(static_cast<unsigned char>(rest[2])) != 0),
        "(", rest.substr(0, 3), ": a group that is called is not known here");
    if (at_ + 1 >= in_.size() || in_[at_] != '?' ||
        (std::isalpha(static_cast<unsigned char>(in_[at_ + 1])) == 0 && in_[at_ + 1] != '-')) {
      return;
    }
    if (in_[at_ + 1] == 'P') {  // a named group
      return;
    }
    out_ += in_[at_++];
    while (at_ < in_.size() &&
           (std::isalpha(static_cast<unsigned char>(in_[at_])) != 0 || in_[at_] == '-')) {
      out_ += in_[at_] == 'm' ? 's' : in_[at_];
      ++at_;
    }
  }

  // "{n}", "{n,}", "{n,m}", "{,m}", and a '+' behind it. False: a brace that stands for itself.
  bool range_quantifier() {
    const size_t close = in_.find('}', at_);
    if (close == std::string_view::npos) {
      return false;
    }
    const std::string_view inside = in_.substr(at_ + 1, close - at_ - 1);
    const size_t comma = inside.find(',');
    const auto digits = [](std::string_view text) {
      return text.find_first_not_of("0123456789") == std::string_view::npos;
    };
    if (inside.empty() || inside == "," || !digits(inside.substr(0, comma)) ||
        (comma != std::string_view::npos && !digits(inside.substr(comma + 1)))) {
      return false;
    }
    out_ += comma == 0 ? concat("{0", inside, "}") : concat("{", inside, "}");
    at_ = close + 1;
    if (at_ < in_.size() && in_[at_] == '+') {
      out_.insert(atom_, "(?:");
      out_ += ")+";
      ++at_;
    }
    return true;
  }

  // Reads an escape and returns what stands for it.
  std::string escape(bool in_class) {
    check<ValueError>(at_ + 1 < in_.size(), "a backslash at the end");
    const char c = in_[at_ + 1];
    at_ += 2;
    const auto both = [&](const std::string& content, bool negative) {
      return in_class ? content : concat(negative ? "[^" : "[", content, "]");
    };
    switch (c) {
      case 's':
        return both(kSpace, false);
      case 'S':
        return in_class ? kNoSpace : both(kSpace, true);
      case 'w':
        return both(in_class ? word_class() : word_escape(), false);
      case 'W':
        return both(word_escape(), true);  // inside brackets: bracket()
      case 'b':
      case 'B':
        if (!in_class) {
          const std::string word = concat("[", word_escape(), "]");
          return c == 'b'
                     ? concat("(?:(?<=", word, ")(?!", word, ")|(?<!", word, ")(?=", word, "))")
                     : concat("(?:(?<=", word, ")(?=", word, ")|(?<!", word, ")(?!", word, "))");
        }
        break;
      case 'h':
        return both(kHexDigit, false);
      case 'H':
        check<ValueError>(!in_class, "\\H inside brackets");
        return both(kHexDigit, true);
      case 'u': {
        const std::string digits(in_.substr(at_, 4));
        at_ += digits.size();
        return concat("\\x{", digits, "}");
      }
      case 'p':
      case 'P':
        return property(c == 'P', in_class);
      case 'g':
        throw ValueError("\\g: a group that is called is not known here");
      default:
        break;
    }
    std::string text = concat("\\", std::string(1, c));
    if (c == 'x' && at_ < in_.size() && in_[at_] == '{') {
      const size_t close = in_.find('}', at_);
      check<ValueError>(close != std::string_view::npos, "\\x{ without }");
      text += in_.substr(at_, close + 1 - at_);
      at_ = close + 1;
    }
    return text;
  }

  std::string property(bool negative, bool in_class) {
    std::string name;
    if (at_ < in_.size() && in_[at_] == '{') {
      const size_t close = in_.find('}', at_);
      check<ValueError>(close != std::string_view::npos, "\\p{ without }");
      name = in_.substr(at_ + 1, close - at_ - 1);
      at_ = close + 1;
      if (name.starts_with('^')) {
        name.erase(0, 1);
        negative = !negative;
      }
    } else {
      check<ValueError>(at_ < in_.size(), "\\p without a name");
      name = in_[at_++];
    }
    const std::string content = property_class(name);
    if (!negative) {
      return in_class ? content : concat("[", content, "]");
    }
    if (!in_class) {
      return concat("[^", content, "]");
    }
    check<ValueError>(content.starts_with("\\p{"), "\\P{", name, "} inside brackets");
    return concat("\\P", content.substr(2, content.find('}') - 1));
  }

  // Reads a class with its brackets.
  std::string bracket(int depth) {
    check<ValueError>(depth < kDeepestClass, "brackets inside of brackets, ", depth, " deep");
    std::string content;
    ++at_;
    const bool negative = at_ < in_.size() && in_[at_] == '^';
    at_ += negative ? 1 : 0;
    bool no_word = false;  // \\W, which PCRE2 takes for another set
    if (at_ < in_.size() && in_[at_] == ']') {
      content += "\\]";
      ++at_;
    }
    std::string both;
    while (at_ < in_.size() && in_[at_] != ']') {
      if (in_.substr(at_).starts_with("\\W")) {
        no_word = true;
        at_ += 2;
      } else if (in_[at_] == '\\') {
        content += escape(/*in_class=*/true);
      } else if (in_.substr(at_).starts_with("[:")) {
        const size_t close = in_.find(":]", at_);
        check<ValueError>(close != std::string_view::npos, "[: without :]");
        content += posix_class(std::string(in_.substr(at_ + 2, close - at_ - 2)));
        at_ = close + 2;
      } else if (in_.substr(at_).starts_with("&&[")) {
        at_ += 2;
        both += concat("(?=", bracket(depth + 1), ")");
      } else {
        check<ValueError>(in_[at_] != '[', "a class of characters inside of another");
        content += in_[at_++];
      }
    }
    check<ValueError>(at_ < in_.size(), "[ without ]");
    ++at_;
    std::string set = concat(negative ? "[^" : "[", content, "]");
    if (no_word) {
      const std::string word = concat("[", word_class(), "]");
      const std::string other = concat("[^", word_class(), "]");
      set = content.empty() ? (negative ? word : other)
            : negative      ? concat("(?:(?=", set, ")", word, ")")
                            : concat("(?:", set, "|", other, ")");
    }
    return both.empty() ? set : concat("(?:", both, set, ")");
  }

  std::string_view in_;
  size_t at_ = 0;
  std::string out_;
  size_t atom_ = 0;           // where in out_ the element begins that a quantifier would repeat
  std::vector<size_t> open_;  // where in out_ the open groups begin
};

}  // namespace

std::string pcre2_pattern(std::string_view oniguruma) {
  return PatternTranslator(oniguruma).translate();
}

}  // namespace tapestry::data::huggingface
