#include "text/chat/lexer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "autograd/tensor/error.h"
#include "text/chat/text.h"
#include "text/util/utf8.h"

namespace tapestry::chat::jinja {

namespace {

using TokenKind = Token::Kind;

bool is_decimal_digit(char c) { return c >= '0' && c <= '9'; }

// Line ends as \n, and without the last one.
std::string with_plain_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      i += i + 1 < source.size() && source[i + 1] == '\n' ? 1 : 0;
    } else {
      out += source[i];
    }
  }
  if (!out.empty() && out.back() == '\n') {
    out.pop_back();
  }
  return out;
}

class Lexer {
 public:
  Lexer(std::string_view source, const std::string& name)
      : source_(with_plain_newlines(source)), name_(name) {}

  std::vector<Token> read() {
    while (at_ < source_.size()) {
      read_data();
    }
    add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  template <class... Args>
  [[noreturn]] void fail(const Args&... message) const {
    throw ValueError(concat(name_, ":", line_, ": ", message...));
  }

  std::string_view rest() const { return std::string_view(source_).substr(at_); }

  void advance(size_t bytes) {
    const std::string_view passed = rest().substr(0, bytes);
    line_ += static_cast<int>(std::count(passed.begin(), passed.end(), '\n'));
    at_ += bytes;
    begins_line_ = !passed.empty() && passed.back() == '\n';
  }

  void skip_space() { advance(rest().size() - strip(rest(), Side::kLeft).size()); }

  void add(TokenKind kind, std::string text) {
    Token token;
    token.kind = kind;
    token.line = line_;
    token.text = std::move(text);
    tokens_.push_back(std::move(token));
  }

  // The text before a tag, whose sign and kind say what of it remains.
  void add_data(std::string_view text, char sign, bool is_variable) {
    std::string_view kept = text;
    if (sign == '-') {
      kept = strip(text, Side::kRight);
    } else if (sign != '+' && !is_variable) {
      const size_t line = text.rfind('\n') + 1;  // 0 where there is none
      if ((line > 0 || begins_line_) && strip(text.substr(line), Side::kLeft).empty()) {
        kept = text.substr(0, line);
      }
    }
    if (!kept.empty()) {
      add(TokenKind::kData, std::string(kept));
    }
  }

  static char sign_of(std::string_view tag) {
    return tag.size() > 2 && (tag[2] == '-' || tag[2] == '+') ? tag[2] : ' ';
  }

  void read_data() {
    size_t open = at_;
    while (true) {
      open = source_.find('{', open);
      if (open == std::string::npos || open + 1 >= source_.size()) {
        add(TokenKind::kData, std::string(rest()));
        advance(rest().size());
        return;
      }
      const char next = source_[open + 1];
      if (next == '{' || next == '%' || next == '#') {
        break;
      }
      ++open;
    }
    const std::string_view tag = std::string_view(source_).substr(open);
    const char kind = tag[1];
    add_data(rest().substr(0, open - at_), sign_of(tag), kind == '{');
    advance(open - at_);
    if (kind == '#') {
      read_comment();
    } else if (kind == '%' && starts_raw(tag)) {
      read_raw();
    } else {
      const bool is_block = kind == '%';
      add(is_block ? TokenKind::kBlockBegin : TokenKind::kVariableBegin, "");
      advance(sign_of(tag) == ' ' ? 2 : 3);
      read_tag(is_block);
    }
  }

  // The sign before an end `%}` or `#}`, and white space that goes with it.
  void pass_end(size_t bytes, char sign, bool trims_newline) {
    advance(bytes);
    if (sign == '-') {
      skip_space_of_end();
    } else if (sign != '+' && trims_newline && rest().starts_with('\n')) {
      advance(1);
    }
  }

  void skip_space_of_end() {
    if (strip(rest(), Side::kLeft).size() != rest().size()) {
      skip_space();
    }
  }

  void read_comment() {
    const size_t begin = at_ + (sign_of(rest()) == ' ' ? 2 : 3);
    const size_t end = source_.find("#}", begin);
    if (end == std::string::npos) {
      fail("a comment without its end '#}'");
    }
    const char before = end > begin ? source_[end - 1] : ' ';
    pass_end(end + 2 - at_, before == '-' || before == '+' ? before : ' ', true);
  }

  // {% raw %}: the length of the tag; its end takes no newline.
  static bool starts_raw(std::string_view tag) { return raw_size(tag, "raw").has_value(); }

  static std::optional<size_t> raw_size(std::string_view tag, std::string_view word) {
    size_t at = sign_of(tag) == ' ' ? 2 : 3;
    const auto skip = [&] { at = tag.size() - strip(tag.substr(at), Side::kLeft).size(); };
    skip();
    if (!tag.substr(at).starts_with(word)) {
      return std::nullopt;
    }
    at += word.size();
    skip();
    const bool has_sign =
        at < tag.size() && (tag[at] == '-' || (tag[at] == '+' && word == "endraw"));
    at += has_sign ? 1 : 0;
    return tag.substr(at).starts_with("%}") ? std::optional(at + 2) : std::nullopt;
  }

  void read_raw() {
    const size_t size = *raw_size(rest(), "raw");
    const bool strips = rest()[size - 3] == '-';
    advance(size);
    if (strips) {
      skip_space_of_end();
    }
    for (size_t open = source_.find("{%", at_); open != std::string::npos;
         open = source_.find("{%", open + 1)) {
      const std::string_view tag = std::string_view(source_).substr(open);
      const std::optional<size_t> end = raw_size(tag, "endraw");
      if (!end) {
        continue;
      }
      add_data(rest().substr(0, open - at_), sign_of(tag), false);
      advance(open - at_);
      pass_end(*end, rest()[*end - 3], true);
      return;
    }
    fail("a raw block without its end");
  }

  void read_tag(bool is_block) {
    const std::string_view end = is_block ? "%}" : "}}";
    std::string open_brackets;
    while (true) {
      skip_space();
      if (at_ >= source_.size()) {
        fail("a tag without its end '", end, "'");
      }
      if (open_brackets.empty()) {
        const char first = rest()[0];
        const bool has_sign = first == '-' || (first == '+' && is_block);
        if (rest().substr(has_sign ? 1 : 0).starts_with(end)) {
          add(is_block ? TokenKind::kBlockEnd : TokenKind::kVariableEnd, "");
          pass_end(has_sign ? 3 : 2, has_sign ? first : ' ', is_block);
          return;
        }
      }
      read_token(open_brackets);
    }
  }

  void read_token(std::string& open_brackets) {
    const char c = rest()[0];
    if (is_decimal_digit(c)) {
      read_number();
    } else if (c == '\'' || c == '"') {
      read_text(c);
    } else if (is_name_start(first_code_point())) {
      read_name();
    } else {
      read_operator(open_brackets);
    }
  }

  char32_t first_code_point() const { return data::code_point_at(rest(), 0); }

  void read_name() {
    size_t end = 0;
    while (end < rest().size()) {
      if (!is_name_part(data::code_point_at(rest(), end))) {
        break;
      }
      end += data::character_length(rest(), end);
    }
    add(TokenKind::kName, std::string(rest().substr(0, end)));
    advance(end);
  }

  void read_operator(std::string& open_brackets) {
    static constexpr std::array<std::string_view, 6> kLong = {"//", "**", "==", "!=", ">=", "<="};
    static constexpr std::string_view kShort = "+-/*%~[](){}><=.:|,;";
    std::string_view text = rest().substr(0, 1);
    for (const std::string_view known : kLong) {
      text = rest().starts_with(known) ? known : text;
    }
    if (text.size() == 1 && kShort.find(text[0]) == std::string_view::npos) {
      fail("unexpected character '", to_utf8({first_code_point_text()}), "'");
    }
    const char c = text.size() == 1 ? text[0] : ' ';
    if (c == '(' || c == '[' || c == '{') {
      open_brackets += c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (c == ')' || c == ']' || c == '}') {
      if (open_brackets.empty() || open_brackets.back() != c) {
        fail("unexpected '", text, "'");
      }
      open_brackets.pop_back();
    }
    add(TokenKind::kOperator, std::string(text));
    advance(text.size());
  }

  std::u32string first_code_point_text() const { return {first_code_point()}; }

  // The digits from `at` on, with single underscores between them.
  size_t digits_end(size_t at, std::string_view digits) const {
    const std::string_view text = rest();
    const auto is_one = [&](size_t i) {
      return i < text.size() && digits.find(text[i]) != std::string_view::npos;
    };
    while (is_one(at) || (at < text.size() && text[at] == '_' && at > 0 && is_one(at + 1))) {
      ++at;
    }
    return at;
  }

  void read_number() {
    static constexpr std::string_view kDigits = "0123456789";
    const std::string_view text = rest();
    const char mark = text.size() > 2 && text[0] == '0' ? static_cast<char>(text[1] | 0x20) : ' ';
    const int base = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 10;
    if (base != 10) {
      const std::string_view digits = std::string_view("0123456789abcdefABCDEF")
                                          .substr(0, base == 16 ? 22 : static_cast<size_t>(base));
      add_integer(digits_end(2, digits), 2, base);
      return;
    }
    size_t end = digits_end(0, kDigits);
    const size_t whole = end;
    if (tokens_.back().is_operator(".")) {  // x.0.1 are two indices
      add_integer(end, 0, 10);
      return;
    }
    if (end + 1 < text.size() && text[end] == '.' && is_decimal_digit(text[end + 1])) {
      end = digits_end(end + 1, kDigits);
    }
    size_t exponent = end;
    if (exponent < text.size() && (text[exponent] == 'e' || text[exponent] == 'E')) {
      ++exponent;
      if (exponent < text.size() && (text[exponent] == '+' || text[exponent] == '-')) {
        ++exponent;
      }
      if (exponent < text.size() && is_decimal_digit(text[exponent])) {
        end = digits_end(exponent, kDigits);
      }
    }
    if (end == whole) {
      if (text[0] == '0' && text.substr(0, end).find_first_not_of("0_") != std::string_view::npos) {
        fail("the integer ", text.substr(0, end), " begins with 0");
      }
      add_integer(end, 0, 10);
      return;
    }
    add_real(end);
  }

  std::string plain_digits(size_t begin, size_t end) const {
    std::string digits(rest().substr(begin, end - begin));
    digits.erase(std::remove(digits.begin(), digits.end(), '_'), digits.end());
    return digits;
  }

  void add_integer(size_t end, size_t begin, int base) {
    const std::string digits = plain_digits(begin, end);
    int64_t number = 0;
    const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), number, base);
    if (digits.empty() || read.ec != std::errc()) {
      fail("the integer ", rest().substr(0, end), " is not one of 64 bits");
    }
    add(TokenKind::kInteger, "");
    tokens_.back().integer = number;
    advance(end);
  }

  void add_real(size_t end) {
    const std::string digits = plain_digits(0, end);
    double number = 0;
    const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    if (read.ec != std::errc()) {
      fail("the number ", digits, " is not one of a double");
    }
    add(TokenKind::kReal, "");
    tokens_.back().real = number;
    advance(end);
  }

  void read_text(char quote) {
    const std::string_view text = rest();
    size_t end = 1;
    while (end < text.size() && text[end] != quote) {
      end += text[end] == '\\' ? 2 : 1;
    }
    if (end >= text.size()) {
      fail("a text without its end ", std::string(1, quote));
    }
    add(TokenKind::kText, unescaped(text.substr(1, end - 1)));
    advance(end + 1);
  }

  std::string unescaped(std::string_view text) const {
    std::string out;
    for (size_t at = 0; at < text.size();) {
      if (text[at] != '\\') {
        out += text[at++];
        continue;
      }
      append_escaped(out, text, at);
    }
    return out;
  }

  void append_escaped(std::string& out, std::string_view text, size_t& at) const {
    static constexpr std::string_view kLetters = "\\'\"abfnrtv";
    static constexpr std::string_view kMeant = "\\'\"\a\b\f\n\r\t\v";
    const char c = text[at + 1];
    if (const size_t found = kLetters.find(c); found != std::string_view::npos) {
      out += kMeant[found];
      at += 2;
    } else if (c == '\n') {
      at += 2;
    } else if (c >= '0' && c <= '7') {
      size_t end = at + 1;
      while (end < text.size() && end < at + 4 && text[end] >= '0' && text[end] <= '7') {
        ++end;
      }
      append_numbered(out, text.substr(at + 1, end - at - 1), 8);
      at = end;
    } else if (c == 'x' || c == 'u' || c == 'U') {
      const size_t size = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      append_numbered(out, text.substr(at + 2, size), 16, size);
      at += 2 + size;
    } else if (c == 'N' || static_cast<unsigned char>(c) >= 0x80) {
      fail("a text has an escape that is not known here");
    } else {
      out += '\\';
      ++at;
    }
  }

  void append_numbered(std::string& out, std::string_view digits, int base, size_t size = 0) const {
    uint32_t number = 0;
    const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), number, base);
    const bool whole = read.ec == std::errc() && read.ptr == digits.data() + digits.size() &&
                       (size == 0 || digits.size() == size);
    if (!whole || number > 0x10FFFF || (number >= 0xD800 && number < 0xE000)) {
      fail("a text has an escape that is no character");
    }
    data::append_utf8(out, number);
  }

  std::string source_;
  const std::string& name_;
  size_t at_ = 0;
  int line_ = 1;
  bool begins_line_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokens_of(std::string_view source, const std::string& name) {
  if (!data::is_valid_utf8(source)) {
    throw ValueError(concat(name, ": is not UTF-8"));
  }
  return Lexer(source, name).read();
}

}  // namespace tapestry::chat::jinja
