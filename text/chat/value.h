// Values of templates: Python's, as far as templates can make them.
//
// Lists, dicts and texts never change once they are made (the sandbox of transformers forbids it),
// so they are shared. What changes are namespaces, iterators and loops, which belong to one
// rendering.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

namespace tapestry::chat::jinja {

class Value;
class Object;
class Dict;
struct Sequence;
struct Iterator;
struct Namespace;

/// What a name without a value, or a key that is not there, gives. `hint`: what an error says.
struct Undefined {
  std::shared_ptr<const std::string> hint;
};
struct None {};

/// str. Valid UTF-8.
struct Text {
  std::string bytes;
  bool ascii = true;  ///< then a code point is a byte
  /// markupsafe's Markup, which `safe` makes: escapes the texts that it is joined with.
  bool markup = false;
};

class Value {
 public:
  Value() = default;
  Value(None) : content_(None{}) {}
  Value(Undefined undefined) : content_(std::move(undefined)) {}
  explicit Value(bool flag) : content_(flag) {}
  explicit Value(int64_t number) : content_(number) {}
  explicit Value(double number) : content_(number) {}
  /// Not checked against limits; Run::text is.
  explicit Value(std::string text);
  explicit Value(std::shared_ptr<const Text> text) : content_(std::move(text)) {}
  explicit Value(std::shared_ptr<const Sequence> items) : content_(std::move(items)) {}
  explicit Value(std::shared_ptr<const Dict> dict) : content_(std::move(dict)) {}
  explicit Value(std::shared_ptr<Iterator> items) : content_(std::move(items)) {}
  explicit Value(std::shared_ptr<Object> object) : content_(std::move(object)) {}
  explicit Value(Namespace* names) : content_(names) {}
  Value(const char*) = delete;

  template <class T>
  bool is() const {
    return std::holds_alternative<T>(content_);
  }
  bool is_undefined() const { return is<Undefined>(); }
  bool is_none() const { return is<None>(); }
  bool is_bool() const { return is<bool>(); }
  bool is_integer() const { return is<int64_t>(); }  ///< not a bool
  bool is_real() const { return is<double>(); }
  bool is_number() const { return is_bool() || is_integer() || is_real(); }
  bool is_markup() const { return is_text() && text().markup; }
  bool is_text() const { return is<std::shared_ptr<const Text>>(); }
  bool is_sequence() const { return is<std::shared_ptr<const Sequence>>(); }
  bool is_dict() const { return is<std::shared_ptr<const Dict>>(); }
  bool is_iterator() const { return is<std::shared_ptr<Iterator>>(); }
  bool is_object() const { return is<std::shared_ptr<Object>>(); }
  bool is_namespace() const { return is<Namespace*>(); }

  const Undefined& undefined() const { return std::get<Undefined>(content_); }
  bool flag() const { return std::get<bool>(content_); }
  /// Of an int or a bool.
  int64_t integer() const { return is_bool() ? (flag() ? 1 : 0) : std::get<int64_t>(content_); }
  /// Of any number.
  double real() const {
    return is_real() ? std::get<double>(content_) : static_cast<double>(integer());
  }
  const Text& text() const { return *std::get<std::shared_ptr<const Text>>(content_); }
  const std::string& bytes() const { return text().bytes; }
  const Sequence& sequence() const { return *std::get<std::shared_ptr<const Sequence>>(content_); }
  const Dict& dict() const { return *std::get<std::shared_ptr<const Dict>>(content_); }
  Iterator& iterator() const { return *std::get<std::shared_ptr<Iterator>>(content_); }
  Object& object() const { return *std::get<std::shared_ptr<Object>>(content_); }
  Namespace& names() const { return *std::get<Namespace*>(content_); }

  /// Python's `is`, for what templates compare with it.
  bool is_same(const Value& other) const;
  /// Levels of values inside values: 1 for what holds none. Freeing takes as many calls.
  int depth() const;
  /// As Python's messages name the type: "str", "NoneType", ...
  std::string_view type_name() const;

 private:
  std::variant<Undefined,
               None,
               bool,
               int64_t,
               double,
               std::shared_ptr<const Text>,
               std::shared_ptr<const Sequence>,
               std::shared_ptr<const Dict>,
               std::shared_ptr<Iterator>,
               std::shared_ptr<Object>,
               Namespace*>
      content_;
};

using Values = std::vector<Value>;

/// list, tuple, range and the views that dict methods give.
struct Sequence {
  enum class Form { kList, kTuple, kRange, kKeys, kValues, kItems };

  Form form = Form::kList;
  Values items;
  int depth = 1;

  /// Whether it can be indexed: all but views.
  bool indexable() const { return form <= Form::kRange; }
};

/// dict: keys in the order in which they came, numbers, texts, None or undefined values.
class Dict {
 public:
  /// The key's value; null if there is none. Keys are equal as Python's are: 1, 1.0 and True are
  /// one.
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  /// Adds, or replaces the value of a key that is there.
  void set(Value key, Value value);

  const std::vector<std::pair<Value, Value>>& entries() const { return entries_; }
  int depth() const { return depth_; }

 private:
  std::optional<size_t> place_of(const Value& key) const;

  std::vector<std::pair<Value, Value>> entries_;
  std::unordered_map<std::string, size_t> places_;  ///< of texts, once there are more than a few
  int depth_ = 1;
};

/// What filters such as `map` and `select` give: may be gone through once.
struct Iterator {
  Values items;
  size_t next = 0;
  int depth = 1;
};

/// namespace(): belongs to the rendering, which frees it.
struct Namespace {
  std::vector<std::pair<std::string, Value>> values;

  const Value* find(std::string_view name) const;
  void set(std::string_view name, Value value);
};

/// Python's == of numbers, texts, None and undefined values; whatever else is equal to itself
/// alone.
bool equal_plain(const Value& a, const Value& b);
bool truth_of(const Value& value);
bool is_list_or_tuple(const Value& value);

}  // namespace tapestry::chat::jinja
