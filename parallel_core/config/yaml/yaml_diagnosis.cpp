#include "parallel_core/config/yaml/yaml_diagnosis.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <vector>

#include "autograd/tensor/error.h"
#include "text/util/utf8.h"

namespace tapestry::config {
namespace {

constexpr size_t kNone = std::string_view::npos;
constexpr int kMostLinesOfAValue = 100;

bool is_name_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-' || c == '.';
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    if (line.ends_with('\r')) {
      line.remove_suffix(1);
    }
    lines.push_back(line);
    if (end == kNone) {
      break;
    }
    text.remove_prefix(end + 1);
  }
  return lines;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) {
    text.remove_prefix(1);
  }
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) {
    text.remove_suffix(1);
  }
  return text;
}

// Blanks that look like spaces and are none.
constexpr std::array<std::string_view, 4> kOddBlanks = {"\u00a0", "\u3000", "\u2003", "\u200b"};

size_t odd_blank(std::string_view text) {
  for (const std::string_view blank : kOddBlanks) {
    if (text.starts_with(blank)) {
      return blank.size();
    }
  }
  return 0;
}

// Quotes and brackets of a text, which may go on over lines.
struct Scan {
  char quote = 0;  // that is open at the end
  size_t quote_at = kNone;
  std::vector<size_t> brackets;  // open at the end
  size_t stray = kNone;          // a closing bracket that nothing has opened
  std::vector<size_t> colons;    // that end a key, outside quotes and brackets
  size_t comment = kNone;
};

Scan scan(std::string_view text) {
  Scan found;
  bool at_start = true;  // of a value: only there a quote opens
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (found.quote != 0) {
      if (c == '\\' && found.quote == '"') {
        ++i;
      } else if (c == found.quote) {
        if (c == '\'' && i + 1 < text.size() && text[i + 1] == '\'') {
          ++i;
        } else {
          found.quote = 0;
        }
      }
      continue;
    }
    const bool before_blank =
        i + 1 == text.size() || text[i + 1] == ' ' || text[i + 1] == '\t' || text[i + 1] == '\n';
    if (c == '#' && (i == 0 || text[i - 1] == ' ' || text[i - 1] == '\t' || text[i - 1] == '\n')) {
      found.comment = std::min(found.comment, i);
      i = std::min(text.find('\n', i), text.size()) - 1;
    } else if ((c == '"' || c == '\'') && at_start) {
      found.quote = c;
      found.quote_at = i;
      at_start = false;
    } else if ((c == '[' || c == '{') && (at_start || !found.brackets.empty())) {
      found.brackets.push_back(i);
      at_start = true;
    } else if ((c == ']' || c == '}') && !found.brackets.empty()) {
      found.brackets.pop_back();
      at_start = false;
    } else if ((c == ']' || c == '}') && found.stray == kNone) {
      found.stray = i;
    } else if (c == ':' && before_blank) {
      if (found.brackets.empty()) {
        found.colons.push_back(i);
      }
      at_start = true;
    } else if (c == ',' || (c == '-' && at_start && before_blank)) {
      at_start = true;
    } else if (c != ' ' && c != '\t' && c != '\n') {
      at_start = false;
    }
  }
  return found;
}

std::string_view without_comment(std::string_view line) {
  return trimmed(line.substr(0, scan(line).comment));
}

std::string_view name_at_start(std::string_view code) {
  size_t end = 0;
  while (end < code.size() && is_name_char(code[end])) {
    ++end;
  }
  return code.substr(0, end);
}

// A line that begins a key of a block: what an open quote or bracket cannot reach over.
bool begins_key(std::string_view line) {
  const std::string_view code = trimmed(line);
  const std::string_view name = name_at_start(code);
  const std::string_view rest = code.substr(name.size());
  return !name.empty() && rest.starts_with(':') && (rest.size() == 1 || rest[1] == ' ');
}

size_t indent_of(std::string_view line) {
  return std::min(line.find_first_not_of(' '), line.size());
}

bool is_blank(std::string_view line) {
  const std::string_view code = trimmed(line);
  return code.empty() || code.front() == '#';
}

bool opens_block_text(std::string_view code) {
  const Scan found = scan(code);
  if (found.colons.empty()) {
    return false;
  }
  const std::string_view value = trimmed(code.substr(found.colons.front() + 1));
  return value.starts_with('|') || value.starts_with('>');
}

std::string spaces(size_t number) { return concat(number, number == 1 ? " space" : " spaces"); }

std::string ticked(std::string_view text) { return concat("`", text, "`"); }

// Looks at one line after the other.
class Diagnosis {
 public:
  explicit Diagnosis(std::string_view text) : lines_(lines_of(text)) {}

  /// Only what a parser takes for something else without a complaint.
  std::optional<YamlFault> first_misread() {
    only_misread_ = true;
    return first(static_cast<int>(lines_.size()));
  }

  std::optional<YamlFault> first(int last_line) {
    const int last = std::min(last_line, static_cast<int>(lines_.size()));
    last_line_ = last - 1;
    for (int i = 0; i < last; ++i) {
      if (is_blank(lines_[i]) && lines_[i].find('\t') == kNone) {
        continue;
      }
      if (std::optional<YamlFault> fault = look_at(i)) {
        return fault;
      }
    }
    return std::nullopt;
  }

 private:
  static YamlFault at(int line, size_t column, std::string message) {
    return {line + 1, static_cast<int>(column) + 1, std::move(message)};
  }

  std::optional<YamlFault> look_at(int& i) {
    const std::string_view line = lines_[i];
    if (std::optional<YamlFault> fault = indentation_characters(i); fault && !only_misread_) {
      return fault;
    }
    if (is_blank(line)) {
      return std::nullopt;
    }
    const std::string_view code = without_comment(line);
    int end = i;
    if (std::optional<YamlFault> fault = open_at_end(i, end)) {
      if (!only_misread_ || fault->message.starts_with(kOpenQuote)) {
        return fault;
      }
    }
    if (std::optional<YamlFault> fault = template_start(i)) {
      return fault;
    }
    if (!only_misread_) {
      if (std::optional<YamlFault> fault = indentation(i)) {
        return fault;
      }
      if (std::string message = line_fault(code); !message.empty() && end == i) {
        if (name_at_start(code) != code || goes_deeper(i)) {
          return at(i, indent_of(line), std::move(message));
        }
      }
      if (std::optional<YamlFault> fault = value_start(i)) {
        return fault;
      }
    }
    remember(i);
    if (opens_block_text(code)) {  // what is indented below is text
      while (end + 1 < static_cast<int>(lines_.size()) &&
             (is_blank(lines_[end + 1]) || indent_of(lines_[end + 1]) > indent_of(line))) {
        ++end;
      }
    }
    i = end;
    return std::nullopt;
  }

  std::optional<YamlFault> indentation_characters(int i) const {
    const std::string_view line = lines_[i];
    const size_t start = indent_of(line);
    if (line.substr(start).starts_with('\t')) {
      const size_t code = line.find_first_not_of(" \t");
      if (code == kNone || line[code] == '#') {  // only in some places is that refused
        return i != last_line_ ? std::nullopt
                               : std::optional(at(i, start,
                                                  "a tab stands on this empty line; remove it, or "
                                                  "write spaces"));
      }
      return at(i, start,
                "a tab indents this line, YAML takes spaces alone; replace each tab by two spaces");
    }
    if (odd_blank(line.substr(start)) > 0) {
      return at(i, start,
                "a blank that is no ordinary space (copied from a web page or a document) indents "
                "this line; replace it by spaces");
    }
    return std::nullopt;
  }

  // A quote or bracket of line i that is open at its end: where it closes (`end`), or the fault.
  std::optional<YamlFault> open_at_end(int i, int& end) const {
    std::string piece(lines_[i]);
    Scan found = scan(piece);
    if (found.stray != kNone && !found.colons.empty()) {
      return at(i, found.stray,
                concat("nothing opens this ", ticked(piece.substr(found.stray, 1)),
                       "; add the opening one, or put the value into quotes"));
    }
    const Scan first = found;
    while (found.quote != 0 || !found.brackets.empty()) {
      const int next = end + 1;
      if (next >= static_cast<int>(lines_.size()) || next > i + kMostLinesOfAValue ||
          begins_key(lines_[next])) {
        end = i;
        if (first.quote != 0) {
          return at(i, first.quote_at,
                    concat(kOpenQuote, first.quote,
                           " is not closed; close it where the text ends, or leave out the "
                           "quotes"));
        }
        const size_t open = first.brackets.front();
        return at(i, open,
                  concat("the bracket ", piece.substr(open, 1), " is not closed; add the ",
                         piece[open] == '[' ? "]" : "}"));
      }
      piece += "\n" + std::string(lines_[next]);
      end = next;
      found = scan(piece);
    }
    return std::nullopt;
  }

  std::optional<YamlFault> indentation(int i) {
    const size_t indent = indent_of(lines_[i]);
    const bool item = trimmed(lines_[i]).starts_with("- ");
    if (levels_.empty() || indent == levels_.back()) {
      return std::nullopt;
    }
    if (indent > levels_.back()) {
      if (last_has_value_ && !item) {
        return at(i, indent,
                  concat("this line is indented by ", spaces(indent), ", further than ",
                         ticked(last_key_),
                         " above it, which has its value already; begin both in one column"));
      }
      return std::nullopt;
    }
    if (std::find(levels_.begin(), levels_.end(), indent) == levels_.end()) {
      std::string known;
      for (size_t k = 0; k < levels_.size(); ++k) {
        known += concat(k == 0 ? "" : k + 1 == levels_.size() ? " or " : ", ", levels_[k]);
      }
      return at(i, indent,
                concat("this line is indented by ", spaces(indent),
                       ", as no line above it; the keys above begin after ", known,
                       " spaces: align it with those that it belongs to"));
    }
    return std::nullopt;
  }

  // A single word is the name of a mapping that lacks its colon if the next line is indented.
  bool goes_deeper(int i) const {
    for (size_t next = i + 1; next < lines_.size(); ++next) {
      if (!is_blank(lines_[next])) {
        return indent_of(lines_[next]) > indent_of(lines_[i]) || begins_key(lines_[next]);
      }
    }
    return levels_.empty() ? false : !last_has_value_ || indent_of(lines_[i]) <= levels_.back();
  }

  // Where the value of the line's key begins; kNone if it has none.
  static size_t value_at(std::string_view line, const Scan& found) {
    if (found.colons.empty()) {
      return kNone;
    }
    const size_t value = line.find_first_not_of(" \t", found.colons.front() + 1);
    return value < found.comment ? value : kNone;
  }

  std::optional<YamlFault> template_start(int i) const {
    const std::string_view line = lines_[i];
    const size_t value = value_at(line, scan(line));
    if (value == kNone || !line.substr(value).starts_with("{{")) {
      return std::nullopt;
    }
    return at(i, value,
              "{{ }} of a template is not filled in; write the value itself, or put the text into "
              "double quotes");
  }

  std::optional<YamlFault> value_start(int i) const {
    const std::string_view line = lines_[i];
    const Scan found = scan(line);
    const size_t value = value_at(line, found);
    if (value == kNone) {
      return std::nullopt;
    }
    const char c = line[value];
    if (c == '@' || c == '`' || c == '%') {
      return at(i, value,
                concat("no value begins with ", std::string(1, c),
                       " in YAML; put the value into double quotes"));
    }
    if (c == '*') {
      return at(i, value,
                concat(ticked(trimmed(line.substr(value, found.comment - value))),
                       " takes the value of an anchor, &", name_at_start(line.substr(value + 1)),
                       ", which must stand further up; put the value into double quotes if the "
                       "text is meant"));
    }
    return std::nullopt;
  }

  void remember(int i) {
    const size_t indent = indent_of(lines_[i]);
    while (!levels_.empty() && levels_.back() > indent) {
      levels_.pop_back();
    }
    if (levels_.empty() || levels_.back() < indent) {
      levels_.push_back(indent);
    }
    const std::string_view code = without_comment(lines_[i]);
    last_has_value_ = !code.ends_with(':');
    last_key_ = name_at_start(code);
    if (code.starts_with("- ") && begins_key(code.substr(2))) {  // a mapping in a list
      levels_.push_back(lines_[i].find_first_not_of(" -", indent));
      last_key_ = name_at_start(trimmed(code.substr(2)));
    }
  }

  static constexpr std::string_view kOpenQuote = "the quote ";

  std::vector<std::string_view> lines_;
  bool only_misread_ = false;
  int last_line_ = 0;
  std::vector<size_t> levels_;  // indentations of the mappings that are open
  bool last_has_value_ = false;
  std::string_view last_key_;
};

}  // namespace

std::optional<YamlFault> encoding_fault(std::string_view text, const std::string& name) {
  const std::string converted = " " + name + " > utf8.yaml";
  if (text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff")) {
    return YamlFault{1, 1,
                     concat("the file is UTF-16, expected UTF-8; convert it: "
                            "iconv -f UTF-16 -t UTF-8",
                            converted)};
  }
  YamlFault fault{1, 1, {}};
  while (!text.empty()) {
    const data::Utf8Sequence first = data::first_sequence(text);
    if (!first.valid || first.code_point == 0) {
      const auto byte = static_cast<unsigned char>(text.front());
      char shown[8];
      std::snprintf(shown, sizeof(shown), "0x%02x", byte);
      fault.message =
          byte < 0xa0
              ? concat("the byte ", shown,
                       " belongs to no text in UTF-8: this is no YAML "
                       "file")
              : concat("the byte ", shown, " is no UTF-8; in Latin-1 it is '", data::utf8(byte),
                       "': convert the file: iconv -f LATIN1 -t UTF-8", converted);
      return fault;
    }
    if (text.front() == '\n') {
      ++fault.line;
      fault.column = 0;
    }
    fault.column += static_cast<int>(first.length);
    text.remove_prefix(first.length);
  }
  return std::nullopt;
}

std::string line_fault(std::string_view line) {
  const std::string_view code = without_comment(line);
  const std::string_view name = name_at_start(code);
  const std::string_view rest = code.substr(name.size());
  const std::string_view value = trimmed(rest.substr(std::min<size_t>(rest.size(), 1)));
  if (name.empty() || code.starts_with("- ") || code.starts_with("---")) {
    return {};
  }
  if (rest.starts_with("\uff1a")) {
    return concat("the colon after ", ticked(name), " is a full-width one; write ",
                  ticked(concat(name, ": ", trimmed(rest.substr(3)))));
  }
  if (rest.starts_with(':') && rest.size() > 1 && rest[1] != ' ' && rest[1] != '\t') {
    return concat("a space is missing after ", ticked(concat(name, ":")), "; write ",
                  ticked(concat(name, ": ", value)));
  }
  if (trimmed(rest).starts_with('=')) {
    return concat(ticked("="), " sets nothing in YAML; write ",
                  ticked(concat(name, ": ", trimmed(trimmed(rest).substr(1)))));
  }
  const Scan found = scan(code);
  if (found.colons.size() > 1) {
    const std::string_view second = trimmed(code.substr(found.colons[0] + 1));
    return concat("two colons on one line; begin ", ticked(second), " on a line of its own below ",
                  ticked(concat(name, ":")),
                  ", indented by two spaces more, or put it into quotes "
                  "if it is a text");
  }
  if (found.colons.empty()) {
    return rest.empty() ? concat("a colon is missing after ", ticked(name), "; write ",
                                 ticked(concat(name, ":")))
                        : concat("a colon is missing after ", ticked(name), "; write ",
                                 ticked(concat(name, ": ", trimmed(rest))));
  }
  return {};
}

YamlFault yaml_fault(std::string_view text, const YamlFault& parser) {
  if (std::optional<YamlFault> fault = Diagnosis(text).first(parser.line)) {
    return *fault;
  }
  return {parser.line, parser.column,
          concat(parser.message,
                 "; expected `key: value`, or `key:` and below it lines indented by "
                 "two spaces more")};
}

std::optional<YamlFault> misread_fault(std::string_view text) {
  return Diagnosis(text).first_misread();
}

std::string key_path_of_line(std::string_view text, int line) {
  const std::vector<std::string_view> lines = lines_of(text);
  if (line < 1 || line > static_cast<int>(lines.size())) {
    return {};
  }
  std::string path;
  size_t indent = kNone;
  for (int i = line - 1; i >= 0; --i) {
    std::string_view code = without_comment(lines[i]);
    size_t here = indent_of(lines[i]);
    // What is no space indents by something: of the keys above, only the section is sure then.
    for (size_t odd = odd_blank(code); odd > 0; odd = odd_blank(code)) {
      code = trimmed(code.substr(odd));
      here = 1;
    }
    if (lines[i].substr(indent_of(lines[i])).starts_with('\t')) {
      here = 1;
    }
    if (code.empty() || code.front() == '#' || (indent != kNone && here >= indent)) {
      continue;
    }
    const std::string_view name = name_at_start(code);
    if (!name.empty() && (i == line - 1 || begins_key(lines[i]))) {
      path = path.empty() ? std::string(name) : concat(name, ".", path);
    }
    indent = here;
    if (here == 0) {
      break;
    }
  }
  return path;
}

std::string source_excerpt(std::string_view text, int line, int column) {
  const std::vector<std::string_view> lines = lines_of(text);
  if (line < 1 || line > static_cast<int>(lines.size())) {
    return {};
  }
  constexpr size_t kWidth = 80;
  std::string shown(lines[line - 1].substr(0, kWidth));
  std::replace_if(
      shown.begin(), shown.end(), [](unsigned char c) { return c < ' ' || c == 0x7f; }, ' ');
  std::string excerpt = concat("\n    ", line, " | ", shown);
  if (column >= 1 && column <= static_cast<int>(kWidth)) {
    excerpt += "\n" + std::string(4 + std::to_string(line).size(), ' ') + " | " +
               std::string(static_cast<size_t>(column - 1), ' ') + "^";
  }
  return excerpt;
}

}  // namespace tapestry::config
