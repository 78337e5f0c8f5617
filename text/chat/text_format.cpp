#include "text/chat/text_format.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "text/chat/operators.h"
#include "text/chat/text.h"
#include "text/chat/value_text.h"

namespace tapestry::chat::jinja {

namespace {

constexpr int kMaxWidth = 10'000;

// What stands between % or : and the type.
struct FieldStyle {
  std::string fill = " ";
  char align = 0;  // '<', '>', '^', '='; 0: as the type has it
  char sign = '-';
  bool alternate = false;
  bool commas = false;
  int width = 0;
  int precision = -1;
  char type = 0;
};

int read_number(Run& run, std::string_view format, size_t& at) {
  int number = 0;
  while (at < format.size() && format[at] >= '0' && format[at] <= '9') {
    number = number * 10 + (format[at++] - '0');
    if (number > kMaxWidth) {
      run.fail("a width or precision of more than ", kMaxWidth);
    }
  }
  return number;
}

std::string padded(const FieldStyle& style, std::string text, char default_align, size_t prefix) {
  const auto width = static_cast<size_t>(style.width);
  const size_t length = count_code_points(text);
  if (length >= width) {
    return text;
  }
  const size_t missing = width - length;
  const char align = style.align != 0 ? style.align : default_align;
  const auto fill = [&](size_t count) {
    std::string out;
    for (size_t i = 0; i < count; ++i) {
      out += style.fill;
    }
    return out;
  };
  switch (align) {
    case '<':
      return text + fill(missing);
    case '^':
      return fill(missing / 2) + text + fill(missing - missing / 2);
    case '=':
      return text.substr(0, prefix) + fill(missing) + text.substr(prefix);
    default:
      return fill(missing) + text;
  }
}

std::string with_commas(std::string digits) {
  const size_t end = std::min(digits.find_first_not_of("0123456789"), digits.size());
  for (size_t at = end; at > 3;) {
    at -= 3;
    digits.insert(at, ",");
  }
  return digits;
}

// Sign, prefix and digits of a number.
std::string finished_number(const FieldStyle& style,
                            bool negative,
                            std::string_view prefix,
                            std::string digits) {
  std::string head = negative ? "-" : style.sign == '-' ? "" : std::string(1, style.sign);
  head += prefix;
  if (style.commas) {
    digits = with_commas(std::move(digits));
  }
  const size_t size = head.size();
  return padded(style, head + digits, '>', size);
}

std::string format_integer(Run& run, const FieldStyle& style, int64_t number, bool old_style) {
  const bool negative = number < 0;
  const uint64_t size =
      negative ? ~static_cast<uint64_t>(number) + 1 : static_cast<uint64_t>(number);
  const char type = style.type == 0 ? 'd' : style.type;
  const int base = type == 'x' || type == 'X' ? 16 : type == 'o' ? 8 : type == 'b' ? 2 : 10;
  std::array<char, 72> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), size, base).ptr;
  std::string digits(buffer.data(), end);
  if (type == 'X') {
    std::transform(digits.begin(), digits.end(), digits.begin(),
                   [](char c) { return c >= 'a' && c <= 'f' ? static_cast<char>(c - 32) : c; });
  }
  if (style.precision >= 0) {
    if (!old_style) {
      run.fail("a precision is not allowed for an integer");
    }
    if (digits.size() < static_cast<size_t>(style.precision)) {
      digits.insert(0, static_cast<size_t>(style.precision) - digits.size(), '0');
    }
  }
  std::string prefix;
  if (style.alternate && base != 10) {
    prefix = std::string("0") + type;
  }
  return finished_number(style, negative, prefix, digits);
}

std::string format_real(const FieldStyle& style, double number) {
  const bool negative = std::signbit(number) && !std::isnan(number);
  std::string digits;
  const char type = style.type;
  if (std::isnan(number) || std::isinf(number)) {
    digits = std::isnan(number) ? "nan" : "inf";
    if (type == 'F' || type == 'E' || type == 'G') {
      digits = to_upper(digits);
    }
  } else {
    std::array<char, 8> pattern{};
    std::snprintf(pattern.data(), pattern.size(), "%%%s.*%c", style.alternate ? "#" : "", type);
    const int precision = style.precision < 0 ? 6 : style.precision;
    digits.resize(static_cast<size_t>(precision) + 340);
    const int size =
        std::snprintf(digits.data(), digits.size(), pattern.data(), precision, std::abs(number));
    digits.resize(static_cast<size_t>(size));
  }
  return finished_number(style, negative, "", digits);
}

std::string first_code_points(const std::string& text, int count) {
  return text.substr(0, place_of_code_point(text, static_cast<size_t>(count)));
}

std::string format_text(const FieldStyle& style, std::string text, char default_align) {
  if (style.precision >= 0) {
    text = first_code_points(text, style.precision);
  }
  return padded(style, std::move(text), default_align, 0);
}

bool is_real_type(char type) { return std::string_view("fFeEgG").find(type) != std::string::npos; }

// ---- %

class PercentFormat {
 public:
  PercentFormat(Run& run, std::string_view format, const Value& values)
      : run_(run), format_(format), values_(values) {
    is_tuple_ = values.is_sequence() && values.sequence().form == Sequence::Form::kTuple;
  }

  std::string make() {
    std::string out;
    for (size_t at = 0; at < format_.size();) {
      if (format_[at] != '%') {
        out += format_[at++];
        continue;
      }
      ++at;
      out += field(at);
      run_.step();
      run_.check_text(out.size());
    }
    if (!used_name_ && !values_.is_dict() &&
        used_ < (is_tuple_ ? values_.sequence().items.size() : 1)) {
      run_.fail("not all arguments of % are used by the text");
    }
    return out;
  }

 private:
  const Value& next_value() {
    const size_t count = is_tuple_ ? values_.sequence().items.size() : 1;
    if (used_ >= count) {
      run_.fail("too few arguments for the text before %");
    }
    return is_tuple_ ? values_.sequence().items[used_++] : (++used_, values_);
  }

  std::string field(size_t& at) {
    const Value* named = nullptr;
    if (at < format_.size() && format_[at] == '(') {
      const size_t end = format_.find(')', at);
      if (end == std::string_view::npos || !values_.is_dict()) {
        run_.fail("%(name) takes a dict");
      }
      named = values_.dict().find(format_.substr(at + 1, end - at - 1));
      if (named == nullptr) {
        run_.fail("%: the dict has no '", format_.substr(at + 1, end - at - 1), "'");
      }
      used_name_ = true;
      at = end + 1;
    }
    const FieldStyle style = read_style(at);
    if (style.type == '%') {
      return "%";
    }
    return format_value(style, named != nullptr ? *named : next_value());
  }

  FieldStyle read_style(size_t& at) {
    FieldStyle style;
    bool zero = false;
    for (; at < format_.size(); ++at) {
      const char c = format_[at];
      if (c == '-') {
        style.align = '<';
      } else if (c == '+' || (c == ' ' && style.sign != '+')) {
        style.sign = c;
      } else if (c == '0') {
        zero = true;
      } else if (c == '#') {
        style.alternate = true;
      } else if (c != ' ') {
        break;
      }
    }
    style.width = read_number(run_, format_, at);
    if (at < format_.size() && format_[at] == '.') {
      style.precision = read_number(run_, format_, ++at);
    }
    constexpr std::string_view kTypes = "srdiufFeEgGxXoc%";
    if (at == format_.size() || kTypes.find(format_[at]) == std::string_view::npos) {
      run_.fail("%", at < format_.size() ? format_.substr(at, 1) : "", " is no known conversion");
    }
    style.type = format_[at++];
    const bool is_number = style.type != 's' && style.type != 'r' && style.type != 'c';
    if (zero && style.align == 0 && is_number) {
      style.fill = "0";
      style.align = '=';
    }
    return style;
  }

  std::string text_field(const FieldStyle& style, std::string text) {
    run_.step(text.size() / 16);
    return format_text(style, std::move(text), '>');
  }

  std::string format_value(FieldStyle style, const Value& value) {
    switch (style.type) {
      case 's':
        return text_field(style, to_text(run_, value));
      case 'r':
        return text_field(style, repr(run_, value));
      case 'c': {
        if (!value.is_text() || count_code_points(value.bytes()) != 1) {
          run_.fail("%c takes one character");
        }
        style.precision = -1;
        return format_text(style, value.bytes(), '>');
      }
      default:
        break;
    }
    if (!value.is_number()) {
      run_.fail("%", std::string(1, style.type), " takes a number, not ", value.type_name());
    }
    if (is_real_type(style.type)) {
      return format_real(style, value.real());
    }
    if (style.type == 'u' || style.type == 'i') {
      style.type = 'd';
    }
    if (value.is_real()) {
      if (style.type != 'd' || !(std::abs(value.real()) < 9e18)) {
        run_.fail("%", std::string(1, style.type), " takes an integer");
      }
      return format_integer(run_, style, static_cast<int64_t>(value.real()), true);
    }
    return format_integer(run_, style, value.integer(), true);
  }

  Run& run_;
  std::string_view format_;
  const Value& values_;
  bool is_tuple_ = false;
  bool used_name_ = false;
  size_t used_ = 0;
};

// ---- {}

class BraceFormat {
 public:
  BraceFormat(Run& run, std::string_view format, const Arguments& arguments)
      : run_(run), format_(format), arguments_(arguments) {}

  std::string make() {
    std::string out;
    for (size_t at = 0; at < format_.size();) {
      const char c = format_[at++];
      if (c != '{' && c != '}') {
        out += c;
      } else if (at < format_.size() && format_[at] == c) {
        out += c;
        ++at;
      } else if (c == '}') {
        run_.fail("format: a single '}'");
      } else {
        out += field(at);
      }
      run_.check_text(out.size());
    }
    return out;
  }

 private:
  std::string field(size_t& at) {
    run_.step();
    const size_t end = format_.find('}', at);
    if (end == std::string_view::npos) {
      run_.fail("format: a field without '}'");
    }
    const std::string_view inner = format_.substr(at, end - at);
    at = end + 1;
    const size_t colon = std::min(inner.find(':'), inner.size());
    const std::string_view name = inner.substr(0, colon);
    const std::string_view spec = colon < inner.size() ? inner.substr(colon + 1) : "";
    if (inner.find('{') != std::string_view::npos ||
        name.find_first_of(".[!") != std::string_view::npos) {
      run_.fail("format: the field {", inner, "} is of a kind that is not known here");
    }
    return format_value(read_style(spec), value_of(name), spec);
  }

  const Value& value_of(std::string_view name) {
    size_t place = 0;
    if (name.empty()) {
      place = automatic_++;
    } else if (name[0] >= '0' && name[0] <= '9') {
      size_t end = 0;
      place = static_cast<size_t>(read_number(run_, name, end));
    } else {
      for (const auto& [known, value] : arguments_.named) {
        if (known == name) {
          return value;
        }
      }
      run_.fail("format: there is no argument '", name, "'");
    }
    if (place >= arguments_.positional.size()) {
      run_.fail("format: there is no argument ", place);
    }
    return arguments_.positional[place];
  }

  FieldStyle read_style(std::string_view spec) {
    FieldStyle style;
    const auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
    const std::vector<size_t> starts = code_point_starts(spec);
    size_t at = 0;
    if (starts.size() > 2 && is_align(spec[starts[1]])) {
      style.fill = spec.substr(0, starts[1]);
      style.align = spec[starts[1]];
      at = starts[1] + 1;
    } else if (!spec.empty() && is_align(spec[0])) {
      style.align = spec[0];
      at = 1;
    }
    if (at < spec.size() && (spec[at] == '+' || spec[at] == '-' || spec[at] == ' ')) {
      style.sign = spec[at++];
    }
    if (at < spec.size() && spec[at] == '#') {
      style.alternate = true;
      ++at;
    }
    if (at < spec.size() && spec[at] == '0' && style.align == 0) {
      style.fill = "0";
      style.align = '=';
      ++at;
    }
    style.width = read_number(run_, spec, at);
    if (at < spec.size() && spec[at] == ',') {
      style.commas = true;
      ++at;
    }
    if (at < spec.size() && spec[at] == '.') {
      style.precision = read_number(run_, spec, ++at);
    }
    if (at < spec.size()) {
      style.type = spec[at++];
    }
    constexpr std::string_view kTypes = "sdfFeEgGxXob";
    if (at != spec.size() ||
        (style.type != 0 && kTypes.find(style.type) == std::string_view::npos) ||
        (style.commas && style.fill == "0")) {
      run_.fail("format: '", spec, "' is a style that is not known here");
    }
    return style;
  }

  std::string format_value(const FieldStyle& style, const Value& value, std::string_view spec) {
    if (spec.empty()) {
      return to_text(run_, value);
    }
    if (value.is_text() && (style.type == 0 || style.type == 's') && style.align != '=' &&
        !style.commas && !style.alternate && style.sign == '-') {
      run_.step(value.bytes().size() / 16);
      return format_text(style, value.bytes(), '<');
    }
    if (value.is_number() && is_real_type(style.type)) {
      return format_real(style, value.real());
    }
    if (value.is_integer() && style.type != 's') {
      return format_integer(run_, style, value.integer(), false);
    }
    run_.fail("format: '", spec, "' is no style of ", value.type_name(), " that is known here");
  }

  Run& run_;
  std::string_view format_;
  const Arguments& arguments_;
  size_t automatic_ = 0;
};

}  // namespace

std::string percent_format(Run& run, std::string_view format, const Value& values) {
  run.letters(format.size());
  return PercentFormat(run, format, values).make();
}

std::string brace_format(Run& run, std::string_view format, const Arguments& arguments) {
  run.letters(format.size());
  return BraceFormat(run, format, arguments).make();
}

}  // namespace tapestry::chat::jinja
