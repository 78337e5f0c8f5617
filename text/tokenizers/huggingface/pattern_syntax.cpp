#include "text/tokenizers/huggingface/pattern_syntax.h"

#include <cctype>
#include <utility>
#include <vector>

#include "autograd/tensor/error.h"
#include "text/tokenizers/huggingface/character_set.h"
#include "text/util/utf8.h"

namespace tapestry::data::huggingface {
namespace {

constexpr int kDeepestClass = 16;

// \\X, but pictographs stay together where U+200D joins them alone: PCRE2 10.42 takes two that
// stand side by side for one cluster.
constexpr const char* kGrapheme =
    R"((?>\p{Extended_Pictographic}(?:[\p{Grapheme_Extend}\p{Emoji_Modifier}]*\x{200D})"
    R"(\p{Extended_Pictographic})*[\p{Grapheme_Extend}\p{Emoji_Modifier}\p{Mc}\x{200D}]*|)"
    R"((?!\p{Extended_Pictographic})\X))";

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
        escape();
        return;
      case '[':
        begin_atom();
        out_ += bracket(0).expression();
        return;
      case '(':
        begin_atom();
        open_.push_back({out_.size(), ignores_case_});
        group();
        return;
      case ')':
        if (!open_.empty()) {
          atom_ = open_.back().begin;
          ignores_case_ = open_.back().ignored_case;
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
    out_ += character();
  }

  // The next character, of any length.
  std::string character() {
    std::string text;
    do {
      text += in_[at_++];
    } while (at_ < in_.size() && continues_character(in_[at_]));
    return text;
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
    bool on = true;
    while (at_ < in_.size() &&
           (std::isalpha(static_cast<unsigned char>(in_[at_])) != 0 || in_[at_] == '-')) {
      out_ += in_[at_] == 'm' ? 's' : in_[at_];
      on = on && in_[at_] != '-';
      ignores_case_ = in_[at_] == 'i' ? on : ignores_case_;
      ++at_;
    }
    if (at_ < in_.size() && in_[at_] == ')' && !open_.empty()) {
      // "(?i)" holds to the end of the group around it.
      open_.back().ignored_case = ignores_case_;
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
    // Behind it '+' repeats, and so does '?' behind "{n}".
    if (at_ < in_.size() &&
        (in_[at_] == '+' || (in_[at_] == '?' && comma == std::string_view::npos))) {
      out_.insert(atom_, "(?:");
      out_ += concat(")", std::string(1, in_[at_]));
      ++at_;
    }
    return true;
  }

  // The set of an escape that is one, such as \w; false for other escapes, nothing is read then.
  bool set_escape(bool in_class, CharacterSet& set) {
    check<ValueError>(at_ + 1 < in_.size(), "a backslash at the end");
    const char c = in_[at_ + 1];
    switch (c) {
      case 's':
      case 'S':
        set = space_set();
        break;
      case 'w':
      case 'W':
        set = in_class ? word_set() : word_set_outside();
        break;
      case 'd':
      case 'D':
        set = property_set("Nd");
        break;
      case 'h':
      case 'H':
        set = hex_digit_set();
        break;
      case 'p':
      case 'P':
        if (at_ + 2 >= in_.size() || in_[at_ + 2] != '{') {
          return false;
        }
        at_ += 2;
        set = property(c == 'P', in_class);
        return true;
      default:
        return false;
    }
    at_ += 2;
    if (std::isupper(static_cast<unsigned char>(c)) != 0) {
      set = set.negated();
    }
    return true;
  }

  // An escape outside of brackets.
  void escape() {
    if (CharacterSet set; set_escape(/*in_class=*/false, set)) {
      out_ += set.expression();
      return;
    }
    const char c = in_[at_ + 1];
    if (c == 'b' || c == 'B') {
      at_ += 2;
      const std::string word = word_set_outside().expression();
      out_ += c == 'b' ? concat("(?:(?<=", word, ")(?!", word, ")|(?<!", word, ")(?=", word, "))")
                       : concat("(?:(?<=", word, ")(?=", word, ")|(?<!", word, ")(?!", word, "))");
      return;
    }
    if (c == 'X') {
      at_ += 2;
      out_ += kGrapheme;
      return;
    }
    constexpr std::string_view kAlike = "AzZGkKRN";  // the same in both
    if (kAlike.find(c) != std::string_view::npos || (c >= '1' && c <= '9')) {
      at_ += 2;
      out_ += concat("\\", std::string(1, c));
    } else if (c == 'O') {
      at_ += 2;
      out_ += "(?s:.)";
    } else {
      out_ += character_escape();
    }
  }

  // An escape that stands for one character.
  std::string character_escape() {
    const char c = in_[at_ + 1];
    at_ += 2;
    const auto hexadecimal = [&](size_t most) {
      std::string digits;
      while (digits.size() < most && at_ < in_.size() &&
             std::isxdigit(static_cast<unsigned char>(in_[at_])) != 0) {
        digits += in_[at_++];
      }
      return concat("\\x{", digits.empty() ? "0" : digits, "}");
    };
    switch (c) {
      case 'u':
        return hexadecimal(4);
      case 'x':
        if (at_ < in_.size() && in_[at_] == '{') {
          const size_t close = in_.find('}', at_);
          check<ValueError>(close != std::string_view::npos, "\\x{ without }");
          const std::string text = concat("\\x", in_.substr(at_, close + 1 - at_));
          at_ = close + 1;
          return text;
        }
        return hexadecimal(2);
      case 'v':
        return "\\x{B}";
      case 'n':
      case 't':
      case 'r':
      case 'f':
      case 'a':
      case 'e':
        return concat("\\", std::string(1, c));
      case 'c':
      case 'C':
      case 'M':
      case 'g':
      case 'o':
      case 'y':
      case 'Y':
        throw ValueError(
            concat("\\", std::string(1, c),
                   c == 'g' ? ": a group that is called is not known here" : " is not known here"));
      case '0':
      case '1':
      case '2':
      case '3':
      case '4':
      case '5':
      case '6':
      case '7': {  // outside of brackets 0 alone, others are groups there
        std::string digits(1, c);
        while (digits.size() < 3 && at_ < in_.size() && in_[at_] >= '0' && in_[at_] <= '7') {
          digits += in_[at_++];
        }
        return concat("\\o{", digits, "}");
      }
      default:
        break;
    }
    if (static_cast<unsigned char>(c) >= 0x80 || std::isalnum(static_cast<unsigned char>(c)) != 0) {
      --at_;  // a letter without a meaning stands for itself
      return character();
    }
    return concat("\\", std::string(1, c));
  }

  CharacterSet property(bool negative, bool in_class) {
    const size_t close = in_.find('}', at_);
    check<ValueError>(close != std::string_view::npos, "\\p{ without }");
    std::string name(in_.substr(at_ + 1, close - at_ - 1));
    at_ = close + 1;
    if (name.starts_with('^')) {
      name.erase(0, 1);
      negative = !negative;
    }
    check<ValueError>(!name.empty(), "\\p{} without a name");
    CharacterSet set =
        !in_class && (name == "Word" || name == "word") ? word_set_outside() : property_set(name);
    return negative ? set.negated() : set;
  }

  // A character inside of brackets, as PCRE2 has it there.
  std::string class_character() {
    if (in_[at_] == '\\') {
      if (in_[at_ + 1] == 'b') {
        at_ += 2;
        return "\\x{8}";
      }
      return character_escape();
    }
    const std::string text = character();
    return text.size() == 1 && std::ispunct(static_cast<unsigned char>(text[0])) != 0
               ? concat("\\", text)
               : text;
  }

  // Reads a class with its brackets.
  CharacterSet bracket(int depth) {
    check<ValueError>(depth < kDeepestClass, "brackets inside of brackets, ", depth, " deep");
    ++at_;
    const bool negative = at_ < in_.size() && in_[at_] == '^';
    at_ += negative ? 1 : 0;
    CharacterSet set;
    bool has_sets = false;
    std::vector<CharacterSet> before;  // && this one
    bool first = true;
    while (at_ < in_.size() && (first || in_[at_] != ']')) {
      first = false;
      CharacterSet part;
      const std::string_view rest = in_.substr(at_);
      if (rest.starts_with("&&")) {
        at_ += 2;
        before.push_back(std::exchange(set, {}));
      } else if (posix_bracket(part)) {
        has_sets = true;
        set.add(part);
      } else if (rest[0] == '[') {
        has_sets = true;
        set.add(bracket(depth + 1));
      } else if (rest[0] == '\\' && set_escape(/*in_class=*/true, part)) {
        has_sets = true;
        set.add(part);
      } else {
        set.add(CharacterSet(class_range()));
      }
    }
    check<ValueError>(at_ < in_.size(), "[ without ]");
    ++at_;
    for (const CharacterSet& other : before) {
      set = set.intersection(other);
    }
    if (ignores_case_ && (has_sets || !before.empty()) && depth == 0) {
      set = set.with_cases();
    }
    return negative ? set.negated() : set;
  }

  // "[:name:]" or "[:^name:]"; false if there is none here.
  bool posix_bracket(CharacterSet& set) {
    const std::string_view rest = in_.substr(at_);
    if (!rest.starts_with("[:")) {
      return false;
    }
    const size_t close = rest.find(":]");
    check<ValueError>(close != std::string_view::npos, "[: without :]");
    std::string_view name = rest.substr(2, close - 2);
    const bool negative = name.starts_with('^');
    set = posix_set(name.substr(negative ? 1 : 0));
    if (negative) {
      set = set.negated();
    }
    at_ += close + 2;
    return true;
  }

  // A character, or two with a '-' between. A '-' beside a set or a bracket stands for itself.
  std::string class_range() {
    std::string item = class_character();
    const std::string_view rest = in_.substr(at_);
    constexpr std::string_view kSets = "sSwWdDhHpP";
    if (rest.size() < 2 || rest[0] != '-' || rest[1] == ']' || rest[1] == '[' ||
        (rest[1] == '\\' && rest.size() > 2 && kSets.find(rest[2]) != std::string_view::npos) ||
        (rest[1] == '\\' && rest.size() < 3)) {
      return item;
    }
    ++at_;
    return concat(item, "-", class_character());
  }

  struct OpenGroup {
    size_t begin;  // where in out_
    bool ignored_case;
  };

  std::string_view in_;
  size_t at_ = 0;
  std::string out_;
  size_t atom_ = 0;  // where in out_ the element begins that a quantifier would repeat
  bool ignores_case_ = false;
  std::vector<OpenGroup> open_;
};

}  // namespace

std::string pcre2_pattern(std::string_view oniguruma) {
  return PatternTranslator(oniguruma).translate();
}

}  // namespace tapestry::data::huggingface
