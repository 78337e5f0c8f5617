#include "autograd/ops/elementwise.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/engine.h"
#include "autograd/tensor/factory.h"
#include "tests/autograd/ops/op_samples.h"

namespace tapestry {

namespace {

const std::vector<Shape> kShapes = {{7}, {3, 4}, {2, 3, 4}, {}, {1}, {1, 3, 1}, {0}, {2, 0, 3}};

struct Pair {
  Shape a, b;
};
// Equal shapes, either side broadcast, both, scalars, size 0 and size 1.
const std::vector<Pair> kPairs = {{{3, 4}, {3, 4}}, {{4}, {3, 4}},       {{3, 4}, {4}},
                                  {{3, 1}, {1, 4}}, {{2, 1, 3}, {4, 1}}, {{3, 1, 2}, {1, 2}},
                                  {{}, {2, 3}},     {{2, 3}, {}},        {{}, {}},
                                  {{1}, {1}},       {{0, 3}, {1, 3}},    {{2, 0}, {1, 1}}};

// Both operands wide, and one broadcast along each axis.
const std::vector<Pair> kLargePairs = {
    {kLarge, kLarge}, {kLarge, {1000}}, {{40, 1}, kLarge}, {kLarge, {}}};

}  // namespace

// ---------------------------------------------------------------------------------- two operands

// `roundings` of a gradient, and of one that is summed over the axes of a broadcast: there products
// are rounded before they are summed, and cancel.
#define BINARY_SAMPLES(op_name, make_a, make_b, roundings, roundings_summed)                      \
  OP_SAMPLES(op_name) {                                                                           \
    const auto fn = [](const Tensor& a, const Tensor& b) { return tapestry::op_name(a, b); };     \
    for (const auto& [a, b] : kPairs) {                                                           \
      add(fn, {make_a(a), make_b(b)}).rounds(1, a == b ? (roundings) : (roundings_summed));       \
    }                                                                                             \
    for (const auto& [a, b] : kLargePairs) {                                                      \
      add_large(fn, {make_a(a), make_b(b)}).rounds(1, a == b ? (roundings) : (roundings_summed)); \
    }                                                                                             \
    add_error<ValueError>(fn, {make_a({2, 3}), make_b({2, 4})}, #op_name ": shapes");             \
  }

BINARY_SAMPLES(add, randn, randn, 1, 1)
BINARY_SAMPLES(sub, randn, randn, 1, 1)
BINARY_SAMPLES(mul, randn, randn, 1, 8)
BINARY_SAMPLES(div, randn, nonzero, 3, 8)   // -dy (a / b / b)
BINARY_SAMPLES(pow, positive, randn, 4, 8)  // dy (b a^(b - 1)), where b - 1 is rounded too
BINARY_SAMPLES(maximum, distinct, randn, 1, 1)
BINARY_SAMPLES(minimum, distinct, randn, 1, 1)

#define COMPARE_SAMPLES(op_name)                                                              \
  OP_SAMPLES(op_name) {                                                                       \
    const auto fn = [](const Tensor& a, const Tensor& b) { return tapestry::op_name(a, b); }; \
    for (const auto& [a, b] : kPairs) {                                                       \
      add(fn, {integers(a, 3), integers(b, 3)});                                              \
      add(fn, {distinct(a), distinct(b)});                                                    \
    }                                                                                         \
    add(fn, {bools({5}), bools({5})});                                                        \
    for (const auto& [a, b] : kLargePairs) {                                                  \
      add_large(fn, {integers(a, 3), integers(b, 3)});                                        \
    }                                                                                         \
    add_error<ValueError>(fn, {randn({2, 3}), randn({2, 4})}, #op_name ": shapes");           \
  }

COMPARE_SAMPLES(eq)
COMPARE_SAMPLES(ne)
COMPARE_SAMPLES(lt)
COMPARE_SAMPLES(le)
COMPARE_SAMPLES(gt)
COMPARE_SAMPLES(ge)
COMPARE_SAMPLES(logical_and)
COMPARE_SAMPLES(logical_or)
COMPARE_SAMPLES(logical_xor)

// ----------------------------------------------------------------------------- tensor and number

#define NUMBER_SAMPLES(op_name, make, ...)                         \
  OP_SAMPLES(op_name) {                                            \
    const auto fn = [](const Tensor& x) { return (__VA_ARGS__); }; \
    for (const Shape& shape : kShapes) {                           \
      add(fn, {make(shape)});                                      \
    }                                                              \
    add_large(fn, {make(kLarge)});                                 \
  }

NUMBER_SAMPLES(add_scalar, randn, x + 1.5)
NUMBER_SAMPLES(rsub_scalar, randn, 0.75 - x)
NUMBER_SAMPLES(mul_scalar, randn, -2.5 * x)
NUMBER_SAMPLES(div_scalar, randn, x / 1.25)
NUMBER_SAMPLES(eq_scalar, integers_as_floats, eq(x, 1.0))
NUMBER_SAMPLES(ne_scalar, integers_as_floats, ne(x, 1.0))
NUMBER_SAMPLES(lt_scalar, integers_as_floats, lt(x, 1.0))
NUMBER_SAMPLES(le_scalar, integers_as_floats, le(x, 1.0))
NUMBER_SAMPLES(gt_scalar, integers_as_floats, gt(x, 1.0))
NUMBER_SAMPLES(ge_scalar, integers_as_floats, ge(x, 1.0))

OP_SAMPLES(pow_scalar) {
  rounds(1, 3);  // dy (s x^(s - 1))
  for (const double exponent : {2.0, 3.0, 1.0, 0.0}) {
    const auto fn = [exponent](const Tensor& x) { return tapestry::pow(x, exponent); };
    add(fn, {randn({3, 4})});
    add(fn, {randn({})});
    add(fn, {randn({0, 2})});
  }
  for (const double exponent : {-1.0, 0.5, -0.5, 1.7, -2.0}) {
    const auto fn = [exponent](const Tensor& x) { return tapestry::pow(x, exponent); };
    add(fn, {positive({3, 4})});
    add_large(fn, {positive(kLarge)});
  }
}

OP_SAMPLES(rpow_scalar) {
  rounds(1, 3);  // dy (log(s) y)
  for (const double base : {2.0, 0.3, 1.0}) {
    const auto fn = [base](const Tensor& x) { return tapestry::pow(base, x); };
    for (const Shape& shape : kShapes) {
      add(fn, {randn(shape)});
    }
    add_large(fn, {randn(kLarge)});
  }
  // 0^x is flat for positive x.
  add([](const Tensor& x) { return tapestry::pow(0.0, x); }, {positive({4})});
}

// ------------------------------------------------------------------------------------ one operand

// `roundings` of the gradient.
#define UNARY_SAMPLES(op_name, make, roundings)                           \
  OP_SAMPLES(op_name) {                                                   \
    rounds(1, roundings);                                                 \
    const auto fn = [](const Tensor& x) { return tapestry::op_name(x); }; \
    for (const Shape& shape : kShapes) {                                  \
      add(fn, {make(shape)});                                             \
    }                                                                     \
    add_large(fn, {make(kLarge)});                                        \
  }

UNARY_SAMPLES(neg, randn, 1)
UNARY_SAMPLES(abs, nonzero, 1)
UNARY_SAMPLES(exp, randn, 2)
UNARY_SAMPLES(log, positive, 1)
UNARY_SAMPLES(sqrt, positive, 2)
UNARY_SAMPLES(rsqrt, positive, 5)      // dy y^3: y thrice, its power, the product
UNARY_SAMPLES(reciprocal, nonzero, 4)  // dy y^2: y twice, its square, the product
UNARY_SAMPLES(square, randn, 1)
UNARY_SAMPLES(sin, randn, 2)
UNARY_SAMPLES(cos, randn, 2)
UNARY_SAMPLES(tanh, randn, 3)     // dy (1 - y^2): y twice, the product
UNARY_SAMPLES(sigmoid, randn, 3)  // dy y (1 - y): y twice, the product
UNARY_SAMPLES(erf, randn, 4)      // dy exp(-x^2): x^2, its exponential, two products
// Odd multiples of 1/8: never on a step.
UNARY_SAMPLES(sign, distinct, 1)
UNARY_SAMPLES(floor, distinct, 1)
UNARY_SAMPLES(ceil, distinct, 1)
UNARY_SAMPLES(round, distinct, 1)
UNARY_SAMPLES(isfinite, randn, 1)
UNARY_SAMPLES(isnan, randn, 1)

OP_SAMPLES(logical_not) {
  const auto fn = [](const Tensor& x) { return logical_not(x); };
  for (const Shape& shape : kShapes) {
    add(fn, {bools(shape)});
    add(fn, {integers(shape, 2)});
    add(fn, {integers_as_floats(shape)});
  }
  add_large(fn, {bools(kLarge)});
}

OP_SAMPLES(clamp) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const auto& [low, high] : {std::pair(-0.7, 0.8), {0.0, infinity}, {-infinity, 0.5}}) {
    const auto fn = [low = low, high = high](const Tensor& x) { return clamp(x, low, high); };
    for (const Shape& shape : kShapes) {
      add(fn, {distinct(shape)});
    }
    add_large(fn, {randn(kLarge)});
  }
  add_error<ValueError>([](const Tensor& x) { return clamp(x, 1, -1); }, {randn({2})}, "lower");
}

// -------------------------------------------------------------------------------------- selection

OP_SAMPLES(where) {
  const auto fn = [](const Tensor& c, const Tensor& a, const Tensor& b) { return where(c, a, b); };
  for (const auto& [a, b] : kPairs) {
    add(fn, {bools(a), randn(b), randn(a)});
  }
  add(fn, {bools({3, 1}), randn({4}), randn({2, 1, 1})});
  add(fn, {bools({2}), randn({2}), randn({})});
  add_large(fn, {bools({1000}), randn(kLarge), randn({40, 1})});
  // masked_fill is made of it.
  const auto fill = [](const Tensor& x, const Tensor& mask) { return masked_fill(x, mask, -1.5); };
  add(fill, {randn({3, 4}), bools({4})});
  add(fill, {randn({3, 4}), bools({3, 1})});
  add_large(fill, {randn(kLarge), bools({1000})});
  add_error<TypeError>(fn, {randn({2}), randn({2}), randn({2})}, "condition must be bool");
  add_error<ValueError>(fn, {bools({3}), randn({2}), randn({2})}, "where: shapes");
  add_error<ValueError>(fill, {randn({2}), bools({3})}, "masked_fill");
  add_error<ValueError>(fill, {randn({2}), bools({2, 2})}, "does not broadcast");
}

}  // namespace tapestry
