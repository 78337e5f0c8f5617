#include "parallel_core/chat/operators.h"

#include <algorithm>
#include <cmath>

#include "parallel_core/chat/methods.h"
#include "parallel_core/chat/text.h"
#include "parallel_core/chat/text_format.h"

namespace tapestry::chat::jinja {

namespace {

using Form = Sequence::Form;

constexpr std::string_view kOperatorTexts[] = {"+", "-", "*", "/", "//", "%", "**"};
constexpr int64_t kExactInDouble = int64_t{1} << 53;

[[noreturn]] void fail_operands(Run& run, BinaryOperator op, const Value& a, const Value& b) {
  if (a.is_undefined()) {
    fail_undefined(run, a);
  }
  if (b.is_undefined()) {
    fail_undefined(run, b);
  }
  run.fail("unsupported operands for ", kOperatorTexts[static_cast<size_t>(op)], ": '",
           a.type_name(), "' and '", b.type_name(), "'");
}

int64_t floor_divided(int64_t a, int64_t b) {
  const int64_t quotient = a / b;
  return quotient * b != a && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

int64_t integer_power(Run& run, int64_t base, int64_t exponent) {
  int64_t result = 1;
  bool overflow = false;
  while (exponent > 0 && !overflow) {
    if (exponent % 2 != 0) {
      overflow = __builtin_mul_overflow(result, base, &result);
    }
    exponent /= 2;
    // A square that nobody uses may overflow.
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) {
      overflow = true;
    }
  }
  if (overflow) {
    run.fail("** gives an integer beyond 64 bits");
  }
  return result;
}

double real_modulo(double a, double b) {
  double rest = std::fmod(a, b);
  if (rest != 0 && (b < 0) != (rest < 0)) {
    rest += b;
  } else if (rest == 0) {
    rest = std::copysign(0.0, b);
  }
  return rest;
}

double real_floor_divided(double a, double b) {
  const double rest = std::fmod(a, b);
  double quotient = (a - rest) / b;
  if (rest != 0 && (b < 0) != (rest < 0)) {
    quotient -= 1;
  }
  if (quotient == 0) {
    return std::copysign(0.0, a / b);
  }
  const double whole = std::floor(quotient);
  return quotient - whole > 0.5 ? whole + 1 : whole;
}

Value apply_to_integers(Run& run, BinaryOperator op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  switch (op) {
    case BinaryOperator::kAdd:
      overflow = __builtin_add_overflow(a, b, &result);
      break;
    case BinaryOperator::kSubtract:
      overflow = __builtin_sub_overflow(a, b, &result);
      break;
    case BinaryOperator::kMultiply:
      overflow = __builtin_mul_overflow(a, b, &result);
      break;
    case BinaryOperator::kPower:
      if (b < 0) {
        if (a == 0) {
          run.fail("0 cannot be raised to a negative power");
        }
        return Value(std::pow(static_cast<double>(a), static_cast<double>(b)));
      }
      return Value(integer_power(run, a, b));
    default:
      if (b == 0) {
        run.fail("division by zero");
      }
      if (op == BinaryOperator::kDivide) {
        if (std::max(a, b) > kExactInDouble || std::min(a, b) < -kExactInDouble) {
          run.fail("/ of integers beyond 2^53 is not known here");
        }
        return Value(static_cast<double>(a) / static_cast<double>(b));
      }
      if (b == -1) {  // the one divisor that overflows
        overflow = op == BinaryOperator::kFloorDivide && __builtin_sub_overflow(0, a, &result);
      } else {
        const int64_t quotient = floor_divided(a, b);
        result = op == BinaryOperator::kFloorDivide ? quotient : a - quotient * b;
      }
  }
  if (overflow) {
    run.fail(kOperatorTexts[static_cast<size_t>(op)], " gives an integer beyond 64 bits");
  }
  return Value(result);
}

Value apply_to_reals(Run& run, BinaryOperator op, double a, double b) {
  switch (op) {
    case BinaryOperator::kAdd:
      return Value(a + b);
    case BinaryOperator::kSubtract:
      return Value(a - b);
    case BinaryOperator::kMultiply:
      return Value(a * b);
    case BinaryOperator::kPower: {
      if ((a < 0 && b != std::floor(b)) || (a == 0 && b < 0)) {
        run.fail(a, " cannot be raised to the power ", b);
      }
      const double result = std::pow(a, b);
      if (std::isinf(result) && !std::isinf(a) && !std::isinf(b)) {
        run.fail("** gives a number that is too large");
      }
      return Value(result);
    }
    default:
      if (b == 0) {
        run.fail("division by zero");
      }
      return Value(op == BinaryOperator::kDivide        ? a / b
                   : op == BinaryOperator::kFloorDivide ? real_floor_divided(a, b)
                                                        : real_modulo(a, b));
  }
}

Value repeated(Run& run, const Value& value, int64_t times) {
  const auto count = static_cast<size_t>(std::max<int64_t>(times, 0));
  if (value.is_text()) {
    const std::string& bytes = value.bytes();
    run.check_text(bytes.empty() ? 0 : count);  // no overflow below
    run.check_text(bytes.size() * count);
    std::string out;
    out.reserve(bytes.size() * count);
    for (size_t i = 0; i < count && !bytes.empty(); ++i) {
      out += bytes;
    }
    return run.text(std::move(out));
  }
  const Sequence& sequence = value.sequence();
  Values items;
  for (size_t i = 0; i < count && !sequence.items.empty(); ++i) {
    run.step(sequence.items.size());
    items.insert(items.end(), sequence.items.begin(), sequence.items.end());
  }
  return run.sequence(sequence.form, std::move(items));
}

bool is_list_or_tuple(const Value& value) {
  return value.is_sequence() &&
         (value.sequence().form == Form::kList || value.sequence().form == Form::kTuple);
}

bool is_repeatable(const Value& value) { return value.is_text() || is_list_or_tuple(value); }

Value joined(Run& run, const Value& left, const Value& right) {
  if (left.is_text()) {
    std::string out;
    run.check_text(left.bytes().size() + right.bytes().size());
    out.reserve(left.bytes().size() + right.bytes().size());
    out += left.bytes();
    out += right.bytes();
    return run.text(std::move(out));
  }
  Values items = left.sequence().items;
  run.step(items.size());
  items.insert(items.end(), right.sequence().items.begin(), right.sequence().items.end());
  return run.sequence(left.sequence().form, std::move(items));
}

std::string no_attribute(const Value& value, std::string_view name) {
  return concat("'", value.type_name(), " object' has no attribute '", name, "'");
}

// Where Python's index leads; nothing if it leads out.
std::optional<size_t> place_of_index(int64_t index, size_t size) {
  const auto count = static_cast<int64_t>(size);
  const int64_t place = index < 0 ? index + count : index;
  return place >= 0 && place < count ? std::optional(static_cast<size_t>(place)) : std::nullopt;
}

Value element_of_text(Run& run, const Text& text, int64_t index, const Value& otherwise) {
  if (text.ascii) {
    const std::optional<size_t> place = place_of_index(index, text.bytes.size());
    return place ? run.text(text.bytes.substr(*place, 1)) : otherwise;
  }
  run.step(text.bytes.size() / 16);
  const std::vector<size_t> starts = code_point_starts(text.bytes);
  const std::optional<size_t> place = place_of_index(index, starts.size() - 1);
  return place ? run.text(text.bytes.substr(starts[*place], starts[*place + 1] - starts[*place]))
               : otherwise;
}

// The places that start:stop:step means, as slice.indices says.
struct SlicePlaces {
  int64_t start;
  int64_t stop;
  int64_t step;
};

SlicePlaces slice_places(
    Run& run, size_t size, const Value& start, const Value& stop, const Value& step) {
  const auto count = static_cast<int64_t>(size);
  const auto bound = [&](const Value& value, int64_t otherwise, int64_t least, int64_t most) {
    if (value.is_none()) {
      return otherwise;
    }
    const int64_t given = integer_of(run, value, "a slice's bound");
    return std::clamp(given < 0 ? given + count : given, least, most);
  };
  const int64_t stride = step.is_none() ? 1 : integer_of(run, step, "a slice's step");
  if (stride == 0) {
    run.fail("a slice's step is zero");
  }
  if (stride > 0) {
    return {bound(start, 0, 0, count), bound(stop, count, 0, count), std::min(stride, count + 1)};
  }
  return {bound(start, count - 1, -1, count - 1), bound(stop, -1, -1, count - 1),
          std::max(stride, -count - 1)};
}

template <class Take>
void for_each_place(const SlicePlaces& places, Take take) {
  for (int64_t i = places.start; places.step > 0 ? i < places.stop : i > places.stop;
       i += places.step) {
    take(static_cast<size_t>(i));
  }
}

Value slice_of_text(
    Run& run, const Text& text, const Value& start, const Value& stop, const Value& step) {
  const std::vector<size_t> starts =
      text.ascii ? std::vector<size_t>() : code_point_starts(text.bytes);
  run.step(starts.size() / 16);
  const size_t size = text.ascii ? text.bytes.size() : starts.size() - 1;
  const SlicePlaces places = slice_places(run, size, start, stop, step);
  if (places.step == 1) {
    const auto first = static_cast<size_t>(places.start);
    const size_t last = std::max(first, static_cast<size_t>(places.stop));
    return run.text(text.ascii ? text.bytes.substr(first, last - first)
                               : text.bytes.substr(starts[first], starts[last] - starts[first]));
  }
  std::string out;
  for_each_place(places, [&](size_t i) {
    out += text.ascii ? text.bytes.substr(i, 1)
                      : text.bytes.substr(starts[i], starts[i + 1] - starts[i]);
  });
  run.step(out.size() / 8);
  return run.text(std::move(out));
}

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

const std::string& text_of(Run& run, const Value& value, std::string_view what) {
  if (value.is_undefined()) {
    fail_undefined(run, value);
  }
  if (!value.is_text()) {
    run.fail(what, " must be a text, not ", value.type_name());
  }
  return value.bytes();
}

int64_t integer_of(Run& run, const Value& value, std::string_view what) {
  if (value.is_undefined()) {
    fail_undefined(run, value);
  }
  if (!value.is_integer() && !value.is_bool()) {
    run.fail(what, " must be an integer, not ", value.type_name());
  }
  return value.integer();
}

Value apply(Run& run, BinaryOperator op, const Value& left, const Value& right) {
  if (left.is_number() && right.is_number()) {
    return left.is_real() || right.is_real()
               ? apply_to_reals(run, op, left.real(), right.real())
               : apply_to_integers(run, op, left.integer(), right.integer());
  }
  const auto is_count = [](const Value& value) { return value.is_integer() || value.is_bool(); };
  if (op == BinaryOperator::kAdd) {
    if ((left.is_text() && right.is_text()) || (is_list_or_tuple(left) && is_list_or_tuple(right) &&
                                                left.sequence().form == right.sequence().form)) {
      return joined(run, left, right);
    }
  } else if (op == BinaryOperator::kMultiply) {
    if (is_repeatable(left) && is_count(right)) {
      return repeated(run, left, right.integer());
    }
    if (is_repeatable(right) && is_count(left)) {
      return repeated(run, right, left.integer());
    }
  } else if (op == BinaryOperator::kModulo && left.is_text()) {
    return run.text(percent_format(run, left.bytes(), right));
  }
  fail_operands(run, op, left, right);
}

Value negate(Run& run, const Value& value) {
  if (value.is_real()) {
    return Value(-value.real());
  }
  if (!value.is_number()) {
    return apply(run, BinaryOperator::kSubtract, Value(int64_t{0}), value);
  }
  return apply_to_integers(run, BinaryOperator::kSubtract, 0, value.integer());
}

Value plus(Run& run, const Value& value) {
  if (!value.is_number()) {
    return apply(run, BinaryOperator::kAdd, Value(int64_t{0}), value);
  }
  return value.is_real() ? value : Value(value.integer());
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
    const std::string& wanted = text_of(run, item, "what is looked for in a text");
    run.step(container.bytes().size() / 256);
    return container.bytes().find(wanted) != std::string::npos;
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
    run.step(item.is_text() ? 1 : container.dict().entries().size());
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
                                                   : count_code_points(value.bytes()));
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

Value get_item(Run& run, const Value& value, const Value& key) {
  if (value.is_undefined()) {
    fail_undefined(run, value);
  }
  if (value.is_dict()) {
    if (!key.is_sequence() && !key.is_dict()) {
      run.step(key.is_text() ? 0 : value.dict().entries().size());
      if (const Value* found = value.dict().find(key)) {
        return *found;
      }
    }
  } else if (key.is_integer() || key.is_bool()) {
    if (value.is_text()) {
      return element_of_text(run, value.text(), key.integer(),
                             run.undefined("str object has no element"));
    }
    if (value.is_sequence() && value.sequence().indexable()) {
      const Values& items = value.sequence().items;
      const std::optional<size_t> place = place_of_index(key.integer(), items.size());
      return place ? items[*place]
                   : run.undefined(
                         concat(value.type_name(), " object has no element ", key.integer()));
    }
  }
  if (key.is_text()) {
    if (std::optional<Value> attribute = attribute_of(run, value, key.bytes())) {
      return *std::move(attribute);
    }
    return run.undefined(no_attribute(value, key.bytes()));
  }
  return run.undefined(concat(value.type_name(), " object has no such element"));
}

Value get_attribute(Run& run, const Value& value, std::string_view name) {
  if (value.is_undefined()) {
    fail_undefined(run, value);
  }
  if (std::optional<Value> attribute = attribute_of(run, value, name)) {
    return *std::move(attribute);
  }
  if (value.is_dict()) {
    if (const Value* found = value.dict().find(name)) {
      return *found;
    }
  }
  return run.undefined(no_attribute(value, name));
}

Value get_slice(
    Run& run, const Value& value, const Value& start, const Value& stop, const Value& step) {
  if (value.is_undefined()) {
    fail_undefined(run, value);
  }
  if (value.is_text()) {
    return slice_of_text(run, value.text(), start, stop, step);
  }
  if (!value.is_sequence() || !value.sequence().indexable()) {
    run.fail("'", value.type_name(), "' object cannot be sliced");
  }
  const Sequence& sequence = value.sequence();
  Values items;
  for_each_place(slice_places(run, sequence.items.size(), start, stop, step),
                 [&](size_t i) { items.push_back(sequence.items[i]); });
  return run.sequence(sequence.form, std::move(items));
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
