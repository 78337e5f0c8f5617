#include "autograd/ops/elementwise.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/checkpoint.h"
#include "autograd/tape/engine.h"
#include "autograd/tape/gradient_sum.h"
#include "autograd/tensor/factory.h"
#include "tests/autograd/ops/op_samples.h"

namespace tapestry {

OP_SAMPLES(view) {
  const auto to_shape = [](Shape shape) {
    return [shape](const Tensor& x) { return reshape(x, shape); };
  };
  add(to_shape({2, 3}), {randn({6})});
  add(to_shape({3, -1}), {randn({4, 6})});
  add(to_shape({24}), {randn({2, 3, 4})});
  add(to_shape({1, 1}), {randn({})});
  add(to_shape({}), {randn({1})});
  add(to_shape({2, 0}), {randn({0, 4})});
  add(to_shape({3, 8}), {randn({4, 6})});
  add([](const Tensor& x) { return view(x, {6, 2}); }, {randn({3, 4})}).no_layouts();
  // Seen as a view only where axes that are joined lie together.
  add(
      [](const Tensor& x) {
        return view(x.permute({1, 0, 2}), {3, 2, 2, 2});
      },
      {randn({2, 3, 4})})
      .no_layouts();
  add([](const Tensor& x) { return squeeze(x); }, {randn({1, 3, 1})});
  add([](const Tensor& x) { return squeeze(x, -1); }, {randn({3, 1})});
  add([](const Tensor& x) { return squeeze(x, 0); }, {randn({3, 1})});
  add([](const Tensor& x) { return squeeze(x, 1); }, {randn({0, 1})});
  add([](const Tensor& x) { return unsqueeze(x, 0); }, {randn({})});
  add([](const Tensor& x) { return unsqueeze(x, -1); }, {randn({2, 3})});
  add([](const Tensor& x) { return unsqueeze(x, 2); }, {randn({0, 3})});
  add_large(to_shape({200, 200}), {randn({40, 1000})});

  const auto transposed = [](const Tensor& x) { return view(x.t(), {12}); };
  add_error<ValueError>(transposed, {randn({3, 4})}, "use reshape()");
  add_error<ValueError>(to_shape({5}), {randn({6})}, "reshape: shape [5] does not hold 6");
  add_error<ValueError>(to_shape({4, -1}), {randn({6})}, "cannot hold 6 elements");
  add_error<ValueError>(to_shape({-1, -1}), {randn({6})}, "more than one -1");
  add_error<ValueError>(to_shape({-2, -3}), {randn({6})}, "negative size");
  add_error<ValueError>(to_shape({0, -1}), {randn({0})}, "cannot hold 0 elements");
  add_error<IndexError>([](const Tensor& x) { return squeeze(x, 2); }, {randn({3})}, "squeeze");
  add_error<IndexError>([](const Tensor& x) { return unsqueeze(x, 3); }, {randn({3})}, "unsqueeze");
}

OP_SAMPLES(permute) {
  const auto by = [](Shape axes) { return [axes](const Tensor& x) { return permute(x, axes); }; };
  add(by({1, 0}), {randn({2, 3})});
  add(by({2, 0, 1}), {randn({2, 3, 4})});
  add(by({-1, 0, 1}), {randn({2, 3, 4})});
  add(by({0, 2, 1, 3}), {randn({2, 3, 2, 2})});
  add(by({1, 2, 0}), {randn({2, 0, 3})});
  add(by({}), {randn({})});
  add([](const Tensor& x) { return transpose(x, 0, -1); }, {randn({2, 3, 4})});
  add([](const Tensor& x) { return transpose(x, 0, 0); }, {randn({3})});
  add([](const Tensor& x) { return transpose(x, 0, -1); }, {randn({})});
  add([](const Tensor& x) { return x.t(); }, {randn({2, 3, 4})});
  add_large(by({1, 0}), {randn({200, 200})});
  add_error<ValueError>(by({0}), {randn({2, 3})}, "permute: 1 axes");
  add_error<ValueError>(by({0, 0}), {randn({2, 3})}, "named twice");
  add_error<IndexError>(by({0, 2}), {randn({2, 3})}, "permute: axis 2");
  add_error<IndexError>([](const Tensor& x) { return transpose(x, 0, 2); }, {randn({2, 3})},
                        "transpose: axis 2");
}

OP_SAMPLES(expand) {
  const auto to_shape = [](Shape shape) {
    return [shape](const Tensor& x) { return expand(x, shape); };
  };
  add(to_shape({4, 3}), {randn({1, 3})});
  add(to_shape({4, 3}), {randn({3})});
  add(to_shape({3, 4}), {randn({3, 1})});
  add(to_shape({2, 3}), {randn({})});
  add(to_shape({2, 3, 2, 4}), {randn({3, 1, 4})});
  add(to_shape({0, 3}), {randn({1, 3})});
  add(to_shape({-1, 5}), {randn({3, 1})});
  add_large(to_shape({40, 1000}), {randn({40, 1})});
  add_large(to_shape({40, 1000}), {randn({1000})});
  add_error<ValueError>(to_shape({3}), {randn({2, 3})}, "fewer axes");
  add_error<ValueError>(to_shape({4, 3}), {randn({2, 3})}, "expand: axis 0");
  add_error<ValueError>(to_shape({-1, 3}), {randn({3})}, "expand: axis 0");
}

OP_SAMPLES(slice) {
  const auto of = [](int64_t axis, int64_t start, int64_t stop, int64_t step) {
    return [=](const Tensor& x) { return slice(x, axis, start, stop, step); };
  };
  add(of(0, 2, 7, 1), {randn({9})});
  add(of(0, 0, 9, 2), {randn({9})});
  add(of(1, 1, -1, 2), {randn({4, 6, 3})});
  add(of(-1, -3, 100, 1), {randn({2, 5})});
  add(of(0, 3, 2, 1), {randn({4, 2})});  // empty
  add(of(0, 0, 0, 1), {randn({0, 4})});
  add(of(1, 1, 3, 1), {randn({0, 4})});
  add([](const Tensor& x) { return select(x, 1, -2); }, {randn({3, 4})});
  add([](const Tensor& x) { return select(x, 0, 0); }, {randn({1})});
  // Parts that overlap: contributions add up.
  add([](const Tensor& x) { return mul(slice(x, 0, 0, 4), slice(x, 0, 2, 6)); }, {randn({6})});
  add([](const Tensor& x) { return split(x, 2, 1); }, {randn({3, 5})});
  add_large(of(1, 1, 999, 3), {randn({120, 1000})});
  add_error<ValueError>(of(0, 0, 2, 0), {randn({3})}, "step must be at least 1");
  add_error<IndexError>(of(1, 0, 2, 1), {randn({3})}, "slice: axis 1");
  add_error<IndexError>(of(0, 0, 2, 1), {randn({})}, "a scalar has no axis");
  add_error<IndexError>([](const Tensor& x) { return select(x, 0, 3); }, {randn({3})}, "index 3");
  add_error<IndexError>([](const Tensor& x) { return select(x, 0, -4); }, {randn({3})}, "index -4");
  add_error<IndexError>([](const Tensor& x) { return select(x, 0, 0); }, {randn({})}, "scalar");
  add_error<ValueError>([](const Tensor& x) { return split(x, 0, 0); }, {randn({3})},
                        "size of a part");
}

OP_SAMPLES(slice_backward) {
  // The op appears where the gradient of a slice is itself recorded.
  const auto of = [](int64_t axis, int64_t start, int64_t stop, int64_t step) {
    return [=](const Tensor& x, const Tensor& dy) {
      const EnableGradGuard guard;
      const Tensor base = x.requires_grad() ? x : x.detach().set_requires_grad();
      return grad(slice(base, axis, start, stop, step), {base}, dy, {.create_graph = true});
    };
  };
  add(of(0, 2, 7, 1), {randn({9}), randn({5})}).differentiable({1});
  add(of(1, 0, 6, 4), {randn({2, 6}), randn({2, 2})}).differentiable({1});
  add(of(0, 1, 1, 1), {randn({3, 2}), randn({0, 2})}).differentiable({1});
  add_large(of(1, 1, 999, 3), {randn({120, 1000}), randn({120, 333})}).differentiable({1});
}

OP_SAMPLES(split) {
  const auto into = [](Shape sizes, int64_t axis) {
    return [=](const Tensor& x) { return split(x, sizes, axis); };
  };
  add(into({2, 3, 4}, 0), {randn({9})});
  add(into({1, 4}, -1), {randn({3, 5})});
  add(into({0, 3}, 0), {randn({3, 2})});
  add(into({5}, 0), {randn({5})});
  add(into({1, 1}, 1), {randn({0, 2})});
  // Some parts are not used: their gradient is zero.
  add([](const Tensor& x) { return split(x, Shape{1, 2, 1}, 1)[1]; }, {randn({3, 4})});
  add([](const Tensor& x) { return split(x, Shape{1, 2, 1}, 1)[2]; }, {randn({3, 4})});
  add([](const Tensor& x) { return split(x, Shape{1, 2, 1}, 1)[0]; }, {randn({3, 4})});
  add_large(into({300, 700}, 1), {randn({100, 1000})});
  add_error<ValueError>(into({2, 2}, 0), {randn({5})}, "do not add up");
  add_error<ValueError>(into({6, -1}, 0), {randn({5})}, "negative size");
  add_error<IndexError>(into({2, 2}, 1), {randn({4})}, "split: axis 1");
  add_error<ValueError>(into({1}, 0), {randn({})}, "split");
}

OP_SAMPLES(clone) {
  for (const Shape& shape : {Shape{3, 4}, Shape{}, Shape{0, 2}, Shape{1}}) {
    add([](const Tensor& x) { return clone(x); }, {randn(shape)});
  }
  add([](const Tensor& x) { return contiguous(x.t()); }, {randn({3, 4})});
  add_large([](const Tensor& x) { return contiguous(x.t()); }, {randn({200, 300})});
}

OP_SAMPLES(to) {
  // A round trip through float32 loses the differences' precision, so the cast is checked through
  // its gradient only: there and back is the identity on numbers with few bits.
  const auto through = [](DType dtype) {
    return [dtype](const Tensor& x) { return x.to(dtype).to(kFloat64); };
  };
  for (const DType dtype : {kFloat32, kBFloat16, kFloat16}) {
    add(through(dtype), {integers_as_floats({3, 4})}).differentiable({});
    add_large(through(dtype), {integers_as_floats({40, 1000})});
  }
  add([](const Tensor& x) { return x.to(kInt64); }, {distinct({5})});
  add([](const Tensor& x) { return x.to(kBool); }, {integers_as_floats({5})});
  add([](const Tensor& x) { return x.to(kFloat64); }, {integers({2, 3}, 9)});
  add([](const Tensor& x) { return x.to(kFloat64); }, {bools({2, 3})});
}

OP_SAMPLES(cat) {
  const auto along = [](int64_t axis) {
    return [axis](const TensorList& in) { return cat(in, axis); };
  };
  add(along(0), {randn({2, 3}), randn({4, 3})});
  add(along(1), {randn({2, 3}), randn({2, 1}), randn({2, 4})});
  add(along(-2), {randn({2, 1, 3}), randn({2, 2, 3})});
  add(along(1), {randn({2, 0}), randn({2, 3})});
  add(along(0), {randn({0, 3}), randn({0, 3})});
  add(along(0), {randn({4})});
  add(along(0), {randn({4}), randn({4})}).differentiable({1});
  add([](const Tensor& x) { return cat({x, x}, 0); }, {randn({2, 3})});
  const auto stacked = [](int64_t axis) {
    return [axis](const TensorList& in) { return stack(in, axis); };
  };
  add(stacked(0), {randn({3}), randn({3})});
  add(stacked(-1), {randn({2, 3}), randn({2, 3}), randn({2, 3})});
  add(stacked(0), {randn({}), randn({})});
  add(stacked(1), {randn({0, 2}), randn({0, 2})});
  add_large(along(1), {randn({40, 1000}), randn({40, 500})});

  add_error<ValueError>(along(0), {}, "cat: no tensors");
  add_error<ValueError>(along(0), {randn({})}, "use stack()");
  add_error<ValueError>(along(0), {randn({2, 3}), randn({2, 4})}, "differ outside axis 0");
  add_error<ValueError>(along(0), {randn({2, 3}), randn({2})}, "differ outside axis 0");
  add_error<IndexError>(along(2), {randn({2, 3})}, "cat: axis 2");
  add_error<ValueError>(stacked(0), {}, "stack: no tensors");
  add_error<ValueError>(stacked(0), {randn({2}), randn({3})}, "stack: shapes");
  add_error<IndexError>(stacked(3), {randn({2}), randn({2})}, "axis 3");
}

OP_SAMPLES(pad) {
  const auto by = [](const std::vector<Padding>& padding, double value) {
    return [=](const Tensor& x) { return pad(x, padding, value); };
  };
  add(by({{1, 2}}, 0), {randn({5})});
  add(by({{0, 0}, {2, 0}}, 1.5), {randn({3, 4})});
  add(by({{0, 1}, {1, 0}, {0, 0}}, -2), {randn({2, 3, 2})});
  add(by({{1, 1}, {0, 2}}, 4), {randn({0, 3})});
  add(by({{0, 0}}, 9), {randn({3})});
  add(by({}, 9), {randn({})});
  add_large(by({{1, 1}, {3, 0}}, 0.5), {randn({40, 1000})});
  add_error<ValueError>(by({{1, 1}}, 0), {randn({2, 3})}, "1 paddings");
  add_error<ValueError>(by({{-1, 1}}, 0), {randn({2})}, "negative padding");
}

// ------------------------------------------------------------------------------- ops of the tape

OP_SAMPLES(accumulate_gradients) {
  const auto fn = [](const Tensor& a, const Tensor& b) { return accumulate(a, b); };
  for (const Shape& shape : {Shape{3, 4}, Shape{}, Shape{0}}) {
    add(fn, {randn(shape), randn(shape)});
  }
  add_large(fn, {randn({40, 1000}), randn({40, 1000})});
}

OP_SAMPLES(separate) {
  rounds(2, 3);  // two ops
  // vjp() gives each use of a tensor a handle of its own.
  const auto fn = [](const Tensor& x, const Tensor& dy) {
    return vjp([](const TensorList& in) { return mul(in[0], square(in[1])); }, dy, {x, x});
  };
  add(
      [fn](const Tensor& x, const Tensor& dy) {
        return fn(x.requires_grad() ? x : x.detach().set_requires_grad(), dy);
      },
      {randn({3, 4}), randn({3, 4})});
}

OP_SAMPLES(checkpoint) {
  rounds(2, 3);  // two ops
  const auto body = [](const TensorList& in) { return mul(tanh(in[0]), in[1]); };
  const auto fn = [body](const TensorList& in) { return checkpoint(body, in); };
  add(fn, {randn({3, 4}), randn({4})}).second_order(false);
  add(fn, {randn({0, 4}), randn({4})}).second_order(false);
  add(fn, {randn({3}), randn({3})}).differentiable({1}).second_order(false);
  add_large(fn, {randn({40, 1000}), randn({1000})}).second_order(false);
}

}  // namespace tapestry
