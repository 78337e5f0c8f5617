// Samples of normalizations.
#include "autograd/ops/norm.h"
#include "tests/autograd/ops/op_samples.h"

namespace tapestry {

OP_SAMPLES(layer_norm) {
  const auto fn = [](const Tensor& x, const Tensor& weight, const Tensor& bias) {
    return layer_norm(x, weight, bias, 1e-2);
  };
  for (const Shape& s : {Shape{6}, Shape{4, 5}, Shape{2, 3, 4}, Shape{0, 4}, Shape{3, 1}}) {
    add(fn, {randn(s), positive({s.back()}), randn({s.back()})});
  }
  add(fn, {randn({3, 4}), Tensor(), Tensor()});
  add(fn, {randn({3, 4}), positive({4}), Tensor()});
  add(fn, {randn({3, 4}), Tensor(), randn({4})});
  add(fn, {randn({3, 4}), positive({4}), randn({4})}).differentiable({0});
  add(fn, {randn({3, 4}), positive({4}), randn({4})}).differentiable({1, 2});
  add_large(fn, {randn({300, 200}), positive({200}), randn({200})});
  add_error<ValueError>(fn, {randn({2, 8}), randn({7}), Tensor()}, "weight [7]");
  add_error<ValueError>(fn, {randn({2, 8}), randn({8}), randn({1, 8})}, "bias [1, 8]");
  add_error<ValueError>(fn, {randn({}), Tensor(), Tensor()}, "scalar");
  add_error<ValueError>([](const Tensor& x) { return layer_norm(x, {}, {}, -1e-5); },
                        {randn({2, 8})}, "eps");
  add_error<TypeError>(fn, {integers({2, 8}, 3), Tensor(), Tensor()}, "floating");
  add_error<TypeError>(fn, {randn({2, 8}), integers({8}, 3), Tensor()}, "weight");
}

OP_SAMPLES(rms_norm) {
  const auto fn = [](const Tensor& x, const Tensor& weight) { return rms_norm(x, weight, 1e-2); };
  for (const Shape& s : {Shape{6}, Shape{4, 5}, Shape{2, 3, 4}, Shape{0, 4}, Shape{3, 1}}) {
    add(fn, {randn(s), positive({s.back()})});
  }
  add(fn, {randn({3, 4}), Tensor()});
  add(fn, {randn({3, 4}), positive({4})}).differentiable({0});
  add(fn, {randn({3, 4}), positive({4})}).differentiable({1});
  add_large(fn, {randn({300, 200}), positive({200})});
  add_error<ValueError>(fn, {randn({2, 8}), randn({7})}, "weight [7]");
  add_error<ValueError>(fn, {randn({}), Tensor()}, "scalar");
  add_error<ValueError>([](const Tensor& x) { return rms_norm(x, {}, -1e-5); }, {randn({2, 8})},
                        "eps");
  add_error<TypeError>(fn, {integers({2, 8}, 3), Tensor()}, "floating");
  add_error<TypeError>(fn, {randn({2, 8}), integers({8}, 3)}, "weight");
}

OP_SAMPLES(add_layer_norm) {
  rounds(2, 3);  // the norm is that of the rounded sum
  const auto fn = [](const TensorList& in) {
    const AddNorm r = add_layer_norm(in[0], in[1], in[2], in[3], {.eps = 1e-2, .x_bias = in[4]});
    return TensorList{r.sum, r.normed};
  };
  for (const Shape& s : {Shape{6}, Shape{4, 5}, Shape{2, 3, 4}, Shape{0, 4}, Shape{3, 1}}) {
    const Shape h{s.back()};
    add(fn, {randn(s), randn(s), positive(h), randn(h), randn(h)});
  }
  add(fn, {randn({3, 4}), randn({3, 4}), Tensor(), Tensor(), Tensor()});
  add(fn, {randn({3, 4}), randn({3, 4}), positive({4}), Tensor(), randn({4})}).differentiable({4});
  add(fn, {randn({3, 4}), randn({3, 4}), Tensor(), randn({4}), Tensor()}).differentiable({0});
  add(fn, {randn({3, 4}), randn({3, 4}), positive({4}), randn({4}), Tensor()})
      .differentiable({1, 2, 3});
  // Only one of the two results is used.
  add([=](const TensorList& in) { return TensorList{fn(in)[0]}; },
      {randn({3, 4}), randn({3, 4}), positive({4}), randn({4}), randn({4})});
  add([=](const TensorList& in) { return TensorList{fn(in)[1]}; },
      {randn({3, 4}), randn({3, 4}), positive({4}), randn({4}), randn({4})});
  add_large(fn,
            {randn({300, 200}), randn({300, 200}), positive({200}), randn({200}), randn({200})});
  add_error<ValueError>(fn, {randn({2, 8}), randn({8}), Tensor(), Tensor(), Tensor()}, "residual");
  add_error<ValueError>(fn, {randn({2, 8}), randn({2, 8}), randn({7}), Tensor(), Tensor()},
                        "weight [7]");
  add_error<ValueError>(fn, {randn({2, 8}), randn({2, 8}), Tensor(), Tensor(), randn({7})},
                        "x_bias [7]");
  add_error<TypeError>(fn, {integers({2}, 3), randn({2}), Tensor(), Tensor(), Tensor()},
                       "floating");
  add_error<TypeError>(fn, {randn({2}).to(kFloat32), randn({2}), Tensor(), Tensor(), Tensor()},
                       "float64");
}

OP_SAMPLES(add_rms_norm) {
  rounds(2, 3);  // the norm is that of the rounded sum
  const auto fn = [](const TensorList& in) {
    const AddNorm r = add_rms_norm(in[0], in[1], in[2], {.eps = 1e-2, .x_bias = in[3]});
    return TensorList{r.sum, r.normed};
  };
  for (const Shape& s : {Shape{6}, Shape{4, 5}, Shape{2, 3, 4}, Shape{0, 4}, Shape{3, 1}}) {
    add(fn, {randn(s), randn(s), positive({s.back()}), randn({s.back()})});
  }
  add(fn, {randn({3, 4}), randn({3, 4}), Tensor(), Tensor()});
  add(fn, {randn({3, 4}), randn({3, 4}), positive({4}), Tensor()}).differentiable({2});
  // One tensor in both places; only the norm is used.
  add([](const Tensor& x,
         const Tensor& weight) { return add_rms_norm(x, x, weight, {.eps = 1e-2}).normed; },
      {randn({3, 4}), positive({4})});
  add_large(fn, {randn({300, 200}), randn({300, 200}), positive({200}), randn({200})});
  add_error<ValueError>(fn, {randn({2, 8}), randn({8}), Tensor(), Tensor()}, "residual");
  add_error<TypeError>(
      [](const Tensor& x) { return add_rms_norm(x, x, {}, {.dtype = kFloat32}).normed; },
      {randn({2, 8})}, "float64");
}

}  // namespace tapestry
