#include "text/chat/value.h"

#include <algorithm>
#include <cmath>

#include "text/chat/object.h"
#include "text/chat/text.h"

namespace tapestry::chat::jinja {

namespace {

constexpr size_t kIndexedFrom = 12;  // entries; fewer are found faster by looking at each

bool equal_numbers(const Value& a, const Value& b) {
  if (!a.is_real() && !b.is_real()) {
    return a.integer() == b.integer();
  }
  if (a.is_real() && b.is_real()) {
    return a.real() == b.real();
  }
  // Exactly: a double of a large int may be another number.
  const double real = a.is_real() ? a.real() : b.real();
  const int64_t integer = a.is_real() ? b.integer() : a.integer();
  constexpr double kTwoTo63 = 9223372036854775808.0;
  return real == std::floor(real) && real >= -kTwoTo63 && real < kTwoTo63 &&
         static_cast<int64_t>(real) == integer;
}

}  // namespace

Value::Value(std::string text) {
  const bool ascii = is_ascii(text);
  content_ = std::make_shared<const Text>(Text{std::move(text), ascii});
}

bool Value::is_same(const Value& other) const {
  if (content_.index() != other.content_.index()) {
    return false;
  }
  if (is_none()) {
    return true;
  }
  if (is_bool()) {
    return flag() == other.flag();
  }
  if (is_undefined()) {
    return undefined().hint == other.undefined().hint;
  }
  if (is_integer() || is_real() || is_text()) {
    return equal_plain(*this, other);  // CPython shares small ints and literals
  }
  if (is_sequence()) {
    return &sequence() == &other.sequence();
  }
  if (is_dict()) {
    return &dict() == &other.dict();
  }
  if (is_iterator()) {
    return &iterator() == &other.iterator();
  }
  return is_object() ? &object() == &other.object() : &names() == &other.names();
}

int Value::depth() const {
  if (is_sequence()) {
    return sequence().depth;
  }
  if (is_dict()) {
    return dict().depth();
  }
  if (is_iterator()) {
    return iterator().depth;
  }
  return is_object() ? object().depth() : 1;
}

std::string_view Value::type_name() const {
  if (is_sequence()) {
    switch (sequence().form) {
      case Sequence::Form::kList:
        return "list";
      case Sequence::Form::kTuple:
        return "tuple";
      case Sequence::Form::kRange:
        return "range";
      case Sequence::Form::kKeys:
        return "dict_keys";
      case Sequence::Form::kValues:
        return "dict_values";
      case Sequence::Form::kItems:
        return "dict_items";
    }
  }
  static constexpr std::string_view kNames[] = {"Undefined", "NoneType", "bool",     "int",
                                                "float",     "str",      "list",     "dict",
                                                "generator", "object",   "namespace"};
  return is_markup() ? "Markup" : is_object() ? object().type_name() : kNames[content_.index()];
}

const Value* Dict::find(std::string_view key) const {
  if (places_.empty()) {
    for (const auto& [name, value] : entries_) {
      if (name.is_text() && name.bytes() == key) {
        return &value;
      }
    }
    return nullptr;
  }
  const auto found = places_.find(std::string(key));
  return found == places_.end() ? nullptr : &entries_[found->second].second;
}

const Value* Dict::find(const Value& key) const {
  const std::optional<size_t> place = place_of(key);
  return place ? &entries_[*place].second : nullptr;
}

std::optional<size_t> Dict::place_of(const Value& key) const {
  if (key.is_text() && !places_.empty()) {
    const auto found = places_.find(key.bytes());
    return found == places_.end() ? std::nullopt : std::optional(found->second);
  }
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (equal_plain(entries_[i].first, key)) {
      return i;
    }
  }
  return std::nullopt;
}

void Dict::set(Value key, Value value) {
  depth_ = std::max({depth_, 1 + key.depth(), 1 + value.depth()});
  if (const std::optional<size_t> place = place_of(key)) {
    entries_[*place].second = std::move(value);
    return;
  }
  entries_.emplace_back(std::move(key), std::move(value));
  if (entries_.size() == kIndexedFrom) {
    for (size_t i = 0; i < entries_.size(); ++i) {
      if (entries_[i].first.is_text()) {
        places_.emplace(entries_[i].first.bytes(), i);
      }
    }
  } else if (!places_.empty() && entries_.back().first.is_text()) {
    places_.emplace(entries_.back().first.bytes(), entries_.size() - 1);
  }
}

const Value* Namespace::find(std::string_view name) const {
  const auto found = std::find_if(values.begin(), values.end(),
                                  [&](const auto& value) { return value.first == name; });
  return found == values.end() ? nullptr : &found->second;
}

void Namespace::set(std::string_view name, Value value) {
  for (auto& [known, place] : values) {
    if (known == name) {
      place = std::move(value);
      return;
    }
  }
  values.emplace_back(std::string(name), std::move(value));
}

bool equal_plain(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    return equal_numbers(a, b);
  }
  if (a.is_text() && b.is_text()) {
    return a.bytes() == b.bytes();
  }
  return (a.is_undefined() && b.is_undefined()) || a.is_same(b);
}

bool truth_of(const Value& value) {
  if (value.is_undefined() || value.is_none()) {
    return false;
  }
  if (value.is_number()) {
    return value.is_real() ? value.real() != 0 : value.integer() != 0;
  }
  if (value.is_text()) {
    return !value.bytes().empty();
  }
  if (value.is_sequence()) {
    return !value.sequence().items.empty();
  }
  return value.is_dict() ? !value.dict().entries().empty() : true;
}

bool is_list_or_tuple(const Value& value) {
  return value.is_sequence() && (value.sequence().form == Sequence::Form::kList ||
                                 value.sequence().form == Sequence::Form::kTuple);
}

}  // namespace tapestry::chat::jinja
