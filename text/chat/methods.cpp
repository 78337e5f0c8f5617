#include "text/chat/methods.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "text/chat/operators.h"

namespace tapestry::chat::jinja {

namespace {

using Form = Sequence::Form;

// ---- Lists, tuples, ranges.

Value count_items(Run& run, const Value& self, const Arguments& arguments) {
  const auto bound = bind_arguments(run, "count", arguments, {"(value)"}, 1);
  const Values& items = self.sequence().items;
  return Value(static_cast<int64_t>(std::count_if(
      items.begin(), items.end(), [&](const Value& item) { return equal(run, item, *bound[0]); })));
}

Value index_of_item(Run& run, const Value& self, const Arguments& arguments) {
  const auto bound = bind_arguments(run, "index", arguments, {"(value)"}, 1);
  const Values& items = self.sequence().items;
  const auto found = std::find_if(items.begin(), items.end(),
                                  [&](const Value& item) { return equal(run, item, *bound[0]); });
  if (found == items.end()) {
    run.fail("index: the value is not in the list");
  }
  return Value(static_cast<int64_t>(found - items.begin()));
}

Value copied(Run& run, const Value& self, const Arguments& arguments) {
  bind_arguments(run, "copy", arguments, {});
  return self;  // nothing changes either of them
}

// ---- Dicts.

Value view_of(Run& run, const Value& self, Form form) {
  Values items;
  for (const auto& [key, value] : self.dict().entries()) {
    items.push_back(form == Form::kKeys     ? key
                    : form == Form::kValues ? value
                                            : run.tuple({key, value}));
  }
  return run.sequence(form, std::move(items));
}

template <Form form>
Value dict_view(Run& run, const Value& self, const Arguments& arguments) {
  bind_arguments(run, "the method", arguments, {});
  return view_of(run, self, form);
}

Value get_key(Run& run, const Value& self, const Arguments& arguments) {
  const auto bound = bind_arguments(run, "get", arguments, {"(key)", "(default)"}, 1);
  if (bound[0]->is_sequence() || bound[0]->is_dict()) {
    run.fail("unhashable type: '", bound[0]->type_name(), "'");
  }
  run.step(bound[0]->is_text() ? 1 + bound[0]->bytes().size() / 16 : self.dict().entries().size());
  const Value* found = self.dict().find(*bound[0]);
  return found != nullptr ? *found : bound[1].value_or(Value(None{}));
}

using NamedMethod = std::pair<std::string_view, Method>;

constexpr std::array<NamedMethod, 3> kListMethods = {
    {{"copy", copied}, {"count", count_items}, {"index", index_of_item}}};

constexpr std::array<NamedMethod, 5> kDictMethods = {{{"copy", copied},
                                                      {"get", get_key},
                                                      {"items", dict_view<Form::kItems>},
                                                      {"keys", dict_view<Form::kKeys>},
                                                      {"values", dict_view<Form::kValues>}}};

// Of a loop.
constexpr std::array<std::string_view, 2> kObjectMethods = {"changed", "cycle"};

// What Python's types have besides, which hides keys of the same name.
constexpr std::string_view kOtherTextAttributes =
    " casefold center encode expandtabs format format_map isalnum isalpha isascii isdecimal "
    "isidentifier islower isnumeric isprintable isspace istitle isupper ljust maketrans rindex "
    "rjust "
    "rpartition swapcase translate zfill ";
constexpr std::string_view kOtherListAttributes = " clear pop ";
constexpr std::string_view kOtherDictAttributes = " fromkeys ";
constexpr std::string_view kOtherNumberAttributes =
    " as_integer_ratio bit_count bit_length conjugate denominator from_bytes fromhex hex imag "
    "is_integer numerator real to_bytes ";
constexpr std::string_view kOtherRangeAttributes = " start stop step ";
constexpr std::string_view kOtherViewAttributes = " isdisjoint mapping ";
constexpr std::string_view kOtherIteratorAttributes =
    " close gi_code gi_frame gi_running gi_yieldfrom send throw ";
// What the sandbox hides since it changes the object.
constexpr std::string_view kChangingListAttributes = " append extend insert remove reverse sort ";
constexpr std::string_view kChangingDictAttributes = " clear pop popitem setdefault update ";

template <size_t count>
Method find_in(const std::array<NamedMethod, count>& methods, std::string_view name) {
  const auto found = std::find_if(methods.begin(), methods.end(),
                                  [&](const NamedMethod& m) { return m.first == name; });
  return found == methods.end() ? nullptr : found->second;
}

bool is_listed(std::string_view list, std::string_view name) {
  return !name.empty() && list.find(' ' + std::string(name) + ' ') != std::string_view::npos;
}

class BoundMethod final : public Object {
 public:
  BoundMethod(Value self, std::string name, Method method)
      : self_(std::move(self)), name_(std::move(name)), method_(method) {}

  std::string_view type_name() const override { return "method"; }
  int depth() const override { return self_.depth() + 1; }
  bool callable() const override { return true; }
  Value call(Run& run, const Arguments& arguments) override {
    if (method_ == nullptr) {
      run.fail("'", self_.type_name(), "' objects have no '", name_, "' here");
    }
    return method_(run, self_, arguments);
  }

 private:
  Value self_;
  std::string name_;
  Method method_;
};

struct TypeAttributes {
  Method method = nullptr;
  bool is_other = false;     ///< Python has it, we have not
  bool is_changing = false;  ///< the sandbox hides it
};

TypeAttributes find_in_type(const Value& value, std::string_view name) {
  if (value.is_text()) {
    return {find_text_method(name), is_listed(kOtherTextAttributes, name)};
  }
  if (value.is_dict()) {
    return {find_dict_method(name), is_listed(kOtherDictAttributes, name),
            is_listed(kChangingDictAttributes, name)};
  }
  if (value.is_number()) {
    return {nullptr, is_listed(kOtherNumberAttributes, name)};
  }
  if (value.is_iterator()) {
    return {nullptr, is_listed(kOtherIteratorAttributes, name)};
  }
  if (!value.is_sequence()) {
    return {};
  }
  switch (value.sequence().form) {
    case Form::kList:
      return {find_list_method(name), is_listed(kOtherListAttributes, name),
              is_listed(kChangingListAttributes, name)};
    case Form::kTuple:
      return {name == "copy" ? nullptr : find_list_method(name)};
    case Form::kRange:
      return {name == "copy" ? nullptr : find_list_method(name),
              is_listed(kOtherRangeAttributes, name)};
    default:
      return {nullptr, is_listed(kOtherViewAttributes, name)};
  }
}

}  // namespace

Method find_list_method(std::string_view name) { return find_in(kListMethods, name); }
Method find_dict_method(std::string_view name) { return find_in(kDictMethods, name); }

bool is_known_method(std::string_view name) {
  return find_text_method(name) != nullptr || find_list_method(name) != nullptr ||
         find_dict_method(name) != nullptr ||
         std::find(kObjectMethods.begin(), kObjectMethods.end(), name) != kObjectMethods.end();
}

std::optional<Value> attribute_of(Run& run, const Value& value, std::string_view name) {
  if (value.is_object()) {
    return value.object().attribute(run, name);
  }
  if (value.is_namespace()) {
    const Value* found = value.names().find(name);
    return found != nullptr ? std::optional(*found) : std::nullopt;
  }
  const TypeAttributes found = find_in_type(value, name);
  if (found.is_changing) {
    return run.undefined(
        concat("'", name, "' of a ", value.type_name(), " changes it, which templates must not"));
  }
  if (found.method == nullptr && !found.is_other) {
    return std::nullopt;
  }
  run.step();
  if (value.depth() + 1 > kMaxValueDepth) {
    run.fail("values are nested more than ", kMaxValueDepth, " deep");
  }
  return Value(std::make_shared<BoundMethod>(value, std::string(name), found.method));
}

}  // namespace tapestry::chat::jinja
