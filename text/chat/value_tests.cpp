// What stands behind `is`.
#include <array>
#include <utility>

#include "text/chat/builtins.h"
#include "text/chat/operators.h"
#include "text/chat/text.h"
#include "text/chat/value_text.h"

namespace tapestry::chat::jinja {

namespace value_tests {

using Property = bool (*)(const Value& value);

template <Property property>
bool has(Run& run, const Value& input, const Arguments& arguments) {
  bind_arguments(run, "the test", arguments, {});
  return property(input);
}

constexpr Property kDefined = [](const Value& x) { return !x.is_undefined(); };
constexpr Property kUndefined = [](const Value& x) { return x.is_undefined(); };
constexpr Property kNone = [](const Value& x) { return x.is_none(); };
constexpr Property kBoolean = [](const Value& x) { return x.is_bool(); };
constexpr Property kTrue = [](const Value& x) { return x.is_bool() && x.flag(); };
constexpr Property kFalse = [](const Value& x) { return x.is_bool() && !x.flag(); };
constexpr Property kInteger = [](const Value& x) { return x.is_integer(); };
constexpr Property kReal = [](const Value& x) { return x.is_real(); };
constexpr Property kNumber = [](const Value& x) { return x.is_number(); };
constexpr Property kString = [](const Value& x) { return x.is_text(); };
constexpr Property kMapping = [](const Value& x) { return x.is_dict(); };
constexpr Property kCallable = [](const Value& x) {
  return x.is_object() && x.object().callable();
};
constexpr Property kNever = [](const Value& /*x*/) { return false; };
// Whatever has a length and an index; an undefined value claims to.
constexpr Property kSequence = [](const Value& x) {
  return x.is_text() || x.is_dict() || x.is_undefined() ||
         (x.is_sequence() && x.sequence().indexable());
};
constexpr Property kIterable = [](const Value& x) {
  return x.is_text() || x.is_dict() || x.is_undefined() || x.is_sequence() || x.is_iterator();
};

template <bool (*holds)(std::string_view)>
bool text_has(Run& run, const Value& input, const Arguments& arguments) {
  bind_arguments(run, "the test", arguments, {});
  const std::string text = to_text(run, input);
  run.letters(text.size());
  return holds(text);
}

template <int64_t rest>
bool is_even_or_odd(Run& run, const Value& input, const Arguments& arguments) {
  bind_arguments(run, "the test", arguments, {});
  return equal(run, apply(run, BinaryOperator::kModulo, input, Value(int64_t{2})), Value(rest));
}

bool is_divisible(Run& run, const Value& input, const Arguments& arguments) {
  const auto bound = bind_arguments(run, "test 'divisibleby'", arguments, {"num"}, 1);
  return equal(run, apply(run, BinaryOperator::kModulo, input, *bound[0]), Value(int64_t{0}));
}

using Relation = bool (*)(Run& run, const Value& a, const Value& b);

template <Relation relation>
bool compares(Run& run, const Value& input, const Arguments& arguments) {
  const auto bound = bind_arguments(run, "the test", arguments, {"(other)"}, 1);
  return relation(run, input, *bound[0]);
}

constexpr Relation kEqual = [](Run& run, const Value& a, const Value& b) {
  return equal(run, a, b);
};
constexpr Relation kUnequal = [](Run& run, const Value& a, const Value& b) {
  return !equal(run, a, b);
};
constexpr Relation kLess = [](Run& run, const Value& a, const Value& b) { return less(run, a, b); };
constexpr Relation kGreater = [](Run& run, const Value& a, const Value& b) {
  return less(run, b, a);
};
constexpr Relation kLessEqual = [](Run& run, const Value& a, const Value& b) {
  return less(run, a, b) || equal(run, a, b);
};
constexpr Relation kGreaterEqual = [](Run& run, const Value& a, const Value& b) {
  return less(run, b, a) || equal(run, a, b);
};
constexpr Relation kSame = [](Run& /*run*/, const Value& a, const Value& b) {
  return a.is_same(b);
};
constexpr Relation kIn = [](Run& run, const Value& a, const Value& b) {
  return contains(run, b, a);
};

constexpr std::array<std::pair<std::string_view, Test>, 37> kTests = {{
    {"defined", has<kDefined>},
    {"undefined", has<kUndefined>},
    {"none", has<kNone>},
    {"boolean", has<kBoolean>},
    {"true", has<kTrue>},
    {"false", has<kFalse>},
    {"integer", has<kInteger>},
    {"float", has<kReal>},
    {"number", has<kNumber>},
    {"string", has<kString>},
    {"mapping", has<kMapping>},
    {"sequence", has<kSequence>},
    {"iterable", has<kIterable>},
    {"callable", has<kCallable>},
    {"escaped", has<kNever>},
    {"lower", text_has<is_lower>},
    {"upper", text_has<is_upper>},
    {"even", is_even_or_odd<0>},
    {"odd", is_even_or_odd<1>},
    {"divisibleby", is_divisible},
    {"==", compares<kEqual>},
    {"eq", compares<kEqual>},
    {"equalto", compares<kEqual>},
    {"!=", compares<kUnequal>},
    {"ne", compares<kUnequal>},
    {"<", compares<kLess>},
    {"lt", compares<kLess>},
    {"lessthan", compares<kLess>},
    {"<=", compares<kLessEqual>},
    {"le", compares<kLessEqual>},
    {">", compares<kGreater>},
    {"gt", compares<kGreater>},
    {"greaterthan", compares<kGreater>},
    {">=", compares<kGreaterEqual>},
    {"ge", compares<kGreaterEqual>},
    {"sameas", compares<kSame>},
    {"in", compares<kIn>},
}};

}  // namespace value_tests

Test find_test(std::string_view name) {
  for (const auto& [known, test] : value_tests::kTests) {
    if (known == name) {
      return test;
    }
  }
  return nullptr;
}

}  // namespace tapestry::chat::jinja
