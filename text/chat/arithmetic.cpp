// + - * / // % ** and signs.
#include <algorithm>
#include <cmath>

#include "text/chat/operators.h"
#include "text/chat/text.h"

namespace tapestry::chat::jinja {

namespace {

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
    return value.is_markup() ? run.marked(std::move(out)) : run.text(std::move(out));
  }
  const Sequence& sequence = value.sequence();
  Values items;
  for (size_t i = 0; i < count && !sequence.items.empty(); ++i) {
    run.step(sequence.items.size());
    items.insert(items.end(), sequence.items.begin(), sequence.items.end());
  }
  return run.sequence(sequence.form, std::move(items));
}

bool is_repeatable(const Value& value) { return value.is_text() || is_list_or_tuple(value); }

Value joined(Run& run, const Value& left, const Value& right) {
  if (left.is_markup() || right.is_markup()) {
    const auto part = [&](const Value& value) {
      run.letters(value.is_markup() ? 0 : value.bytes().size());
      return value.is_markup() ? value.bytes() : escaped(value.bytes());
    };
    std::string out = part(left);
    run.check_text(out.size() + right.bytes().size());
    out += part(right);
    return run.marked(std::move(out));
  }
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

}  // namespace

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
    run.fail("% of a text is not known here; use ~ and filters");
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

}  // namespace tapestry::chat::jinja
