#include "parallel_core/config/yaml/value.h"

#include <array>
#include <charconv>
#include <cstdio>

#include "parallel_core/config/yaml/expand_path.h"
#include "parallel_core/config/yaml/raw_yaml.h"

namespace tapestry::config {
namespace {

bool plain_is_safe(std::string_view text) {
  if (text.empty() || scalar_kind(text) != ScalarKind::kString) {
    return false;
  }
  const auto letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '/';
  };
  if (!letter(text.front())) {
    return false;
  }
  for (const char c : text) {
    if (!letter(c) && c != '-' && c != '+') {
      return false;
    }
  }
  return true;
}

}  // namespace

Value::Value() = default;
Value::Value(bool value) : data(value) {}
Value::Value(int64_t value) : data(value) {}
Value::Value(double value) : data(value) {}
Value::Value(std::string value) : data(std::move(value)) {}
Value::Value(List value) : data(std::move(value)) {}
Value::Value(Map value) : data(std::move(value)) {}
Value::Value(const Value& other) = default;
Value::Value(Value&& other) noexcept = default;
Value& Value::operator=(const Value& other) = default;
Value& Value::operator=(Value&& other) noexcept = default;
Value::~Value() = default;
bool Value::operator==(const Value& other) const { return data == other.data; }

std::string number_text(double number) {
  std::array<char, 32> buffer{};
  const auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), number);
  std::string text(buffer.data(), result.ptr);
  if (text.find_first_of(".en") == std::string::npos) {
    text += ".0";
  }
  return text;
}

std::string string_text(std::string_view text) {
  if (plain_is_safe(text)) {
    return std::string(text);
  }
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (c == '\n') {
      quoted += "\\n";
    } else if (byte < 0x20 || byte == 0x7f) {
      std::array<char, 8> escape{};
      std::snprintf(escape.data(), escape.size(), "\\x%02x", byte);
      quoted += escape.data();
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

std::string to_yaml(const Value& value) {
  if (value.is<bool>()) {
    return value.as<bool>() ? "True" : "False";
  }
  if (value.is<int64_t>()) {
    return std::to_string(value.as<int64_t>());
  }
  if (value.is<double>()) {
    return number_text(value.as<double>());
  }
  if (value.is<std::string>()) {
    return string_text(value.as<std::string>());
  }
  if (value.is<Value::List>()) {
    std::string text = "[";
    for (const Value& item : value.as<Value::List>()) {
      text += (text.size() > 1 ? ", " : "") + to_yaml(item);
    }
    return text + "]";
  }
  if (value.is<Value::Map>()) {
    std::string text = "{";
    for (const auto& [key, item] : value.as<Value::Map>()) {
      text += (text.size() > 1 ? ", " : "") + string_text(key) + ": " + to_yaml(item);
    }
    return text + "}";
  }
  return "null";
}

std::string path_text(std::string_view path) { return string_text(literal_path(path)); }

}  // namespace tapestry::config
