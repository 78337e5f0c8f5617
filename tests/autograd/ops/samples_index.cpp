#include "autograd/ops/elementwise.h"
#include "autograd/ops/index.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tensor/factory.h"
#include "tests/autograd/ops/op_samples.h"

namespace tapestry {

using indexing::Ellipsis;
using indexing::None;
using Range = indexing::Slice;

OP_SAMPLES(slice_assign) {
  const auto columns = [](const Tensor& x, const Tensor& values) {
    return x.clone().index_put_({Ellipsis, Range(1, None, 2)}, values);
  };
  add(columns, {randn({3, 5}), randn({3, 2})});
  add(columns, {randn({2, 3, 5}), randn({1, 2})});
  add(columns, {randn({5}), randn({})});
  add(columns, {randn({0, 5}), randn({2})});
  add(columns, {randn({3, 1}), randn({3, 0})});
  add(
      [](const Tensor& x, const Tensor& values) {
        return x.clone().index_put_({1, -1}, values);
      },
      {randn({3, 4}), randn({})});
  add(
      [](const Tensor& x, const Tensor& values) {
        return x.clone().index_put_({Range(), None, 0}, values);
      },
      {randn({3, 4}), randn({3, 1})});
  // Two sums to 16 bits.
  add(
      [](const Tensor& x, const Tensor& values) {
        return x.clone().index_put_({Range(1, 3)}, values, /*accumulate=*/true);
      },
      {randn({4, 2}), randn({2, 2})});
  // Only one of both has a gradient.
  add(columns, {randn({3, 5}), randn({3, 2})}).differentiable({0});
  add([](const Tensor& x, const Tensor& values) { return x.clone().index_put_({0}, values); },
      {randn({3, 5}), randn({5})})
      .differentiable({1});
  add_large(columns, {randn({100, 400}), randn({100, 200})});
  add_error<ValueError>(columns, {randn({3, 5}), randn({3, 3})}, "do not broadcast to [3, 2]");
  add_error<RuntimeError>(
      [](const Tensor& x) { return x.detach().set_requires_grad().index_put_({0}, 1.0); },
      {randn({3})}, "is a leaf");
}

}  // namespace tapestry
