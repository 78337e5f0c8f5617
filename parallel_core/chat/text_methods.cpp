// Methods of str.
#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "parallel_core/chat/methods.h"
#include "parallel_core/chat/operators.h"
#include "parallel_core/chat/text.h"
#include "parallel_core/chat/text_format.h"

namespace tapestry::chat::jinja {

namespace text_methods {

using Bound = std::vector<std::optional<Value>>;

// Names in parentheses are of arguments that Python takes by their place alone.
Bound bind(Run& run,
           std::string_view method,
           const Arguments& arguments,
           const std::vector<std::string_view>& names,
           size_t required = 0) {
  return bind_arguments(run, method, arguments, names, required);
}

bool is_given(const std::optional<Value>& value) { return value && !value->is_none(); }

// The part between code points `start` and `stop`, and how many come before it.
struct Part {
  std::string_view bytes;
  int64_t before = 0;
  bool is_beyond = false;  ///< it would start behind the end, where not even an empty text is found
};

Part part_of(Run& run,
             const Text& text,
             const std::optional<Value>& start,
             const std::optional<Value>& stop) {
  if (!is_given(start) && !is_given(stop)) {
    return {text.bytes};
  }
  const std::vector<size_t> starts = code_point_starts(text.bytes);
  run.step(starts.size() / 16);
  const auto count = static_cast<int64_t>(starts.size()) - 1;
  const auto place = [&](const std::optional<Value>& value, int64_t otherwise) {
    const int64_t given = is_given(value) ? integer_of(run, *value, "start or end") : otherwise;
    return std::max<int64_t>(given < 0 ? given + count : given, 0);
  };
  const int64_t first = place(start, 0);
  const int64_t last = std::min(place(stop, count), count);
  if (first > count || first > last) {
    return {{}, std::min(first, count), true};
  }
  const size_t begin = starts[static_cast<size_t>(first)];
  const size_t end = starts[static_cast<size_t>(last)];
  return {std::string_view(text.bytes).substr(begin, end - begin), first, false};
}

template <class Matches>
Value matches_any(Run& run,
                  const Value& self,
                  const Arguments& arguments,
                  std::string_view method,
                  Matches matches) {
  const Bound bound = bind(run, method, arguments, {"(prefix)", "(start)", "(end)"}, 1);
  const Part part = part_of(run, self.text(), bound[1], bound[2]);
  const auto holds = [&](const Value& value) {
    const std::string& wanted = text_of(run, value, method);
    return !part.is_beyond && matches(part.bytes, wanted);
  };
  if (bound[0]->is_sequence() && bound[0]->sequence().form == Sequence::Form::kTuple) {
    const Values& wanted = bound[0]->sequence().items;
    return Value(std::any_of(wanted.begin(), wanted.end(), holds));
  }
  return Value(holds(*bound[0]));
}

Value starts_with(Run& run, const Value& self, const Arguments& arguments) {
  return matches_any(run, self, arguments, "startswith",
                     [](std::string_view text, std::string_view x) { return text.starts_with(x); });
}

Value ends_with(Run& run, const Value& self, const Arguments& arguments) {
  return matches_any(run, self, arguments, "endswith",
                     [](std::string_view text, std::string_view x) { return text.ends_with(x); });
}

template <Side side>
Value strip_side(Run& run, const Value& self, const Arguments& arguments) {
  const Bound bound = bind(run, "strip", arguments, {"(chars)"});
  std::optional<std::string_view> letters;
  if (is_given(bound[0])) {
    letters = text_of(run, *bound[0], "what is stripped");
  }
  return run.text(std::string(strip(self.bytes(), side, letters)));
}

template <std::string (*change)(std::string_view)>
Value changed(Run& run, const Value& self, const Arguments& arguments) {
  bind(run, "the method", arguments, {});
  run.step(self.bytes().size() / 16);
  return run.text(change(self.bytes()));
}

template <bool (*holds)(std::string_view)>
Value holds_for(Run& run, const Value& self, const Arguments& arguments) {
  bind(run, "the method", arguments, {});
  run.step(self.bytes().size() / 16);
  return Value(holds(self.bytes()));
}

bool has_only_ascii(std::string_view text) { return is_ascii(text); }

// ---- Splitting.

void add_part(Run& run, Values& parts, std::string_view part) {
  run.step();
  parts.push_back(run.text(std::string(part)));
}

Values split_at(Run& run, std::string_view text, std::string_view separator, int64_t most) {
  Values parts;
  while (most != 0) {
    const size_t found = text.find(separator);
    if (found == std::string_view::npos) {
      break;
    }
    add_part(run, parts, text.substr(0, found));
    text.remove_prefix(found + separator.size());
    --most;
  }
  add_part(run, parts, text);
  return parts;
}

Values split_at_from_right(Run& run,
                           std::string_view text,
                           std::string_view separator,
                           int64_t most) {
  Values parts;
  while (most != 0) {
    const size_t found = text.rfind(separator);
    if (found == std::string_view::npos) {
      break;
    }
    add_part(run, parts, text.substr(found + separator.size()));
    text = text.substr(0, found);
    --most;
  }
  add_part(run, parts, text);
  std::reverse(parts.begin(), parts.end());
  return parts;
}

// At white space; what is left after the most splits keeps its inner and outer end.
Values split_words(Run& run, std::string_view text, int64_t most, bool from_right) {
  const std::vector<std::string_view> words = words_of(text);
  run.step(words.size() + text.size() / 16);
  Values parts;
  if (most < 0 || words.size() <= static_cast<size_t>(most)) {
    for (const std::string_view word : words) {
      add_part(run, parts, word);
    }
    return parts;
  }
  const auto whole = static_cast<size_t>(most);
  if (from_right) {
    const std::string_view last = words[words.size() - whole - 1];
    add_part(run, parts,
             text.substr(0, static_cast<size_t>(last.data() + last.size() - text.data())));
    for (size_t i = words.size() - whole; i < words.size(); ++i) {
      add_part(run, parts, words[i]);
    }
    return parts;
  }
  for (size_t i = 0; i < whole; ++i) {
    add_part(run, parts, words[i]);
  }
  add_part(run, parts, text.substr(static_cast<size_t>(words[whole].data() - text.data())));
  return parts;
}

template <bool from_right>
Value split(Run& run, const Value& self, const Arguments& arguments) {
  const Bound bound = bind(run, "split", arguments, {"sep", "maxsplit"});
  const int64_t most = bound[1] ? integer_of(run, *bound[1], "maxsplit") : -1;
  if (!is_given(bound[0])) {
    if (from_right && most == 0) {
      // rsplit(None, 0) keeps what is before the text and drops what is behind it.
      const std::string_view kept = strip(self.bytes(), Side::kRight);
      return run.list(kept.empty() ? Values() : Values{run.text(std::string(kept))});
    }
    return run.list(split_words(run, self.bytes(), most, from_right));
  }
  const std::string& separator = text_of(run, *bound[0], "split: the separator");
  if (separator.empty()) {
    run.fail("split: the separator is empty");
  }
  run.step(self.bytes().size() / 64);
  return run.list(from_right ? split_at_from_right(run, self.bytes(), separator, most)
                             : split_at(run, self.bytes(), separator, most));
}

bool ends_line(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

Value split_lines(Run& run, const Value& self, const Arguments& arguments) {
  const Bound bound = bind(run, "splitlines", arguments, {"keepends"});
  const bool keep = bound[0] && truth_of(*bound[0]);
  Values lines;
  const std::vector<size_t> starts = code_point_starts(self.bytes());
  const std::u32string letters = to_code_points(self.bytes());
  run.step(letters.size() / 16);
  size_t begin = 0;
  for (size_t i = 0; i < letters.size(); ++i) {
    if (!ends_line(letters[i])) {
      continue;
    }
    const size_t text_end = starts[i];
    if (letters[i] == '\r' && i + 1 < letters.size() && letters[i + 1] == '\n') {
      ++i;
    }
    const size_t line_end = starts[i + 1];
    add_part(run, lines, self.bytes().substr(begin, (keep ? line_end : text_end) - begin));
    begin = line_end;
  }
  if (begin < self.bytes().size()) {
    add_part(run, lines, self.bytes().substr(begin));
  }
  return run.list(std::move(lines));
}

template <bool from_right>
Value partition(Run& run, const Value& self, const Arguments& arguments) {
  const Bound bound = bind(run, "partition", arguments, {"(sep)"}, 1);
  const std::string& separator = text_of(run, *bound[0], "partition: the separator");
  if (separator.empty()) {
    run.fail("partition: the separator is empty");
  }
  const std::string& text = self.bytes();
  const size_t found = from_right ? text.rfind(separator) : text.find(separator);
  const Value empty = run.text("");
  if (found == std::string::npos) {
    return run.tuple(from_right ? Values{empty, empty, self} : Values{self, empty, empty});
  }
  return run.tuple({run.text(text.substr(0, found)), run.text(separator),
                    run.text(text.substr(found + separator.size()))});
}

// ---- Searching.

size_t count_in(std::string_view text, std::string_view wanted) {
  if (wanted.empty()) {
    return count_code_points(text) + 1;
  }
  size_t count = 0;
  for (size_t at = text.find(wanted); at != std::string_view::npos;
       at = text.find(wanted, at + wanted.size())) {
    ++count;
  }
  return count;
}

Value count_text(Run& run, const Value& self, const Arguments& arguments) {
  const Bound bound = bind(run, "count", arguments, {"(sub)", "(start)", "(end)"}, 1);
  const Part part = part_of(run, self.text(), bound[1], bound[2]);
  run.step(part.bytes.size() / 64);
  const std::string& wanted = text_of(run, *bound[0], "count");
  return Value(part.is_beyond ? int64_t{0} : static_cast<int64_t>(count_in(part.bytes, wanted)));
}

template <bool from_right, bool must_exist>
Value find_text(Run& run, const Value& self, const Arguments& arguments) {
  const Bound bound = bind(run, "find", arguments, {"(sub)", "(start)", "(end)"}, 1);
  const Part part = part_of(run, self.text(), bound[1], bound[2]);
  run.step(part.bytes.size() / 64);
  const std::string& wanted = text_of(run, *bound[0], "find");
  const size_t found = part.is_beyond ? std::string_view::npos
                       : from_right   ? part.bytes.rfind(wanted)
                                      : part.bytes.find(wanted);
  if (found != std::string_view::npos) {
    return Value(part.before +
                 static_cast<int64_t>(count_code_points(part.bytes.substr(0, found))));
  }
  if (must_exist) {
    run.fail("index: the text is not found");
  }
  return Value(int64_t{-1});
}

// ---- Changing.

std::string replaced(
    Run& run, const Text& text, std::string_view old, std::string_view with, int64_t most) {
  std::string out;
  const auto add = [&](std::string_view part) {
    run.check_text(out.size() + part.size());
    out += part;
  };
  if (old.empty()) {
    const std::vector<size_t> starts = code_point_starts(text.bytes);
    run.step(starts.size() / 4);
    for (size_t i = 0; i < starts.size(); ++i) {
      if (most != 0) {
        add(with);
        --most;
      }
      if (i + 1 < starts.size()) {
        add(std::string_view(text.bytes).substr(starts[i], starts[i + 1] - starts[i]));
      }
    }
    return out;
  }
  std::string_view rest = text.bytes;
  while (most != 0) {
    const size_t found = rest.find(old);
    if (found == std::string_view::npos) {
      break;
    }
    add(rest.substr(0, found));
    add(with);
    rest.remove_prefix(found + old.size());
    --most;
  }
  add(rest);
  return out;
}

Value replace(Run& run, const Value& self, const Arguments& arguments) {
  const Bound bound = bind(run, "replace", arguments, {"(old)", "(new)", "(count)"}, 2);
  const int64_t most = bound[2] ? integer_of(run, *bound[2], "replace: the count") : -1;
  return run.text(replaced(run, self.text(), text_of(run, *bound[0], "replace: what is replaced"),
                           text_of(run, *bound[1], "replace: what comes instead"), most));
}

Value join(Run& run, const Value& self, const Arguments& arguments) {
  const Bound bound = bind(run, "join", arguments, {"(iterable)"}, 1);
  std::string out;
  std::string_view separator;
  for (const Value& item : items_of(run, *bound[0])) {
    const std::string& part = text_of(run, item, "join: an item");
    run.check_text(out.size() + separator.size() + part.size());
    out += separator;
    out += part;
    separator = self.bytes();
  }
  return run.text(std::move(out));
}

template <bool suffix>
Value remove_end(Run& run, const Value& self, const Arguments& arguments) {
  const Bound bound = bind(run, "removeprefix", arguments, {"(part)"}, 1);
  const std::string& part = text_of(run, *bound[0], "what is removed");
  const std::string& text = self.bytes();
  if (suffix ? !text.ends_with(part) : !text.starts_with(part)) {
    return self;
  }
  return run.text(suffix ? text.substr(0, text.size() - part.size()) : text.substr(part.size()));
}

enum class Fill { kLeft, kRight, kCenter };

template <Fill where>
Value filled(Run& run, const Value& self, const Arguments& arguments) {
  const Bound bound = bind(run, "ljust", arguments, {"(width)", "(fillchar)"}, 1);
  const std::string fill = bound[1] ? text_of(run, *bound[1], "the fill character") : " ";
  if (count_code_points(fill) != 1) {
    run.fail("the fill character must be one character");
  }
  const int64_t width = integer_of(run, *bound[0], "the width");
  const int64_t missing = std::max<int64_t>(width - length_of(run, self), 0);
  run.check_text(static_cast<size_t>(missing));
  // As CPython rounds: the odd one to the left where the width is odd.
  const int64_t left = where == Fill::kLeft    ? missing
                       : where == Fill::kRight ? 0
                                               : missing / 2 + (missing & width & 1);
  std::string out;
  for (int64_t i = 0; i < left; ++i) {
    out += fill;
  }
  out += self.bytes();
  for (int64_t i = left; i < missing; ++i) {
    out += fill;
  }
  return run.text(std::move(out));
}

Value zero_filled(Run& run, const Value& self, const Arguments& arguments) {
  const Bound bound = bind(run, "zfill", arguments, {"(width)"}, 1);
  const int64_t missing =
      std::max<int64_t>(integer_of(run, *bound[0], "the width") - length_of(run, self), 0);
  run.check_text(static_cast<size_t>(missing));
  const std::string& text = self.bytes();
  const size_t sign = !text.empty() && (text[0] == '-' || text[0] == '+') ? 1 : 0;
  return run.text(text.substr(0, sign) + std::string(static_cast<size_t>(missing), '0') +
                  text.substr(sign));
}

Value format(Run& run, const Value& self, const Arguments& arguments) {
  return run.text(brace_format(run, self.bytes(), arguments));
}

constexpr std::array<std::pair<std::string_view, Method>, 37> kMethods = {{
    {"capitalize", changed<&jinja::capitalize>},
    {"center", filled<Fill::kCenter>},
    {"count", count_text},
    {"endswith", ends_with},
    {"find", find_text<false, false>},
    {"format", format},
    {"index", find_text<false, true>},
    {"isalnum", holds_for<is_alnum>},
    {"isalpha", holds_for<is_alpha>},
    {"isascii", holds_for<has_only_ascii>},
    {"isdecimal", holds_for<is_decimal>},
    {"isdigit", holds_for<is_digit>},
    {"islower", holds_for<is_lower>},
    {"isspace", holds_for<is_all_space>},
    {"isupper", holds_for<is_upper>},
    {"join", join},
    {"ljust", filled<Fill::kRight>},
    {"lower", changed<&jinja::to_lower>},
    {"lstrip", strip_side<Side::kLeft>},
    {"partition", partition<false>},
    {"removeprefix", remove_end<false>},
    {"removesuffix", remove_end<true>},
    {"replace", replace},
    {"rfind", find_text<true, false>},
    {"rindex", find_text<true, true>},
    {"rjust", filled<Fill::kLeft>},
    {"rpartition", partition<true>},
    {"rsplit", split<true>},
    {"rstrip", strip_side<Side::kRight>},
    {"split", split<false>},
    {"splitlines", split_lines},
    {"startswith", starts_with},
    {"strip", strip_side<Side::kBoth>},
    {"swapcase", changed<&jinja::swap_case>},
    {"title", changed<&jinja::title>},
    {"upper", changed<&jinja::to_upper>},
    {"zfill", zero_filled},
}};

}  // namespace text_methods

Method find_text_method(std::string_view name) {
  for (const auto& [known, method] : text_methods::kMethods) {
    if (known == name) {
      return method;
    }
  }
  return nullptr;
}

}  // namespace tapestry::chat::jinja
