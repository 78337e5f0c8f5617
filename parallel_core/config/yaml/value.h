// Values of configuration keys between YAML text and the members of the structs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace tapestry::config {

/// Null, a scalar, a list or a mapping. Its special members are not inline: a recursive variant
/// that is moved inline makes GCC 12 warn of members that it cannot follow.
struct Value {
  using List = std::vector<Value>;
  using Map = std::vector<std::pair<std::string, Value>>;
  std::variant<std::monostate, bool, int64_t, double, std::string, List, Map> data;

  Value();
  Value(bool value);
  Value(int64_t value);
  Value(double value);
  Value(std::string value);
  Value(List value);
  Value(Map value);
  Value(const Value& other);
  Value(Value&& other) noexcept;
  Value& operator=(const Value& other);
  Value& operator=(Value&& other) noexcept;
  ~Value();

  bool is_null() const { return std::holds_alternative<std::monostate>(data); }
  template <class T>
  const T& as() const {
    return std::get<T>(data);
  }
  template <class T>
  bool is() const {
    return std::holds_alternative<T>(data);
  }
  bool operator==(const Value& other) const;
};

/// YAML flow text that reads back as the same value: `null`, `True`, `1e-06`, `[7, 0]`,
/// `"quoted where needed"`.
std::string to_yaml(const Value& value);

/// Shortest text that reads back as the same double, always with a point or an exponent.
std::string number_text(double number);

/// A string as YAML reads it back, quoted only where that is needed.
std::string string_text(std::string_view text);

/// The same of a path, which a reader would take the environment's values into: `$$` stands for a
/// dollar sign of the name.
std::string path_text(std::string_view path);

}  // namespace tapestry::config
