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

}  // namespace tapestry
