// Methods of str.
#include <algorithm>
#include <string>
#include <utility>

#include "text/chat/methods.h"
#include "text/chat/operators.h"
#include "text/chat/text.h"
#include "text/util/utf8.h"

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
  run.step(text.bytes.size() / 16);
  const auto count =
      static_cast<int64_t>(text.ascii ? text.bytes.size() : data::count_characters(text.bytes));
  const auto place = [&](const std::optional<Value>& value, int64_t otherwise) {
    const int64_t given = is_given(value) ? expect_integer(run, *value, "start or end") : otherwise;
    return std::max<int64_t>(given < 0 ? given + count : given, 0);
  };
  const int64_t first = place(start, 0);
  const int64_t last = std::min(place(stop, count), count);
  if (first > count || first > last) {
    return {{}, std::min(first, count), true};
  }
  const auto bytes_of = [&](std::string_view bytes, int64_t letters) {
    const auto most = static_cast<size_t>(letters);
    return text.ascii ? most : place_of_code_point(bytes, most);
  };
  const std::string_view bytes = text.bytes;
  const std::string_view rest = bytes.substr(bytes_of(bytes, first));
  return {rest.substr(0, bytes_of(rest, last - first)), first, false};
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
    const std::string& wanted = expect_text(run, value, method);
    run.scan(wanted.size());
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
    letters = expect_text(run, *bound[0], "what is stripped");
    run.letters(letters->size());
  }
  const std::string_view left = strip(self.bytes(), side, letters);
  run.letters(self.bytes().size() - left.size());
  return run.text(std::string(left));
}

template <std::string (*change)(std::string_view)>
Value changed(Run& run, const Value& self, const Arguments& arguments) {
  bind(run, "the method", arguments, {});
  run.letters(self.bytes().size());
  return run.text(change(self.bytes()));
}

Value is_all_digits(Run& run, const Value& self, const Arguments& arguments) {
  bind(run, "isdigit", arguments, {});
  run.letters(self.bytes().size());
  return Value(is_digit(self.bytes()));
}

// ---- Splitting.

void add_part(Run& run, Values& parts, std::string_view part) {
  run.step();
  parts.push_back(run.text(std::string(part)));
}

Values split_at(Run& run, std::string_view text, std::string_view separator, int64_t most) {
  Values parts;
  while (most != 0) {
    const size_t found = find_first(text, separator);
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
    const size_t found = find_last(text, separator);
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
  run.letters(text.size());
  const std::vector<std::string_view> words = words_of(text);
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
  const int64_t most = bound[1] ? expect_integer(run, *bound[1], "maxsplit") : -1;
  if (!is_given(bound[0])) {
    if (from_right && most == 0) {
      // rsplit(None, 0) keeps what is before the text and drops what is behind it.
      run.letters(self.bytes().size());
      const std::string_view kept = strip(self.bytes(), Side::kRight);
      return run.list(kept.empty() ? Values() : Values{run.text(std::string(kept))});
    }
    return run.list(split_words(run, self.bytes(), most, from_right));
  }
  const std::string& separator = expect_text(run, *bound[0], "split: the separator");
  if (separator.empty()) {
    run.fail("split: the separator is empty");
  }
  run.letters(from_right ? self.bytes().size() : 0);
  run.scan(self.bytes().size() + separator.size());
  return run.list(from_right ? split_at_from_right(run, self.bytes(), separator, most)
                             : split_at(run, self.bytes(), separator, most));
}

Value split_lines(Run& run, const Value& self, const Arguments& arguments) {
  const Bound bound = bind(run, "splitlines", arguments, {"keepends"});
  const bool keep = bound[0] && truth_of(*bound[0]);
  Values lines;
  const std::string_view text = self.bytes();
  run.letters(text.size());
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = line_end_at(text, at);
    if (end > 0) {
      add_part(run, lines, text.substr(begin, at - begin + (keep ? end : 0)));
      begin = at + end;
    }
    at += std::max<size_t>(end, 1);
  }
  if (begin < text.size()) {
    add_part(run, lines, text.substr(begin));
  }
  return run.list(std::move(lines));
}

Value partition(Run& run, const Value& self, const Arguments& arguments) {
  const Bound bound = bind(run, "partition", arguments, {"(sep)"}, 1);
  const std::string& separator = expect_text(run, *bound[0], "partition: the separator");
  if (separator.empty()) {
    run.fail("partition: the separator is empty");
  }
  const std::string& text = self.bytes();
  run.scan(text.size() + separator.size());
  const size_t found = find_first(text, separator);
  if (found == std::string::npos) {
    const Value empty = run.text("");
    return run.tuple({self, empty, empty});
  }
  return run.tuple({run.text(text.substr(0, found)), run.text(separator),
                    run.text(text.substr(found + separator.size()))});
}

// ---- Searching.

size_t count_in(Run& run, std::string_view text, std::string_view wanted) {
  if (wanted.empty()) {
    return data::count_characters(text) + 1;
  }
  size_t count = 0;
  for (size_t at = find_first(text, wanted); at != std::string_view::npos;
       at = find_first(text, wanted)) {
    run.step();
    ++count;
    text.remove_prefix(at + wanted.size());
  }
  return count;
}

Value count_text(Run& run, const Value& self, const Arguments& arguments) {
  const Bound bound = bind(run, "count", arguments, {"(sub)", "(start)", "(end)"}, 1);
  const Part part = part_of(run, self.text(), bound[1], bound[2]);
  const std::string& wanted = expect_text(run, *bound[0], "count");
  run.scan(part.bytes.size() + wanted.size());
  return Value(part.is_beyond ? int64_t{0}
                              : static_cast<int64_t>(count_in(run, part.bytes, wanted)));
}

template <bool from_right, bool must_exist>
Value find_text(Run& run, const Value& self, const Arguments& arguments) {
  const Bound bound = bind(run, "find", arguments, {"(sub)", "(start)", "(end)"}, 1);
  const Part part = part_of(run, self.text(), bound[1], bound[2]);
  const std::string& wanted = expect_text(run, *bound[0], "find");
  run.letters(from_right ? part.bytes.size() : 0);
  run.scan(part.bytes.size() + wanted.size());
  const size_t found = part.is_beyond ? std::string_view::npos
                       : from_right   ? find_last(part.bytes, wanted)
                                      : find_first(part.bytes, wanted);
  if (found != std::string_view::npos) {
    return Value(part.before +
                 static_cast<int64_t>(data::count_characters(part.bytes.substr(0, found))));
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
    run.letters(text.bytes.size());
    const std::vector<size_t> starts = code_point_starts(text.bytes);
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
  run.scan(rest.size() + old.size());
  while (most != 0) {
    const size_t found = find_first(rest, old);
    if (found == std::string_view::npos) {
      break;
    }
    run.step();
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
  const int64_t most = bound[2] ? expect_integer(run, *bound[2], "replace: the count") : -1;
  return run.text(replaced(run, self.text(),
                           expect_text(run, *bound[0], "replace: what is replaced"),
                           expect_text(run, *bound[1], "replace: what comes instead"), most));
}

Value join(Run& run, const Value& self, const Arguments& arguments) {
  const Bound bound = bind(run, "join", arguments, {"(iterable)"}, 1);
  std::string out;
  std::string_view separator;
  for (const Value& item : items_of(run, *bound[0])) {
    const std::string& part = expect_text(run, item, "join: an item");
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
  const std::string& part = expect_text(run, *bound[0], "what is removed");
  const std::string& text = self.bytes();
  run.scan(part.size());
  if (suffix ? !text.ends_with(part) : !text.starts_with(part)) {
    return self;
  }
  return run.text(suffix ? text.substr(0, text.size() - part.size()) : text.substr(part.size()));
}

// ---- Of a text that `safe` has marked, as Markup of markupsafe 3 does it.

Value escaped_value(Run& run, const Value& value) {
  if (!value.is_text() || value.is_markup()) {
    return value;
  }
  run.letters(value.bytes().size());
  return run.marked(escaped(value.bytes()));
}

Value marked_value(Run& run, const Value& value) {
  if (value.is_text()) {
    return run.marked(value.bytes());
  }
  Values items;
  for (const Value& item : value.sequence().items) {
    items.push_back(run.marked(item.bytes()));
  }
  return run.sequence(value.sequence().form, std::move(items));
}

// What the method makes is marked, too. Its second argument, which becomes a part of that, is
// escaped.
template <Method method>
Value marking(Run& run, const Value& self, const Arguments& arguments) {
  if (!self.is_markup()) {
    return method(run, self, arguments);
  }
  Arguments given = arguments;
  if (given.positional.size() > 1) {
    given.positional[1] = escaped_value(run, given.positional[1]);
  }
  return marked_value(run, method(run, self, given));
}

Value join_marked(Run& run, const Value& self, const Arguments& arguments) {
  if (!self.is_markup()) {
    return join(run, self, arguments);
  }
  const Bound bound = bind(run, "join", arguments, {"(iterable)"}, 1);
  Values items;
  for (const Value& item : items_of(run, *bound[0])) {
    items.push_back(escaped_value(run, item));
  }
  return marked_value(run, join(run, self, {{run.list(std::move(items))}, {}}));
}

constexpr std::pair<std::string_view, Method> kMethods[] = {
    {"capitalize", marking<changed<&jinja::capitalize>>},
    {"count", count_text},
    {"endswith", ends_with},
    {"find", find_text<false, false>},
    {"index", find_text<false, true>},
    {"isdigit", is_all_digits},
    {"join", join_marked},
    {"lower", marking<changed<&jinja::to_lower>>},
    {"lstrip", marking<strip_side<Side::kLeft>>},
    {"partition", marking<partition>},
    {"removeprefix", marking<remove_end<false>>},
    {"removesuffix", marking<remove_end<true>>},
    {"replace", marking<replace>},
    {"rfind", find_text<true, false>},
    {"rsplit", marking<split<true>>},
    {"rstrip", marking<strip_side<Side::kRight>>},
    {"split", marking<split<false>>},
    {"splitlines", marking<split_lines>},
    {"startswith", starts_with},
    {"strip", marking<strip_side<Side::kBoth>>},
    {"title", marking<changed<&jinja::title>>},
    {"upper", marking<changed<&jinja::to_upper>>},
};

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
