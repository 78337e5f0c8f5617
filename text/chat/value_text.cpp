#include "text/chat/value_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <string_view>

#include "text/chat/object.h"
#include "text/chat/text.h"
#include "text/util/utf8.h"

namespace tapestry::chat::jinja {

namespace {

constexpr std::string_view kHexDigits = "0123456789abcdef";

void append_hex(std::string& out, char32_t number, int digits) {
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) {
    out += kHexDigits[(number >> static_cast<unsigned>(shift)) & 15U];
  }
}

void append_quoted(std::string& out, std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  out += quote;
  for (const char32_t c : to_code_points(text)) {
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out += {'\\', static_cast<char>(c)};
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (is_printable(c)) {
      data::append_utf8(out, c);
    } else if (c < 0x100) {
      out += "\\x";
      append_hex(out, c, 2);
    } else if (c < 0x10000) {
      out += "\\u";
      append_hex(out, c, 4);
    } else {
      out += "\\U";
      append_hex(out, c, 8);
    }
  }
  out += quote;
}

// Collections as repr() writes them.
class ReprWriter {
 public:
  ReprWriter(Run& run, std::string& out) : run_(run), out_(out) {}

  void write(const Value& value) {
    run_.step();
    if (value.is_undefined()) {
      out_ += "Undefined";
    } else if (value.is_text()) {
      run_.letters(value.bytes().size());
      out_ += value.is_markup() ? "Markup(" : "";
      append_quoted(out_, value.bytes());
      out_ += value.is_markup() ? ")" : "";
    } else if (value.is_sequence()) {
      write_sequence(value.sequence());
    } else if (value.is_dict()) {
      write_dict(value.dict());
    } else {
      append_text(run_, out_, value);
    }
    run_.check_text(out_.size());
  }

 private:
  void write_items(const Values& items) {
    const char* separator = "";
    for (const Value& item : items) {
      out_ += separator;
      write(item);
      separator = ", ";
    }
  }

  void write_sequence(const Sequence& sequence) {
    using Form = Sequence::Form;
    switch (sequence.form) {
      case Form::kList:
        out_ += '[';
        write_items(sequence.items);
        out_ += ']';
        return;
      case Form::kTuple:
        out_ += '(';
        write_items(sequence.items);
        out_ += sequence.items.size() == 1 ? ",)" : ")";
        return;
      case Form::kRange:
        run_.fail("a range is not shown as a text here; use its list");
      default:
        out_ += sequence.form == Form::kKeys     ? "dict_keys(["
                : sequence.form == Form::kValues ? "dict_values(["
                                                 : "dict_items([";
        write_items(sequence.items);
        out_ += "])";
    }
  }

  void write_dict(const Dict& dict) {
    const char* separator = "";
    out_ += '{';
    for (const auto& [key, value] : dict.entries()) {
      out_ += separator;
      write(key);
      out_ += ": ";
      write(value);
      separator = ", ";
    }
    out_ += '}';
  }

  Run& run_;
  std::string& out_;
};

class JsonWriter {
 public:
  JsonWriter(Run& run, std::string& out, const JsonStyle& style)
      : run_(run), out_(out), style_(style) {}

  void write(const Value& value) {
    run_.step();
    if (value.is_none()) {
      out_ += "null";
    } else if (value.is_bool()) {
      out_ += value.flag() ? "true" : "false";
    } else if (value.is_integer()) {
      out_ += std::to_string(value.integer());
    } else if (value.is_real()) {
      write_real(value.real());
    } else if (value.is_text()) {
      write_text(value.bytes());
    } else if (value.is_dict()) {
      write_dict(value.dict());
    } else if (value.is_sequence() && (value.sequence().form == Sequence::Form::kList ||
                                       value.sequence().form == Sequence::Form::kTuple)) {
      write_list(value.sequence().items);
    } else if (value.is_undefined()) {
      run_.fail("tojson: the value is undefined",
                value.undefined().hint ? ": " + *value.undefined().hint : std::string());
    } else {
      run_.fail("tojson: Object of type ", value.type_name(), " is not JSON serializable");
    }
    run_.check_text(out_.size());
  }

 private:
  void write_real(double number) {
    if (std::isnan(number)) {
      out_ += "NaN";
    } else if (std::isinf(number)) {
      out_ += number > 0 ? "Infinity" : "-Infinity";
    } else {
      out_ += repr_of_real(number);
    }
  }

  void write_text(std::string_view text) {
    run_.letters(text.size());
    out_ += '"';
    if (style_.ensure_ascii && !is_ascii(text)) {
      for (const char32_t c : to_code_points(text)) {
        write_code_point(c);
      }
    } else {
      for (const char c : text) {
        write_byte(c);
      }
    }
    out_ += '"';
  }

  void write_byte(char c) {
    static constexpr std::string_view kEscaped = "\"\\\n\r\t\b\f";
    static constexpr std::string_view kLetters = "\"\\nrtbf";
    if (const size_t found = kEscaped.find(c); found != std::string_view::npos) {
      out_ += {'\\', kLetters[found]};
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out_ += "\\u";
      append_hex(out_, static_cast<unsigned char>(c), 4);
    } else {
      out_ += c;
    }
  }

  void write_code_point(char32_t c) {
    if (c < 0x80) {
      write_byte(static_cast<char>(c));
      return;
    }
    if (c >= 0x10000) {  // a pair of surrogates
      out_ += "\\u";
      append_hex(out_, 0xD800 + ((c - 0x10000) >> 10U), 4);
      c = 0xDC00 + ((c - 0x10000) & 0x3FFU);
    }
    out_ += "\\u";
    append_hex(out_, c, 4);
  }

  void write_key(const Value& key) {
    if (key.is_text()) {
      write_text(key.bytes());
    } else if (key.is_undefined()) {
      run_.fail("tojson: a key is undefined");
    } else {
      out_ += '"';
      write(key);
      out_ += '"';
    }
  }

  void begin_line() {
    if (style_.indent) {
      out_ += '\n';
      for (int i = 0; i < level_; ++i) {
        out_ += *style_.indent;
        run_.check_text(out_.size());
      }
    }
  }

  template <class Items, class Write>
  void write_all(char open, char close, const Items& items, Write write_one) {
    out_ += open;
    if (items.empty()) {
      out_ += close;
      return;
    }
    ++level_;
    bool first = true;
    for (const auto& item : items) {
      if (!first) {
        out_ += style_.item_separator;
      }
      first = false;
      begin_line();
      write_one(item);
    }
    --level_;
    begin_line();
    out_ += close;
  }

  void write_list(const Values& items) {
    write_all('[', ']', items, [&](const Value& item) { write(item); });
  }

  void write_dict(const Dict& dict) {
    std::vector<const std::pair<Value, Value>*> entries;
    for (const auto& entry : dict.entries()) {
      entries.push_back(&entry);
    }
    if (style_.sort_keys) {
      sort_entries(entries);
    }
    write_all('{', '}', entries, [&](const std::pair<Value, Value>* entry) {
      write_key(entry->first);
      out_ += style_.key_separator;
      write(entry->second);
    });
  }

  void sort_entries(std::vector<const std::pair<Value, Value>*>& entries) {
    for (const auto* entry : entries) {
      if (!entry->first.is_text() && entries.size() > 1) {
        run_.fail("tojson: sort_keys takes keys that are texts, not ", entry->first.type_name());
      }
    }
    std::stable_sort(entries.begin(), entries.end(), [](const auto* a, const auto* b) {
      return a->first.bytes() < b->first.bytes();
    });
  }

  Run& run_;
  std::string& out_;
  const JsonStyle& style_;
  int level_ = 0;
};

}  // namespace

std::string repr_of_real(double number) {
  if (std::isnan(number)) {
    return "nan";
  }
  if (std::isinf(number)) {
    return number > 0 ? "inf" : "-inf";
  }
  std::array<char, 40> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), std::abs(number),
                                 std::chars_format::scientific)
                       .ptr;
  const std::string_view written(buffer.data(), static_cast<size_t>(end - buffer.data()));
  const size_t e = written.find('e');
  std::string digits(written.substr(0, 1));
  if (e > 2) {
    digits += written.substr(2, e - 2);
  }
  const int exponent = std::stoi(std::string(written.substr(e + 1)));
  std::string out = std::signbit(number) ? "-" : "";
  const int count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (count > 1) {
      out += '.' + digits.substr(1);
    }
    std::array<char, 16> tail{};
    std::snprintf(tail.data(), tail.size(), "e%c%02d", exponent < 0 ? '-' : '+',
                  std::abs(exponent));
    return out + tail.data();
  }
  if (exponent < 0) {
    return out + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  }
  if (count <= exponent + 1) {
    return out + digits + std::string(static_cast<size_t>(exponent + 1 - count), '0') + ".0";
  }
  const auto point = static_cast<size_t>(exponent) + 1;
  return out + digits.substr(0, point) + "." + digits.substr(point);
}

void append_text(Run& run, std::string& out, const Value& value) {
  if (value.is_text()) {
    run.check_text(out.size() + value.bytes().size());
    out += value.bytes();
  } else if (value.is_none()) {
    out += "None";
  } else if (value.is_bool()) {
    out += value.flag() ? "True" : "False";
  } else if (value.is_integer()) {
    out += std::to_string(value.integer());
  } else if (value.is_real()) {
    out += repr_of_real(value.real());
  } else if (value.is_sequence() || value.is_dict()) {
    ReprWriter(run, out).write(value);
  } else if (!value.is_undefined()) {
    run.fail("a ", value.type_name(), " has no text",
             value.is_iterator() ? "; use its `list`" : "");
  }
}

std::string to_text(Run& run, const Value& value) {
  std::string out;
  append_text(run, out, value);
  return out;
}

std::string repr(Run& run, const Value& value) {
  std::string out;
  ReprWriter(run, out).write(value);
  return out;
}

std::string to_json(Run& run, const Value& value, const JsonStyle& style) {
  std::string out;
  JsonWriter(run, out, style).write(value);
  return out;
}

}  // namespace tapestry::chat::jinja
