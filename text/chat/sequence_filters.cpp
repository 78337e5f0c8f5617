// Filters of what can be gone through.
#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "text/chat/filters.h"
#include "text/chat/operators.h"
#include "text/chat/text.h"
#include "text/chat/value_text.h"

namespace tapestry::chat::jinja {

namespace sequence_filters {

using Bound = std::vector<std::optional<Value>>;

bool is_given(const std::optional<Value>& value) { return value && !value->is_none(); }
bool is_true(const std::optional<Value>& value) { return value && truth_of(*value); }

void take_nothing(Run& run, std::string_view name, const Arguments& arguments) {
  bind_arguments(run, name, arguments, {});
}

// ---- Attributes by path: "function.name", "0".

std::vector<Value> path_of(Run& run, const Value& attribute) {
  if (!attribute.is_text()) {
    return {Value(expect_integer(run, attribute, "an attribute"))};
  }
  std::vector<Value> parts;
  std::string_view rest = attribute.bytes();
  while (true) {
    run.step();
    const size_t dot = std::min(rest.find('.'), rest.size());
    const std::string_view part = rest.substr(0, dot);
    int64_t index = 0;
    const auto read = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool is_index = !part.empty() && part[0] != '-' && read.ec == std::errc() &&
                          read.ptr == part.data() + part.size();
    parts.push_back(is_index ? Value(index) : run.text(std::string(part)));
    if (dot == rest.size()) {
      return parts;
    }
    rest.remove_prefix(dot + 1);
  }
}

class AttributeGetter {
 public:
  /// None: the value itself.
  AttributeGetter(Run& run,
                  const std::optional<Value>& attribute,
                  std::optional<Value> otherwise = std::nullopt)
      : run_(run), otherwise_(std::move(otherwise)) {
    if (is_given(attribute)) {
      path_ = path_of(run, *attribute);
    }
    if (!is_given(otherwise_)) {
      otherwise_.reset();
    }
  }

  Value operator()(Value item) const {
    for (const Value& part : path_) {
      run_.step();
      item = get_item(run_, item, part);
      if (item.is_undefined() && otherwise_) {
        item = *otherwise_;
      }
    }
    return item;
  }

 private:
  Run& run_;
  std::optional<Value> otherwise_;
  std::vector<Value> path_;
};

Value without_case(Run& run, Value value, bool case_sensitive) {
  if (case_sensitive || !value.is_text()) {
    return value;
  }
  run.letters(value.bytes().size());
  return run.text(to_lower(value.bytes()));
}

// ---- One of them, or something about them.

Value length(Run& run, const Value& input, const Arguments& arguments) {
  take_nothing(run, "filter 'length'", arguments);
  return Value(length_of(run, input));
}

Value first(Run& run, const Value& input, const Arguments& arguments) {
  take_nothing(run, "filter 'first'", arguments);
  if (input.is_iterator()) {  // the others may still be gone through
    Iterator& iterator = input.iterator();
    if (iterator.next < iterator.items.size()) {
      return iterator.items[iterator.next++];
    }
  } else if (const Values items = items_of(run, input); !items.empty()) {
    return items.front();
  }
  return run.undefined("No first item, sequence was empty.");
}

Value last(Run& run, const Value& input, const Arguments& arguments) {
  take_nothing(run, "filter 'last'", arguments);
  if (input.is_iterator()) {
    run.fail("'generator' object is not reversible; use `last` of its `list`");
  }
  const Values items = items_of(run, input);
  if (items.empty()) {
    return run.undefined("No last item, sequence was empty.");
  }
  return input.is_markup() ? run.marked(items.back().bytes()) : items.back();
}

Value join(Run& run, const Value& input, const Arguments& arguments) {
  const Bound bound = bind_arguments(run, "filter 'join'", arguments, {"d", "attribute"});
  const std::string separator = bound[0] ? to_text(run, *bound[0]) : "";
  const AttributeGetter getter(run, bound[1]);
  std::string out;
  bool is_first = true;
  for (const Value& item : items_of(run, input)) {
    if (!is_first) {
      out += separator;
    }
    is_first = false;
    append_text(run, out, getter(item));
    run.check_text(out.size());
  }
  return run.text(std::move(out));
}

// ---- Other collections of them.

Value to_list(Run& run, const Value& input, const Arguments& arguments) {
  take_nothing(run, "filter 'list'", arguments);
  return run.list(items_of(run, input));
}

Value reverse(Run& run, const Value& input, const Arguments& arguments) {
  take_nothing(run, "filter 'reverse'", arguments);
  if (input.is_text()) {
    return get_slice(run, input, Value(None{}), Value(None{}), Value(int64_t{-1}));
  }
  Values items = items_of(run, input);
  std::reverse(items.begin(), items.end());
  return input.is_iterator() ? run.list(std::move(items)) : run.iterator(std::move(items));
}

Values sorted(Run& run, const Values& items, const std::vector<Value>& keys, bool reversed) {
  std::vector<size_t> order(items.size());
  for (size_t i = 0; i < order.size(); ++i) {
    order[i] = i;
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return reversed ? less(run, keys[b], keys[a]) : less(run, keys[a], keys[b]);
  });
  Values out;
  for (const size_t place : order) {
    out.push_back(items[place]);
  }
  return out;
}

Value sort(Run& run, const Value& input, const Arguments& arguments) {
  const Bound bound =
      bind_arguments(run, "filter 'sort'", arguments, {"reverse", "case_sensitive", "attribute"});
  std::vector<AttributeGetter> getters;
  if (is_given(bound[2]) && bound[2]->is_text()) {
    std::string_view rest = bound[2]->bytes();
    for (bool more = true; more;) {
      run.step();
      const size_t comma = std::min(rest.find(','), rest.size());
      getters.emplace_back(run, run.text(std::string(rest.substr(0, comma))));
      more = comma < rest.size();
      rest.remove_prefix(more ? comma + 1 : comma);
    }
  } else {
    getters.emplace_back(run, bound[2]);
  }
  const Values items = items_of(run, input);
  std::vector<Value> keys;
  for (const Value& item : items) {
    Values key;
    for (const AttributeGetter& getter : getters) {
      key.push_back(without_case(run, getter(item), is_true(bound[1])));
    }
    keys.push_back(run.list(std::move(key)));
  }
  return run.list(sorted(run, items, keys, is_true(bound[0])));
}

Value items_filter(Run& run, const Value& input, const Arguments& arguments) {
  take_nothing(run, "filter 'items'", arguments);
  Values items;
  if (input.is_dict()) {
    for (const auto& [key, value] : input.dict().entries()) {
      items.push_back(run.tuple({key, value}));
    }
  } else if (!input.is_undefined()) {
    run.fail("filter 'items' takes a mapping, not ", input.type_name());
  }
  return run.iterator(std::move(items));
}

Value sort_dict(Run& run, const Value& input, const Arguments& arguments) {
  const Bound bound =
      bind_arguments(run, "filter 'dictsort'", arguments, {"case_sensitive", "by", "reverse"});
  const std::string by = bound[1] ? expect_text(run, *bound[1], "dictsort: by") : "key";
  if (by != "key" && by != "value") {
    run.fail("dictsort: by is 'key' or 'value', not '", by, "'");
  }
  if (input.is_undefined()) {
    fail_undefined(run, input);
  }
  if (!input.is_dict()) {
    run.fail("filter 'dictsort' takes a mapping, not ", input.type_name());
  }
  Values items;
  std::vector<Value> keys;
  for (const auto& [key, value] : input.dict().entries()) {
    items.push_back(run.tuple({key, value}));
    keys.push_back(without_case(run, by == "key" ? key : value, is_true(bound[0])));
  }
  return run.list(sorted(run, items, keys, is_true(bound[2])));
}

Value unique(Run& run, const Value& input, const Arguments& arguments) {
  const Bound bound =
      bind_arguments(run, "filter 'unique'", arguments, {"case_sensitive", "attribute"});
  const AttributeGetter getter(run, bound[1]);
  Values seen;
  Values items;
  for (const Value& item : items_of(run, input)) {
    const Value key = without_case(run, getter(item), is_true(bound[0]));
    if (key.is_dict() || (key.is_sequence() && key.sequence().form != Sequence::Form::kTuple)) {
      run.fail("unhashable type: '", key.type_name(), "'");
    }
    if (std::none_of(seen.begin(), seen.end(),
                     [&](const Value& other) { return equal(run, other, key); })) {
      seen.push_back(key);
      items.push_back(item);
    }
  }
  return run.iterator(std::move(items));
}

// ---- Each, or those that pass a test.

Value map(Run& run, const Value& input, const Arguments& arguments) {
  Values out;
  if (!truth_of(input)) {
    return run.iterator({});
  }
  if (arguments.positional.empty()) {
    const Bound bound =
        bind_arguments(run, "filter 'map'", {{}, arguments.named}, {"attribute", "default"}, 1);
    const AttributeGetter getter(run, bound[0], bound[1]);
    for (const Value& item : items_of(run, input)) {
      out.push_back(getter(item));
    }
    return run.iterator(std::move(out));
  }
  const std::string& name = expect_text(run, arguments.positional[0], "map: the filter");
  const Filter filter = find_filter(name);
  if (filter == nullptr) {
    run.fail(unknown_filter(name));
  }
  Arguments rest = arguments;
  rest.positional.erase(rest.positional.begin());
  for (const Value& item : items_of(run, input)) {
    run.step();
    out.push_back(filter(run, item, rest));
  }
  return run.iterator(std::move(out));
}

template <bool by_attribute, bool wanted>
Value select(Run& run, const Value& input, const Arguments& arguments) {
  if (!truth_of(input)) {
    return run.iterator({});
  }
  Arguments rest = arguments;
  std::optional<Value> attribute;
  const auto take_first = [&]() -> std::optional<Value> {
    if (rest.positional.empty()) {
      return std::nullopt;
    }
    Value value = rest.positional.front();
    rest.positional.erase(rest.positional.begin());
    return value;
  };
  if (by_attribute && !(attribute = take_first())) {
    run.fail("selectattr and rejectattr take the name of an attribute");
  }
  const AttributeGetter getter(run, attribute);
  Test test = nullptr;
  if (const std::optional<Value> name = take_first()) {
    test = find_test(expect_text(run, *name, "select: the test"));
    if (test == nullptr) {
      run.fail("test '", name->bytes(), "' is not known here");
    }
  }
  Values out;
  for (const Value& item : items_of(run, input)) {
    run.step();
    const Value value = getter(item);
    if ((test != nullptr ? test(run, value, rest) : truth_of(value)) == wanted) {
      out.push_back(item);
    }
  }
  return run.iterator(std::move(out));
}

// ---- Any value.

Value otherwise(Run& run, const Value& input, const Arguments& arguments) {
  const Bound bound =
      bind_arguments(run, "filter 'default'", arguments, {"default_value", "boolean"});
  const bool replaced = input.is_undefined() || (is_true(bound[1]) && !truth_of(input));
  return replaced ? bound[0].value_or(Value(std::string())) : input;
}

constexpr NamedFilter kFilters[] = {
    {"count", length},
    {"d", otherwise},
    {"default", otherwise},
    {"dictsort", sort_dict},
    {"first", first},
    {"items", items_filter},
    {"join", join},
    {"last", last},
    {"length", length},
    {"list", to_list},
    {"map", map},
    {"reject", select<false, false>},
    {"rejectattr", select<true, false>},
    {"reverse", reverse},
    {"select", select<false, true>},
    {"selectattr", select<true, true>},
    {"sort", sort},
    {"unique", unique},
};

}  // namespace sequence_filters

std::span<const NamedFilter> all_sequence_filters() { return sequence_filters::kFilters; }

}  // namespace tapestry::chat::jinja
