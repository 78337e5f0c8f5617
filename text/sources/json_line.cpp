#include "text/sources/json_line.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <optional>
#include <string_view>

#include "autograd/tensor/error.h"
#include "text/sources/line_reader.h"
#include "text/util/utf8.h"

namespace tapestry::data {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// The number of the \uXXXX at a place of a line.
std::optional<uint32_t> escaped_unit(std::string_view line, size_t at) {
  constexpr size_t kLength = 6;
  if (at + kLength > line.size() || line[at] != '\\' || line[at + 1] != 'u') {
    return std::nullopt;
  }
  uint32_t unit = 0;
  const char* end = line.data() + at + kLength;
  const auto parsed = std::from_chars(line.data() + at + 2, end, unit, 16);
  return parsed.ec == std::errc{} && parsed.ptr == end ? std::optional(unit) : std::nullopt;
}

bool is_high(uint32_t unit) { return unit >= 0xD800 && unit < 0xDC00; }
bool is_low(uint32_t unit) { return unit >= 0xDC00 && unit < 0xE000; }

// Whether a word outside of strings is what JSON has no number for.
bool is_no_number(std::string_view word) {
  std::string_view bare = word;
  if (bare.starts_with('-')) {
    bare.remove_prefix(1);
  }
  if (bare == "NaN" || bare == "Infinity") {
    return true;
  }
  if (bare.empty() || bare.front() < '0' || bare.front() > '9') {
    return false;
  }
  double value = 0;
  const auto parsed = std::from_chars(word.data(), word.data() + word.size(), value);
  return parsed.ec == std::errc::result_out_of_range && parsed.ptr == word.data() + word.size();
}

// The line in JSON's own words: null for what it has no number for, \ufffd for lone surrogates.
std::string in_plain_json(std::string_view line, bool& has_lone_surrogate) {
  const auto is_word = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '+' || c == '.';
  };
  std::string plain;
  plain.reserve(line.size());
  bool in_string = false;
  for (size_t at = 0; at < line.size();) {
    if (in_string && line[at] == '\\') {
      const auto unit = escaped_unit(line, at);
      size_t length = unit ? 6 : 2;
      if (unit && is_high(*unit) && is_low(escaped_unit(line, at + length).value_or(0))) {
        length *= 2;
      } else if (unit && (is_high(*unit) || is_low(*unit))) {
        has_lone_surrogate = true;
        plain += "\\ufffd";
        at += length;
        continue;
      }
      plain += line.substr(at, length);
      at += length;
    } else if (in_string || !is_word(line[at])) {
      in_string = in_string != (line[at] == '"');
      plain += line[at++];
    } else {
      size_t end = at;
      while (end < line.size() && is_word(line[end])) {
        ++end;
      }
      const std::string_view word = line.substr(at, end - at);
      plain += is_no_number(word) ? "null" : word;
      at = end;
    }
  }
  return plain;
}

std::string file_of(const std::string& place) { return place.substr(0, place.rfind(':')); }

// What is wrong, as far as it can be seen, and what helps.
std::string advice_on(std::string_view line, const std::string& place) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t first = line.find_first_not_of(kSpace);
  const size_t last = line.find_last_not_of(kSpace);
  if (first == std::string_view::npos || line[first] == '[' || line[first] == ']') {
    return concat("; a list of objects becomes one object a line by jq -c '.[]' ", file_of(place),
                  " > NEW.jsonl");
  }
  if (line[first] == '{' && line[last] != '}') {
    return concat("; the object does not end on its line, expected one object a line; jq -c . ",
                  file_of(place), " > NEW.jsonl makes that of objects over several lines");
  }
  if (line.substr(first).starts_with("{'")) {
    return "; names and strings stand in double quotes in JSON, not in single ones as Python "
           "prints them; json.dumps writes them so";
  }
  return "";
}

[[noreturn]] void throw_no_json(std::string_view line, size_t byte, const std::string& place) {
  constexpr size_t kShown = 40;
  while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) {
    line.remove_suffix(1);
  }
  const size_t at = std::min(byte > 0 ? byte - 1 : 0, line.size());
  const size_t begin = at > kShown / 2 ? at - kShown / 2 : 0;
  const std::string near = replace_invalid_utf8(line.substr(begin, kShown));
  throw ValueError(concat(place, ": is not valid JSON: ",
                          at >= line.size() ? "it ends too early, after \"" : "unexpected at byte ",
                          at >= line.size() ? "" : concat(at + 1, ", in \""), near, "\"",
                          advice_on(line, place)));
}

Json parse_within(const std::string& line, const std::string& place, int max_nesting) {
  if (max_nesting == std::numeric_limits<int>::max()) {
    return Json::parse(line);
  }
  return Json::parse(line, [&](int depth, Json::parse_event_t /*event*/, Json& /*parsed*/) {
    check<ValueError>(depth <= max_nesting, place, ": nests arrays and objects more than ",
                      max_nesting, " deep");
    return true;
  });
}

}  // namespace

JsonLine parse_json_line(const std::string& line, const std::string& place, int max_nesting) {
  JsonLine parsed;
  try {
    parsed.value = parse_within(line, place, max_nesting);
  } catch (const Json::exception&) {
    check<ValueError>(is_valid_utf8(line), place,
                      ": is not valid UTF-8, as JSON has to be; convert the file first: iconv -f "
                      "ENCODING -t UTF-8 ",
                      file_of(place), " > NEW.jsonl");
    const std::string plain = in_plain_json(line, parsed.has_lone_surrogate);
    try {
      parsed.value = parse_within(plain, place, max_nesting);
    } catch (const Json::parse_error& error) {
      throw_no_json(plain, error.byte, place);
    } catch (const Json::exception&) {
      throw_no_json(plain, 0, place);
    }
  }
  check<ValueError>(parsed.value.is_object(), place, ": is a JSON ", parsed.value.type_name(),
                    ", expected an object", advice_on(line, place));
  return parsed;
}

void check_no_lone_surrogate(const JsonLine& line,
                             const std::string& text,
                             const std::string& place) {
  check<ValueError>(!line.has_lone_surrogate || text.find(kReplacement) == std::string::npos, place,
                    ": has half of a pair of surrogates (\\ud800 to \\udfff) alone, which is no "
                    "character; the text was cut inside one, or written from UTF-16");
}

}  // namespace tapestry::data
