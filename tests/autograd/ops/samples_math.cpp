#include "autograd/ops/elementwise.h"
#include "autograd/ops/math.h"
#include "tests/autograd/ops/op_samples.h"

namespace tapestry {

OP_SAMPLES(log1p) {
  const auto fn = [](const Tensor& x) { return log1p(x); };
  for (const Shape& s : {Shape{}, Shape{3, 4}, Shape{0, 2}}) {
    add(fn, {uniform(s, -0.5, 2)}).rounds(1, 3);  // dy / (1 + x)
  }
  add_large(fn, {positive({200, 200})});
}

OP_SAMPLES(expm1) {
  const auto fn = [](const Tensor& x) { return expm1(x); };
  for (const Shape& s : {Shape{}, Shape{3, 4}, Shape{0, 2}}) {
    add(fn, {uniform(s, -2, 2)}).rounds(1, 3);  // dy (y + 1)
  }
  add_large(fn, {uniform({200, 200}, -1, 1)});
}

OP_SAMPLES(floor_divide) {
  // Quotients that no rounding of the operands moves over an integer.
  const auto fn = [](const Tensor& a, const Tensor& b) { return floor_divide(a + 0.25, b); };
  add(fn, {integers_as_floats({3, 4}), integers_as_floats({3, 4})}).differentiable({});
  add([](const Tensor& a, const Tensor& b) { return floor_divide(a, b + 1.0); },
      {integers({3, 4}, 20), integers({4}, 5)});
  add([](const Tensor& a) { return floor_divide(a, -3.0); }, {integers({2, 3}, 20)});
  add_large([](const Tensor& a) { return floor_divide(a, 7.0); }, {integers({200, 200}, 1000)});
  add_error<RuntimeError>([](const Tensor& a) { return floor_divide(a, 0); }, {integers({3}, 4)},
                          "floor_divide: an integer");
  add_error<TypeError>([](const Tensor& x) { return floor_divide(x, x); }, {bools({2})},
                       "floor_divide: not defined for bool");
}

OP_SAMPLES(remainder) {
  const auto fn = [](const Tensor& a, const Tensor& b) { return remainder(a, b); };
  // Away from the jumps, which differences must not meet.
  const Shape shape = {3, 4};
  add(fn, {uniform(shape, 3.2, 3.9), uniform(shape, 1.1, 1.5)}).rounds(1, 3);
  add(fn, {uniform(shape, 3.2, 3.9), uniform({4}, -1.5, -1.1)}).rounds(1, 4);
  add(fn, {uniform({3, 1}, -3.9, -3.2), uniform({4}, 1.1, 1.5)}).rounds(1, 4);
  add(fn, {uniform({0, 2}, 3, 4), uniform({2}, 1, 2)});
  add([](const Tensor& a) { return remainder(a, 2.5); }, {uniform(shape, 3, 4)});
  add([](const Tensor& a) { return remainder(a, -3.0); }, {integers({2, 3}, 20)});
  add_large(fn, {uniform({200, 200}, 3.2, 3.9), uniform({200, 200}, 1.1, 1.5)});
  add_error<RuntimeError>(fn, {integers({3}, 4), integers({3}, 1)}, "remainder: an integer");
}

}  // namespace tapestry
