// Filters that make texts and numbers.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "text/chat/filters.h"
#include "text/chat/methods.h"
#include "text/chat/operators.h"
#include "text/chat/text.h"
#include "text/chat/value_text.h"
#include "text/util/utf8.h"

namespace tapestry::chat::jinja {

namespace text_filters {

Value as_text(Run& run, const Value& value) {
  return value.is_text() ? value : run.text(to_text(run, value));
}

// str(value): not marked.
Value as_plain(Run& run, const Value& value) {
  return value.is_text() && !value.is_markup() ? value : run.text(to_text(run, value));
}

Value safe(Run& run, const Value& input, const Arguments& arguments) {
  bind_arguments(run, "filter 'safe'", arguments, {});
  return input.is_markup() ? input : run.marked(to_text(run, input));
}

// The method of str of the same name, on str(value).
template <const char* const& method, bool with_arguments>
Value by_method(Run& run, const Value& input, const Arguments& arguments) {
  if (!with_arguments && !(arguments.positional.empty() && arguments.named.empty())) {
    run.fail("filter '", method, "' takes no arguments");
  }
  return find_text_method(method)(run, as_text(run, input), arguments);
}

constexpr const char* kUpper = "upper";
constexpr const char* kLower = "lower";
constexpr const char* kCapitalize = "capitalize";

Value as_string(Run& run, const Value& input, const Arguments& arguments) {
  bind_arguments(run, "filter 'string'", arguments, {});
  return as_text(run, input);
}

Value trim(Run& run, const Value& input, const Arguments& arguments) {
  const auto bound = bind_arguments(run, "filter 'trim'", arguments, {"chars"});
  return find_text_method("strip")(run, as_text(run, input),
                                   {{bound[0].value_or(Value(None{}))}, {}});
}

Value replace(Run& run, const Value& input, const Arguments& arguments) {
  const auto bound = bind_arguments(run, "filter 'replace'", arguments, {"old", "new", "count"}, 2);
  Arguments given{{as_plain(run, *bound[0]), as_plain(run, *bound[1])}, {}};
  if (bound[2] && !bound[2]->is_none()) {
    given.positional.push_back(*bound[2]);
  }
  return find_text_method("replace")(run, as_plain(run, input), given);
}

Value title(Run& run, const Value& input, const Arguments& arguments) {
  bind_arguments(run, "filter 'title'", arguments, {});
  const Value text = as_text(run, input);
  const auto begins_word = [](char32_t c) {
    return is_space(c) || std::u32string_view(U"-({[<").find(c) != std::u32string_view::npos;
  };
  std::string out;
  std::u32string word;
  const auto finish_word = [&] {
    if (!word.empty()) {
      out += to_upper(to_utf8(word.substr(0, 1))) + to_lower(to_utf8(word.substr(1)));
      word.clear();
    }
  };
  run.letters(text.bytes().size());
  for (const char32_t c : to_code_points(text.bytes())) {
    if (begins_word(c)) {
      finish_word();
      data::append_utf8(out, c);
    } else {
      word += c;
    }
  }
  finish_word();
  return run.text(std::move(out));
}

Value indent(Run& run, const Value& input, const Arguments& arguments) {
  const auto bound = bind_arguments(run, "filter 'indent'", arguments, {"width", "first", "blank"});
  std::string space(4, ' ');
  if (bound[0] && bound[0]->is_text()) {
    space = bound[0]->bytes();
  } else if (bound[0]) {
    const int64_t width = std::max<int64_t>(expect_integer(run, *bound[0], "indent: the width"), 0);
    run.check_text(static_cast<size_t>(width));
    space.assign(static_cast<size_t>(width), ' ');
  }
  const bool first = bound[1] && truth_of(*bound[1]);
  const bool blank = bound[2] && truth_of(*bound[2]);
  const Value text = run.text(expect_text(run, input, "what is indented") + "\n");
  const Value lines = find_text_method("splitlines")(run, text, {});
  std::string out = first ? space : "";
  bool is_first = true;
  for (const Value& line : lines.sequence().items) {
    if (!is_first) {
      out += '\n';
      if (blank || !line.bytes().empty()) {
        out += space;
      }
    }
    is_first = false;
    out += line.bytes();
    run.check_text(out.size());
  }
  return input.is_markup() ? run.marked(std::move(out)) : run.text(std::move(out));
}

Value to_json_text(Run& run, const Value& input, const Arguments& arguments) {
  const auto bound = bind_arguments(run, "filter 'tojson'", arguments,
                                    {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = bound[0] && truth_of(*bound[0]);
  style.sort_keys = bound[3] && truth_of(*bound[3]);
  if (bound[1] && !bound[1]->is_none()) {
    if (bound[1]->is_text()) {
      style.indent = bound[1]->bytes();
    } else {
      const int64_t width = std::max<int64_t>(expect_integer(run, *bound[1], "tojson: indent"), 0);
      run.check_text(static_cast<size_t>(width));
      style.indent = std::string(static_cast<size_t>(width), ' ');
    }
    style.item_separator = ",";
  }
  if (bound[2] && !bound[2]->is_none()) {
    const Values separators = items_of(run, *bound[2]);
    if (separators.size() != 2) {
      run.fail("tojson: separators are two texts");
    }
    style.item_separator = expect_text(run, separators[0], "tojson: a separator");
    style.key_separator = expect_text(run, separators[1], "tojson: a separator");
  }
  return run.text(to_json(run, input, style));
}

// ---- Numbers.

std::string plain_number(std::string_view text) {
  std::string digits;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto is_digit_at = [&](size_t at) {
      return at < text.size() && text[at] >= '0' && text[at] <= '9';
    };
    if (text[i] == '_' && i > 0 && is_digit_at(i - 1) && is_digit_at(i + 1)) {
      continue;
    }
    digits += text[i];
  }
  return digits;
}

// float(text); nothing where Python raises.
std::optional<double> read_real(std::string_view text) {
  std::string digits = plain_number(strip(text, Side::kBoth));
  const bool has_sign = !digits.empty() && (digits[0] == '+' || digits[0] == '-');
  const bool negative = has_sign && digits[0] == '-';
  digits.erase(0, has_sign ? 1 : 0);
  const std::string lower = to_lower(digits);
  double number = 0;
  if (lower == "inf" || lower == "infinity") {
    number = HUGE_VAL;
  } else if (lower == "nan") {
    number = std::nan("");
  } else {
    if (digits.empty() || digits.find_first_not_of("0123456789.eE+-") != std::string::npos ||
        digits[0] == '-' || digits[0] == '+') {
      return std::nullopt;
    }
    const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    if (read.ptr != digits.data() + digits.size() || read.ec == std::errc::invalid_argument) {
      return std::nullopt;
    }
    if (read.ec == std::errc::result_out_of_range) {
      number = std::strtod(digits.c_str(), nullptr);  // 0 or infinity, as Python has it
    }
  }
  return negative ? -number : number;
}

// int(text, base); nothing where Python raises.
std::optional<int64_t> read_integer(Run& run, std::string_view text, int base) {
  std::string digits = plain_number(strip(text, Side::kBoth));
  const bool has_sign = !digits.empty() && (digits[0] == '+' || digits[0] == '-');
  const bool negative = has_sign && digits[0] == '-';
  digits.erase(0, has_sign ? 1 : 0);
  if (digits.size() > 2 && digits[0] == '0') {
    const char mark = static_cast<char>(digits[1] | 0x20);
    const bool is_prefix =
        (base == 16 && mark == 'x') || (base == 8 && mark == 'o') || (base == 2 && mark == 'b');
    digits.erase(0, is_prefix ? 2 : 0);
  }
  if (digits.empty() || digits[0] == '-') {
    return std::nullopt;
  }
  digits.insert(0, negative ? "-" : "");
  int64_t number = 0;
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), number, base);
  if (read.ptr != digits.data() + digits.size() || read.ec == std::errc::invalid_argument) {
    return std::nullopt;
  }
  if (read.ec != std::errc()) {
    run.fail("int: ", digits, " is not one of 64 bits");
  }
  return number;
}

std::optional<double> real_of(Run& run, const Value& value) {
  if (value.is_undefined()) {
    fail_undefined(run, value);
  }
  if (value.is_number()) {
    return value.real();
  }
  if (!value.is_text()) {
    return std::nullopt;
  }
  run.letters(value.bytes().size());
  return read_real(value.bytes());
}

Value whole_part(Run& run, double number, const Value& otherwise) {
  if (std::isnan(number)) {
    return otherwise;
  }
  if (!(std::abs(number) < 9.2e18)) {
    run.fail("int: ", repr_of_real(number), " is not one of 64 bits");
  }
  return Value(static_cast<int64_t>(number));
}

Value to_integer(Run& run, const Value& input, const Arguments& arguments) {
  const auto bound = bind_arguments(run, "filter 'int'", arguments, {"default", "base"});
  const Value otherwise = bound[0].value_or(Value(int64_t{0}));
  const int64_t base = bound[1] ? expect_integer(run, *bound[1], "int: the base") : 10;
  if (base < 2 || base > 36) {
    run.fail("int: the base ", base, " is none of 2 to 36");
  }
  if (input.is_integer() || input.is_bool()) {
    return Value(input.integer());
  }
  if (input.is_text()) {
    run.letters(input.bytes().size());
    if (const auto number = read_integer(run, input.bytes(), static_cast<int>(base))) {
      return Value(*number);
    }
  }
  const std::optional<double> number = real_of(run, input);
  return number ? whole_part(run, *number, otherwise) : otherwise;
}

Value to_real(Run& run, const Value& input, const Arguments& arguments) {
  const auto bound = bind_arguments(run, "filter 'float'", arguments, {"default"});
  const std::optional<double> number = real_of(run, input);
  return number ? Value(*number) : bound[0].value_or(Value(0.0));
}

Value absolute(Run& run, const Value& input, const Arguments& arguments) {
  bind_arguments(run, "filter 'abs'", arguments, {});
  if (!input.is_number()) {
    if (input.is_undefined()) {
      fail_undefined(run, input);
    }
    run.fail("abs takes a number, not ", input.type_name());
  }
  if (input.is_real()) {
    return Value(std::abs(input.real()));
  }
  return input.integer() < 0 ? negate(run, input) : Value(input.integer());
}

constexpr NamedFilter kFilters[] = {
    {"abs", absolute},
    {"capitalize", by_method<kCapitalize, false>},
    {"float", to_real},
    {"indent", indent},
    {"int", to_integer},
    {"lower", by_method<kLower, false>},
    {"replace", replace},
    {"safe", safe},
    {"string", as_string},
    {"title", title},
    {"tojson", to_json_text},
    {"trim", trim},
    {"upper", by_method<kUpper, false>},
};

}  // namespace text_filters

std::span<const NamedFilter> all_text_filters() { return text_filters::kFilters; }

Filter find_filter(std::string_view name) {
  for (const auto filters : {all_text_filters(), all_sequence_filters()}) {
    const auto found = std::find_if(filters.begin(), filters.end(),
                                    [&](const NamedFilter& known) { return known.first == name; });
    if (found != filters.end()) {
      return found->second;
    }
  }
  return nullptr;
}

std::string unknown_filter(std::string_view name) {
  std::vector<std::string_view> known;
  for (const auto filters : {all_text_filters(), all_sequence_filters()}) {
    std::transform(filters.begin(), filters.end(), std::back_inserter(known),
                   [](const NamedFilter& filter) { return filter.first; });
  }
  std::sort(known.begin(), known.end());
  std::string message = concat("filter '", name, "' is not known here; known are");
  for (const std::string_view other : known) {
    message += concat(other == known.front() ? " " : ", ", other);
  }
  return message;
}

}  // namespace tapestry::chat::jinja
