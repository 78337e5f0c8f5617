#include "text/chat/run.h"

#include <algorithm>
#include <utility>

#include "text/chat/object.h"
#include "text/chat/text.h"

namespace tapestry::chat::jinja {

void Run::fail_steps() const {
  fail("rendering takes more than the ", limits_.steps,
       " steps that it may; the template or the conversation is too long");
}

void Run::fail_bytes() const {
  fail("a text becomes longer than the ", limits_.bytes, " bytes that it may have");
}

Value Run::text(std::string bytes) {
  check_text(bytes.size());
  scan(bytes.size());
  return Value(std::move(bytes));
}

Value Run::marked(std::string bytes) {
  check_text(bytes.size());
  scan(bytes.size());
  const bool ascii = is_ascii(bytes);
  return Value(std::make_shared<const Text>(Text{std::move(bytes), ascii, true}));
}

int Run::depth_over(const Values& items) const {
  int depth = 0;
  for (const Value& item : items) {
    depth = std::max(depth, item.depth());
  }
  if (depth >= kMaxValueDepth) {
    fail("values are nested more than ", kMaxValueDepth, " deep");
  }
  return depth + 1;
}

Value Run::sequence(Sequence::Form form, Values items) {
  step(items.size());
  auto made = std::make_shared<Sequence>();
  made->form = form;
  made->depth = depth_over(items);
  made->items = std::move(items);
  return Value(std::shared_ptr<const Sequence>(std::move(made)));
}

Value Run::iterator(Values items) {
  step(items.size());
  auto made = std::make_shared<Iterator>();
  made->depth = depth_over(items);
  made->items = std::move(items);
  return Value(std::move(made));
}

Value Run::dict(std::shared_ptr<const Dict> dict) {
  if (dict->depth() > kMaxValueDepth) {
    fail("values are nested more than ", kMaxValueDepth, " deep");
  }
  return Value(std::move(dict));
}

void Run::set(Dict& dict, Value key, Value value) {
  if (!key.is_text() && !key.is_number() && !key.is_none() && !key.is_undefined()) {
    fail("a ", key.type_name(), " is no key of a dict here; take a text or a number");
  }
  // Texts are found by their hash, others by looking at all.
  step(1 + (key.is_text() ? key.bytes().size() / kBytesPerStep : dict.entries().size()));
  dict.set(std::move(key), std::move(value));
}

Value Run::undefined(std::string hint) const {
  return Value(Undefined{std::make_shared<const std::string>(std::move(hint))});
}

Value Run::names() {
  step();
  namespaces_.push_back(std::make_unique<Namespace>());
  return Value(namespaces_.back().get());
}

Value Object::call(Run& run, const Arguments& /*arguments*/) {
  run.fail("'", type_name(), "' object is not callable");
}

std::optional<Value> Object::attribute(Run& /*run*/, std::string_view /*name*/) {
  return std::nullopt;
}

std::vector<std::optional<Value>> bind_arguments(Run& run,
                                                 std::string_view function,
                                                 const Arguments& arguments,
                                                 const std::vector<std::string_view>& names,
                                                 size_t required) {
  if (arguments.positional.size() > names.size()) {
    run.fail(function, " takes at most ", names.size(), " arguments, ", arguments.positional.size(),
             " are given");
  }
  std::vector<std::optional<Value>> bound(names.size());
  std::copy(arguments.positional.begin(), arguments.positional.end(), bound.begin());
  for (const auto& [name, value] : arguments.named) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) {
      run.fail(function, " has no argument '", name, "'");
    }
    std::optional<Value>& place = bound[static_cast<size_t>(found - names.begin())];
    if (place) {
      run.fail(function, ": argument '", name, "' is given twice");
    }
    place = value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (!bound[i]) {
      run.fail(function, ": argument '", names[i], "' is missing");
    }
  }
  return bound;
}

}  // namespace tapestry::chat::jinja
