#include "autograd/ops/elementwise.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tensor/factory.h"
#include "tests/autograd/ops/op_samples.h"

namespace tapestry {

namespace {

struct Over {
  Shape shape;
  Shape axes;
};
// One axis, several (neighbours or not), all, sizes 0 and 1, a scalar.
const std::vector<Over> kOver = {
    {{7}, {0}},          {{3, 4}, {0}},         {{3, 4}, {-1}},  {{2, 3, 4}, {1}},
    {{2, 3, 4}, {0, 2}}, {{2, 3, 4}, {-2, -1}}, {{2, 3, 4}, {}}, {{}, {}},
    {{1}, {0}},          {{1, 3, 1}, {0, 2}},   {{0, 3}, {1}}};
const std::vector<Over> kOverNothing = {{{0}, {}}, {{3, 0}, {1}}, {{0, 2}, {0}}};

template <class F>
auto over(const F& f, const Shape& axes, bool keepdim) {
  return [=](const Tensor& x) { return f(x, axes, keepdim); };
}

}  // namespace

#define REDUCTION_SAMPLES(op_name, make, may_be_empty)                                           \
  OP_SAMPLES(op_name) {                                                                          \
    const auto fn = [](const Tensor& x, const Shape& axes, bool keepdim) {                       \
      return tapestry::op_name(x, axes, keepdim);                                                \
    };                                                                                           \
    for (const bool keepdim : {false, true}) {                                                   \
      for (const Over& o : kOver) {                                                              \
        add(over(fn, o.axes, keepdim), {make(o.shape)});                                         \
      }                                                                                          \
      for (const Over& o : kOverNothing) {                                                       \
        if (may_be_empty) {                                                                      \
          add(over(fn, o.axes, keepdim), {make(o.shape)});                                       \
        } else {                                                                                 \
          add_error<ValueError>(over(fn, o.axes, keepdim), {make(o.shape)}, #op_name ": there"); \
        }                                                                                        \
      }                                                                                          \
    }                                                                                            \
    for (const Shape& axes : {Shape{0}, Shape{1}, Shape{}}) {                                    \
      add_large(over(fn, axes, false), {make(kLarge)});                                          \
    }                                                                                            \
    add_error<IndexError>(over(fn, Shape{2}, false), {make({2, 3})}, #op_name ": axis 2");       \
    add_error<ValueError>(over(fn, Shape{0, -2}, false), {make({2, 3})}, "named twice");         \
  }

REDUCTION_SAMPLES(sum, randn, true)
REDUCTION_SAMPLES(amax, distinct, false)
REDUCTION_SAMPLES(amin, distinct, false)
REDUCTION_SAMPLES(any, integers_as_floats, true)
REDUCTION_SAMPLES(all, integers_as_floats, true)

OP_SAMPLES(prod) {
  rounds(1, 3);  // dy (y / x)
  const auto fn = [](const Tensor& x, const Shape& axes, bool keepdim) {
    return prod(x, axes, keepdim);
  };
  // Factors near 1, so that long products neither vanish nor overflow.
  const auto factors = [this](const Shape& shape) { return uniform(shape, 0.9, 1.1); };
  for (const std::vector<Over>& list : {kOver, kOverNothing}) {
    for (const Over& o : list) {
      add(over(fn, o.axes, false), {nonzero(o.shape)});
      add(over(fn, o.axes, true), {factors(o.shape)});
    }
  }
  // No zero, one, and two of them in a group.
  const Tensor zeros = tensor(std::vector<double>{1.5, -2, 0.5, 0, 3, 1.25, 0, -1, 0}, {3, 3});
  add(over(fn, {1}, false), {zeros});
  add(over(fn, {0}, true), {zeros});
  add(over(fn, {}, false), {zeros});
  add(over(fn, {0, 2}, false), {stack({zeros, factors({3, 3})}, 1)});
  add_large(over(fn, {1}, false), {uniform(kLarge, 0.999, 1.001)});
  add_large(over(fn, {0}, false), {factors(kLarge)});
  add_error<IndexError>(over(fn, {2}, false), {randn({2, 3})}, "prod: axis 2");
}

#define CHOICE_SAMPLES(op_name)                                                                \
  OP_SAMPLES(op_name) {                                                                        \
    const auto along = [](int64_t axis, bool keepdim) {                                        \
      return [=](const Tensor& x) {                                                            \
        const auto [values, indices] = tapestry::op_name(x, axis, keepdim);                    \
        return TensorList{values, indices};                                                    \
      };                                                                                       \
    };                                                                                         \
    const auto all_of = [](const Tensor& x) { return tapestry::op_name(x); };                  \
    for (const bool keepdim : {false, true}) {                                                 \
      add(along(0, keepdim), {distinct({7})});                                                 \
      add(along(0, keepdim), {distinct({3, 4})});                                              \
      add(along(-1, keepdim), {distinct({3, 4})});                                             \
      add(along(1, keepdim), {distinct({2, 3, 4})});                                           \
      add(along(1, keepdim), {distinct({3, 1})});                                              \
      add(along(1, keepdim), {distinct({0, 3})});                                              \
      add(along(0, keepdim), {distinct({})});                                                  \
    }                                                                                          \
    for (const Shape& shape : {Shape{5}, Shape{3, 4}, Shape{}, Shape{1}}) {                    \
      add(all_of, {distinct(shape)});                                                          \
    }                                                                                          \
    add_large(along(1, false), {randn(kLarge)});                                               \
    add_large(along(0, false), {randn(kLarge)});                                               \
    add_error<ValueError>(all_of, {randn({0})}, #op_name ": there is nothing to choose from"); \
    add_error<ValueError>(along(1, false), {randn({2, 0})}, #op_name ": there is nothing");    \
    add_error<IndexError>(along(2, false), {randn({2, 3})}, #op_name ": axis 2");              \
  }

CHOICE_SAMPLES(max)
CHOICE_SAMPLES(min)

#define ARG_SAMPLES(op_name)                                                                \
  OP_SAMPLES(op_name) {                                                                     \
    const auto along = [](std::optional<int64_t> axis, bool keepdim) {                      \
      return [=](const Tensor& x) { return tapestry::op_name(x, axis, keepdim); };          \
    };                                                                                      \
    for (const bool keepdim : {false, true}) {                                              \
      add(along(0, keepdim), {distinct({7})});                                              \
      add(along(-1, keepdim), {distinct({3, 4})});                                          \
      add(along(1, keepdim), {distinct({2, 3, 4})});                                        \
      add(along(1, keepdim), {distinct({0, 3})});                                           \
      add(along(std::nullopt, keepdim), {distinct({2, 3})});                                \
      add(along(std::nullopt, keepdim), {distinct({})});                                    \
    }                                                                                       \
    add_large(along(1, false), {randn(kLarge)});                                            \
    add_error<ValueError>(along(std::nullopt, false), {randn({0})}, #op_name ": there is"); \
    add_error<ValueError>(along(1, false), {randn({2, 0})}, #op_name ": there is nothing"); \
    add_error<IndexError>(along(2, false), {randn({2, 3})}, #op_name ": axis 2");           \
  }

ARG_SAMPLES(argmax)
ARG_SAMPLES(argmin)

OP_SAMPLES(cumsum) {
  const auto along = [](int64_t axis) {
    return [axis](const Tensor& x) { return cumsum(x, axis); };
  };
  add(along(0), {randn({7})});
  add(along(1), {randn({3, 4})});
  add(along(0), {randn({3, 4})});
  add(along(-2), {randn({2, 3, 4})});
  add(along(0), {randn({0, 3})});
  add(along(1), {randn({3, 1})});
  add(along(0), {randn({})});
  add_large(along(1), {randn(kLarge)});
  add_large(along(0), {randn(kLarge)});
  add_error<IndexError>(along(2), {randn({2, 3})}, "cumsum: axis 2");
}

}  // namespace tapestry
