#include "text/chat/operators.h"

#include <algorithm>

#include "text/chat/text.h"
#include "text/util/utf8.h"

namespace tapestry::chat::jinja {

namespace {

using Form = Sequence::Form;

bool equal_items(Run& run, const Values& a, const Values& b) {
  return a.size() == b.size() &&
         std::equal(a.begin(), a.end(), b.begin(),
                    [&](const Value& x, const Value& y) { return equal(run, x, y); });
}

bool equal_dicts(Run& run, const Dict& a, const Dict& b) {
  return a.entries().size() == b.entries().size() &&
         std::all_of(a.entries().begin(), a.entries().end(), [&](const auto& entry) {
           const Value* other = b.find(entry.first);
           return other != nullptr && equal(run, entry.second, *other);
         });
}

bool equal_sequences(Run& run, const Sequence& a, const Sequence& b) {
  const auto is_set = [](Form form) { return form == Form::kKeys || form == Form::kItems; };
  if (is_set(a.form) && is_set(b.form)) {
    return a.items.size() == b.items.size() &&
           std::all_of(a.items.begin(), a.items.end(), [&](const Value& x) {
             return std::any_of(b.items.begin(), b.items.end(),
                                [&](const Value& y) { return equal(run, x, y); });
           });
  }
  return a.form == b.form && a.form != Form::kValues && equal_items(run, a.items, b.items);
}

}  // namespace

void fail_undefined(Run& run, const Value& value) {
  run.fail(value.undefined().hint ? *value.undefined().hint
                                  : std::string("the value is undefined"));
}

const std::string& expect_text(Run& run, const Value& value, std::string_view what) {
  if (value.is_undefined()) {
    fail_undefined(run, value);
  }
  if (!value.is_text()) {
    run.fail(what, " must be a text, not ", value.type_name());
  }
  return value.bytes();
}

int64_t expect_integer(Run& run, const Value& value, std::string_view what) {
  if (value.is_undefined()) {
    fail_undefined(run, value);
  }
  if (!value.is_integer() && !value.is_bool()) {
    run.fail(what, " must be an integer, not ", value.type_name());
  }
  return value.integer();
}

bool equal(Run& run, const Value& a, const Value& b) {
  run.step();
  if (a.is_sequence() && b.is_sequence()) {
    return &a.sequence() == &b.sequence() || equal_sequences(run, a.sequence(), b.sequence());
  }
  if (a.is_dict() && b.is_dict()) {
    return &a.dict() == &b.dict() || equal_dicts(run, a.dict(), b.dict());
  }
  if (a.is_text() && b.is_text()) {
    run.step(std::min(a.bytes().size(), b.bytes().size()) / 256);
  }
  return equal_plain(a, b);
}

bool less(Run& run, const Value& a, const Value& b) {
  run.step();
  if (a.is_number() && b.is_number()) {
    if (a.is_real() || b.is_real()) {
      const auto wide = [](const Value& x) {
        return x.is_real() ? static_cast<long double>(x.real())
                           : static_cast<long double>(x.integer());
      };
      return wide(a) < wide(b);
    }
    return a.integer() < b.integer();
  }
  if (a.is_text() && b.is_text()) {
    run.step(std::min(a.bytes().size(), b.bytes().size()) / 256);
    return a.bytes() < b.bytes();  // UTF-8 sorts as its code points
  }
  if (is_list_or_tuple(a) && is_list_or_tuple(b) && a.sequence().form == b.sequence().form) {
    const Values& left = a.sequence().items;
    const Values& right = b.sequence().items;
    for (size_t i = 0; i < std::min(left.size(), right.size()); ++i) {
      if (!equal(run, left[i], right[i])) {
        return less(run, left[i], right[i]);
      }
    }
    return left.size() < right.size();
  }
  if (a.is_undefined() || b.is_undefined()) {
    fail_undefined(run, a.is_undefined() ? a : b);
  }
  run.fail("'", a.type_name(), "' and '", b.type_name(), "' have no order");
}

bool contains(Run& run, const Value& container, const Value& item) {
  if (container.is_text()) {
    const std::string& wanted = expect_text(run, item, "what is looked for in a text");
    run.scan(container.bytes().size() + wanted.size());
    return find_first(container.bytes(), wanted) != std::string_view::npos;
  }
  const auto is_item = [&](const Value& value) { return equal(run, value, item); };
  if (container.is_sequence()) {
    const Values& items = container.sequence().items;
    return std::any_of(items.begin(), items.end(), is_item);
  }
  if (container.is_dict()) {
    if (item.is_sequence() || item.is_dict()) {
      run.fail("unhashable type: '", item.type_name(), "'");
    }
    run.step(item.is_text() ? 1 + item.bytes().size() / 16 : container.dict().entries().size());
    return container.dict().find(item) != nullptr;
  }
  if (container.is_iterator()) {
    Iterator& iterator = container.iterator();
    while (iterator.next < iterator.items.size()) {
      if (is_item(iterator.items[iterator.next++])) {
        return true;
      }
    }
    return false;
  }
  if (!container.is_undefined()) {
    run.fail("argument of type '", container.type_name(), "' is not iterable");
  }
  return false;
}

Values items_of(Run& run, const Value& value) {
  Values items;
  if (value.is_sequence()) {
    items = value.sequence().items;
  } else if (value.is_dict()) {
    for (const auto& [key, unused] : value.dict().entries()) {
      items.push_back(key);
    }
  } else if (value.is_iterator()) {
    Iterator& iterator = value.iterator();
    items.assign(iterator.items.begin() + static_cast<ptrdiff_t>(iterator.next),
                 iterator.items.end());
    iterator.next = iterator.items.size();
  } else if (value.is_text()) {
    run.step(value.bytes().size());
    const std::vector<size_t> starts = code_point_starts(value.bytes());
    for (size_t i = 0; i + 1 < starts.size(); ++i) {
      items.emplace_back(value.bytes().substr(starts[i], starts[i + 1] - starts[i]));
    }
  } else if (!value.is_undefined()) {
    run.fail("'", value.type_name(), "' object is not iterable");
  }
  run.step(items.size());
  return items;
}

int64_t length_of(Run& run, const Value& value) {
  if (value.is_text()) {
    run.step(value.text().ascii ? 0 : value.bytes().size() / 64);
    return static_cast<int64_t>(value.text().ascii ? value.bytes().size()
                                                   : data::count_characters(value.bytes()));
  }
  if (value.is_sequence()) {
    return static_cast<int64_t>(value.sequence().items.size());
  }
  if (value.is_dict()) {
    return static_cast<int64_t>(value.dict().entries().size());
  }
  if (!value.is_undefined()) {
    run.fail("object of type '", value.type_name(), "' has no length",
             value.is_iterator() ? "; use that of its `list`" : "");
  }
  return 0;
}

Value call(Run& run, const Value& callee, const Arguments& arguments) {
  run.step();
  if (callee.is_undefined()) {
    fail_undefined(run, callee);
  }
  if (!callee.is_object()) {
    run.fail("'", callee.type_name(), "' object is not callable");
  }
  return callee.object().call(run, arguments);
}

}  // namespace tapestry::chat::jinja
