// Samples of activations and of softmax and its relatives.
#include "autograd/ops/activation.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/softmax.h"
#include "tests/autograd/ops/op_samples.h"

namespace tapestry {

#define ACTIVATION_SAMPLES(op_name, make)                                               \
  OP_SAMPLES(op_name) {                                                                 \
    const auto fn = [](const Tensor& x) { return tapestry::op_name(x); };               \
    for (const Shape& s : {Shape{}, Shape{1}, Shape{7}, Shape{2, 3, 5}, Shape{0, 4}}) { \
      add(fn, {make(s)});                                                               \
    }                                                                                   \
    add_large(fn, {make({130, 300})});                                                  \
    add_error<TypeError>(fn, {bools({3})}, #op_name);                                   \
  }

ACTIVATION_SAMPLES(gelu, randn)
ACTIVATION_SAMPLES(gelu_tanh, randn)
ACTIVATION_SAMPLES(silu, randn)
ACTIVATION_SAMPLES(softplus, randn)
#undef ACTIVATION_SAMPLES

#define BIAS_SAMPLES(op_name)                                                     \
  OP_SAMPLES(op_name) {                                                           \
    const auto fn = [](const Tensor& x, const Tensor& bias) {                     \
      return tapestry::op_name(x, bias);                                          \
    };                                                                            \
    for (const Shape& s : {Shape{7}, Shape{2, 3, 5}, Shape{0, 4}, Shape{3, 0}}) { \
      add(fn, {randn(s), randn({s.back()})});                                     \
    }                                                                             \
    add(fn, {randn({2, 3}), randn({3})}).differentiable({0});                     \
    add(fn, {randn({2, 3}), randn({3})}).differentiable({1});                     \
    add_large(fn, {randn({130, 300}), randn({300})});                             \
    add_error<ValueError>(fn, {randn({2, 3}), randn({2})}, "bias [2]");           \
    add_error<ValueError>(fn, {randn({}), randn({1})}, "bias [1]");               \
    add_error<TypeError>(fn, {randn({3}), integers({3}, 4)}, "int64");            \
    add_error<TypeError>(fn, {bools({3}), randn({3})}, #op_name);                 \
  }

BIAS_SAMPLES(bias_gelu)
BIAS_SAMPLES(bias_gelu_tanh)
BIAS_SAMPLES(bias_silu)
#undef BIAS_SAMPLES

OP_SAMPLES(relu) {
  const auto fn = [](const Tensor& x) { return relu(x); };
  const auto squared = [](const Tensor& x) { return squared_relu(x); };
  for (const Shape& s : {Shape{}, Shape{7}, Shape{2, 3, 5}, Shape{0, 4}}) {
    add(fn, {nonzero(s)});
    add(squared, {nonzero(s)});
  }
  add_large(fn, {nonzero({130, 300})});
  add_large(squared, {nonzero({130, 300})});
  add_error<TypeError>(fn, {bools({3})}, "relu");
}

OP_SAMPLES(swiglu) {
  const auto fn = [](const Tensor& gate, const Tensor& up) { return swiglu(gate, up); };
  for (const Shape& s : {Shape{}, Shape{1}, Shape{5}, Shape{2, 3, 4}, Shape{0, 3}, Shape{3, 0}}) {
    add(fn, {randn(s), randn(s)});
  }
  // One tensor in both places, and a single one that wants a gradient.
  add([](const Tensor& x) { return swiglu(x, x); }, {randn({2, 3})});
  add(fn, {randn({2, 3}), randn({2, 3})}).differentiable({1});
  add_large(fn, {randn({70, 600}), randn({70, 600})});
  add_error<ValueError>(fn, {randn({2, 3}), randn({3})}, "up [3]");
  add_error<TypeError>(fn, {randn({3}), integers({3}, 5)}, "int64");
  add_error<TypeError>(fn, {integers({3}, 5), integers({3}, 5)}, "floating");
}

OP_SAMPLES(swiglu_fused) {
  const auto fn = [](const Tensor& x) { return swiglu(x); };
  for (const Shape& s : {Shape{2}, Shape{6}, Shape{2, 3, 4}, Shape{0, 4}, Shape{3, 0}}) {
    add(fn, {randn(s)});
  }
  add_large(fn, {randn({70, 1200})});
  add_error<ValueError>(fn, {randn({2, 3})}, "[2, 3]");
  add_error<ValueError>(fn, {randn({})}, "even");
  add_error<TypeError>(fn, {integers({4}, 5)}, "floating");
}

#define SOFTMAX_SAMPLES(op_name)                                     \
  OP_SAMPLES(op_name) {                                              \
    const auto along = [](int64_t axis) {                            \
      return [axis](const Tensor& x) { return op_name(x, axis); };   \
    };                                                               \
    add(along(0), {randn({5})});                                     \
    add(along(-1), {randn({})});                                     \
    for (const int64_t axis : {0, 1, -1}) {                          \
      add(along(axis), {randn({2, 3, 4})});                          \
    }                                                                \
    add(along(-1), {randn({3, 1})});                                 \
    add(along(-1), {randn({0, 4})});                                 \
    add(along(1), {randn({2, 0, 3})});                               \
    add_large(along(-1), {randn({200, 300})});                       \
    add_large(along(0), {randn({200, 300})});                        \
    add_error<IndexError>(along(2), {randn({2, 3})}, #op_name);      \
    add_error<TypeError>(along(0), {integers({2, 3}, 4)}, #op_name); \
  }

SOFTMAX_SAMPLES(softmax)
SOFTMAX_SAMPLES(log_softmax)
#undef SOFTMAX_SAMPLES

OP_SAMPLES(logsumexp) {
  const auto over = [](const Shape& axes, bool keepdim) {
    return [=](const Tensor& x) { return logsumexp(x, axes, keepdim); };
  };
  for (const bool keepdim : {false, true}) {
    for (const Shape& axes : {Shape{}, Shape{0}, Shape{1}, Shape{-1}, Shape{0, 2}, Shape{-1, 1}}) {
      add(over(axes, keepdim), {randn({2, 3, 4})});
    }
  }
  add(over({}, false), {randn({})});
  add(over({0}, false), {randn({1})});
  add(over({1}, false), {randn({0, 3})});
  add(over({1}, false), {randn({3, 0})});
  add_large(over({1}, false), {randn({200, 300})});
  add_large(over({0}, false), {randn({200, 300})});
  add_error<IndexError>(over({2}, false), {randn({2, 3})}, "logsumexp");
  add_error<ValueError>(over({1, -1}, false), {randn({2, 3})}, "twice");
  add_error<TypeError>(over({0}, false), {integers({3}, 4)}, "logsumexp");
}

}  // namespace tapestry
