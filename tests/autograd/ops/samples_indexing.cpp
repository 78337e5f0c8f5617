#include "autograd/ops/elementwise.h"
#include "autograd/ops/indexing.h"
#include "autograd/ops/inplace.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/engine.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/factory.h"
#include "tests/autograd/ops/op_samples.h"

namespace tapestry {

namespace {

TensorList both(const ValuesAndIndices& result) { return {result.values, result.indices}; }

Tensor places(const std::vector<int64_t>& values, const Shape& shape) {
  return tensor(values, shape);
}

// The gradient of f at x for the upstream gradient dy, recorded.
template <class F>
auto gradient_of(const F& f) {
  return [f](const Tensor& x, const Tensor& dy) {
    const EnableGradGuard guard;
    const Tensor base = x.requires_grad() ? x : x.detach().set_requires_grad();
    return grad(f(base), {base}, dy, {.create_graph = true}).at(0);
  };
}

}  // namespace

OP_SAMPLES(gather) {
  const auto along = [](int64_t axis) {
    return [axis](const Tensor& x, const Tensor& index) { return gather(x, axis, index); };
  };
  add(along(0), {randn({6}), integers({9}, 6)});
  add(along(1), {randn({3, 5}), integers({3, 3}, 5)});
  add(along(0), {randn({5, 4}), integers({3, 4}, 5)});
  add(along(0), {randn({4, 5, 3}), integers({2, 4, 3}, 4)});
  add(along(1), {randn({2, 3, 4}), integers({2, 5, 2}, 3)});
  add(along(-1), {randn({2, 3, 4}), integers({1, 3, 6}, 4)});
  add(along(0), {randn({3, 4}), integers({0, 4}, 3)});
  add(along(0), {randn({}), integers({}, 1)});
  add_large(along(1), {randn(kLarge), integers(kLarge, 1000)});
  add_large(along(0), {randn(kLarge), integers(kLarge, 40)});
  add_error<IndexError>(along(1), {randn({2, 3}), places({0, 1, 2, 3}, {2, 2})},
                        "gather: index 3 at position [1, 1] is outside [0, 3) of axis 1");
  add_error<IndexError>(along(0), {randn({3}), places({-1}, {1})}, "gather: index -1");
  add_error<ValueError>(along(0), {randn({3, 2}), integers({3}, 3)}, "as many axes as x");
  add_error<ValueError>(along(0), {randn({3, 2}), integers({1, 3}, 3)}, "no larger except");
  add_error<TypeError>(along(0), {randn({3}), randn({3})}, "int64 or int32");
  add_error<IndexError>(along(1), {randn({3}), integers({3}, 3)}, "gather: axis 1");
}

OP_SAMPLES(gather_backward) {
  const Tensor index = places({0, 2, 2, 1, 0, 0}, {2, 3});
  add(gradient_of([index](const Tensor& x) { return gather(x, 1, index); }),
      {randn({2, 3}), randn({2, 3})});
  add(gradient_of([](const Tensor& x) { return sort(x, 0).values; }),
      {distinct({4, 2}), randn({4, 2})});
  add(gradient_of([](const Tensor& x) { return max(x, 0).values; }),
      {distinct({4, 2}), randn({2})});
}

OP_SAMPLES(scatter) {
  const auto along = [](int64_t axis) {
    return [axis](const Tensor& x, const Tensor& index, const Tensor& src) {
      return scatter(x, axis, index, src);
    };
  };
  add(along(0), {randn({5}), places({3, 0, 4}, {3}), randn({3})});
  add(along(1), {randn({2, 4}), places({3, 0, 1, 2, 3, 0}, {2, 3}), randn({2, 3})});
  // Places that are written twice: only the last value has a gradient.
  add(along(0), {randn({3, 2}), places({1, 0, 1, 0, 2, 2, 1, 1}, {4, 2}), randn({4, 2})});
  // A source larger than the index.
  add(along(0), {randn({3, 2}), places({1, 0}, {2, 1}), randn({4, 2})});
  add(along(0), {randn({3, 4}), integers({0, 4}, 3), randn({0, 4})});
  add(along(0), {randn({}), integers({}, 1), randn({})});
  add([](const Tensor& x, const Tensor& index) { return scatter(x, 1, index, -1.5); },
      {randn({2, 4}), integers({2, 3}, 4)});
  add_large(along(1), {randn(kLarge), integers(kLarge, 1000), randn(kLarge)});
  add_large(along(0), {randn(kLarge), integers(kLarge, 40), randn(kLarge)});
  add_error<ValueError>(along(0), {randn({3}), integers({2}, 3), randn({1})},
                        "scatter: src [1] does not cover index [2]");
  add_error<TypeError>(along(0), {randn({3}), integers({2}, 3), integers({2}, 3)}, "scatter: x is");
  add_error<IndexError>(along(0), {randn({3}), places({5}, {1}), randn({1})}, "scatter: index 5");
}

OP_SAMPLES(scatter_add) {
  const auto along = [](int64_t axis) {
    return [axis](const Tensor& x, const Tensor& index, const Tensor& src) {
      return scatter_add(x, axis, index, src);
    };
  };
  add(along(0), {randn({5}), integers({9}, 5), randn({9})});
  add(along(1), {randn({3, 5}), integers({3, 8}, 5), randn({3, 8})});
  add(along(0), {randn({4, 3}), integers({6, 3}, 4), randn({6, 3})});
  add(along(1), {randn({4, 5, 3}), integers({2, 4, 3}, 5), randn({2, 4, 3})});
  add(along(0), {randn({3, 4}), integers({0, 4}, 3), randn({0, 4})});
  add(along(0), {randn({2}), integers({2}, 2), randn({3})});
  add_large(along(1), {randn(kLarge), integers(kLarge, 1000), randn(kLarge)});
  add_large(along(0), {randn({8, 1000}), integers(kLarge, 8), randn(kLarge)});
  add_error<ValueError>(along(0), {randn({3}), integers({2}, 3), randn({1})}, "does not cover");
  add_error<TypeError>(along(0), {randn({3}), integers({2}, 3), integers({2}, 3)}, "x is float64");
  add_error<IndexError>(along(0), {randn({3}), places({3}, {1}), randn({1})}, "outside [0, 3)");
}

OP_SAMPLES(index_select) {
  const auto along = [](int64_t axis) {
    return [axis](const Tensor& x, const Tensor& index) { return index_select(x, axis, index); };
  };
  add(along(0), {randn({6}), integers({9}, 6)});
  add(along(0), {randn({5, 3}), integers({4}, 5)});
  add(along(1), {randn({3, 5}), integers({7}, 5)});
  add(along(-2), {randn({2, 4, 3}), integers({4}, 4)});
  add(along(0), {randn({4, 3}), integers({0}, 4)});
  add(along(0), {randn({1}), integers({1}, 1)});
  add(along(0), {randn({3, 2}), integers({}, 3)});
  add(along(0), {randn({}), integers({1}, 1)});
  add_large(along(0), {randn(kLarge), integers({64}, 40)});
  add_large(along(1), {randn(kLarge), integers({900}, 1000)});
  add_error<IndexError>(along(0), {randn({3, 2}), places({0, 3}, {2})},
                        "index_select: index 3 at position [1] is outside [0, 3) of axis 0");
  add_error<IndexError>(along(0), {randn({3, 2}), places({-1}, {1})}, "index -1");
  add_error<ValueError>(along(0), {randn({3, 2}), integers({1, 2}, 3)}, "must be a vector");
  add_error<TypeError>(along(0), {randn({3}), bools({3})}, "indices must be");

  // By coordinates.
  const auto at = [](const Tensor& x, const Tensor& i, const Tensor& j) {
    return index(x, {i, j});
  };
  add(at, {randn({3, 4, 2}), places({0, 2, -1}, {3}), places({-4, 1, 1}, {3})});
  add(at, {randn({3, 4}), integers({2, 1}, 3), integers({3}, 4)});
  add_error<IndexError>(at, {randn({3, 4}), places({0}, {1}), places({-5}, {1})},
                        "index: index -5 at position [0] is outside [-4, 4) of axis 1");
  add_error<ValueError>(at, {randn({3}), integers({1}, 3), integers({1}, 3)}, "2 index tensors");
  // Other functions that pick entries.
  add([](const Tensor& x, const Tensor& mask) { return masked_select(x, mask); },
      {randn({3, 4}), bools({4})});
  add(
      [](const Tensor& x) {
        return repeat_interleave(x, places({2, 0, 3}, {3}), 0);
      },
      {randn({3, 2})});
}

OP_SAMPLES(index_select_backward) {
  const Tensor index = places({0, 2, 2}, {3});
  add(gradient_of([index](const Tensor& x) { return index_select(x, 1, index); }),
      {randn({2, 3}), randn({2, 3})});
}

OP_SAMPLES(index_add) {
  const auto along = [](int64_t axis) {
    return [axis](const Tensor& x, const Tensor& index, const Tensor& src) {
      return index_add(x, axis, index, src);
    };
  };
  add(along(0), {randn({4}), integers({6}, 4), randn({6})});
  add(along(0), {randn({4, 2}), integers({5}, 4), randn({5, 2})});
  add(along(1), {randn({2, 3, 2}), integers({4}, 3), randn({2, 4, 2})});
  add(along(0), {randn({4, 2}), integers({0}, 4), randn({0, 2})});
  add_large(along(0), {randn({8, 1000}), integers({40}, 8), randn(kLarge)});
  add([](const Tensor& x, const Tensor& i,
         const Tensor& values) { return index_put(x, {i}, values, /*accumulate=*/true); },
      {randn({3, 2}), places({0, -1, 2, 0}, {4}), randn({2})});
  add_error<ValueError>(along(0), {randn({4, 2}), integers({3}, 4), randn({2, 2})},
                        "index_add: src must have shape [3, 2]");
  add_error<TypeError>(along(0), {randn({4}), integers({1}, 4), integers({1}, 4)}, "index_add: x");
}

OP_SAMPLES(index_copy) {
  const auto along = [](int64_t axis) {
    return [axis](const Tensor& x, const Tensor& index, const Tensor& src) {
      return index_copy(x, axis, index, src);
    };
  };
  add(along(0), {randn({4}), places({2, 0}, {2}), randn({2})});
  add(along(1), {randn({2, 3, 2}), places({1, 1, 0}, {3}), randn({2, 3, 2})});
  add(along(0), {randn({4, 2}), integers({0}, 4), randn({0, 2})});
  add_large(along(0), {randn({8, 1000}), integers({40}, 8), randn(kLarge)});
  const auto put = [](const Tensor& x, const Tensor& i, const Tensor& j, const Tensor& values) {
    return index_put(x, {i, j}, values);
  };
  add(put, {randn({3, 4}), places({0, -1, 0}, {3}), places({1, 1, 1}, {3}), randn({3})});
  add(put, {randn({3, 4, 2}), integers({2, 1}, 3), integers({2}, 4), randn({1, 2})});
  add_error<ValueError>(along(0), {randn({4}), integers({2}, 4), randn({3})},
                        "index_copy: src must have shape [2]");
  add_error<ValueError>(put, {randn({3, 4}), integers({3}, 3), integers({3}, 4), randn({2})},
                        "index_put");
  add_error<ValueError>(put, {randn({3, 4}), integers({3}, 3), integers({3}, 4), randn({2, 3})},
                        "do not broadcast to [3]");
  add_error<TypeError>(put, {randn({3, 4}), integers({3}, 3), integers({3}, 4), integers({3}, 4)},
                       "index_put: x is float64");
}

OP_SAMPLES(nonzero) {
  const auto fn = [](const Tensor& x) { return tapestry::nonzero(x); };
  for (const Shape& shape : {Shape{5}, Shape{3, 4}, Shape{}, Shape{0, 2}}) {
    add(fn, {integers_as_floats(shape)});
    add(fn, {bools(shape)});
  }
  const auto select = [](const Tensor& x, const Tensor& m) { return masked_select(x, m); };
  add_error<TypeError>(select, {randn({3}), randn({3})}, "mask must be bool");
  add_error<ValueError>(select, {randn({3}), bools({2, 3})}, "does not broadcast");
}

OP_SAMPLES(one_hot) {
  const auto fn = [](int64_t classes) {
    return [classes](const Tensor& i) { return one_hot(i, classes); };
  };
  add(fn(5), {integers({4}, 5)});
  add(fn(-1), {integers({2, 3}, 5)});
  add(fn(3), {integers({}, 3)});
  add(fn(3), {integers({0}, 3)});
  add_error<IndexError>(fn(3), {places({1, 3}, {2})}, "one_hot: index 3 at position [1]");
  add_error<ValueError>(fn(-1), {integers({0}, 3)}, "empty tensor");
  add_error<ValueError>(fn(0), {integers({1}, 1)}, "must be positive");
  add_error<TypeError>(fn(3), {randn({2})}, "indices must be");
}

#define TRIANGLE_SAMPLES(op_name)                                                                \
  OP_SAMPLES(op_name) {                                                                          \
    for (const int64_t diagonal : {-100, -2, -1, 0, 1, 3, 100}) {                                \
      const auto fn = [diagonal](const Tensor& x) { return tapestry::op_name(x, diagonal); };    \
      for (const Shape& s : {Shape{3, 3}, Shape{2, 4}, Shape{4, 2}, Shape{2, 3, 3}, Shape{0, 3}, \
                             Shape{3, 0}, Shape{1, 1}}) {                                        \
        add(fn, {randn(s)});                                                                     \
      }                                                                                          \
    }                                                                                            \
    add_large([](const Tensor& x) { return tapestry::op_name(x); }, {randn({200, 200})});        \
    add_error<ValueError>([](const Tensor& x) { return tapestry::op_name(x); }, {randn({3})},    \
                          #op_name ": needs at least two");                                      \
  }

TRIANGLE_SAMPLES(tril)
TRIANGLE_SAMPLES(triu)

OP_SAMPLES(flip) {
  const auto by = [](Shape axes) { return [axes](const Tensor& x) { return flip(x, axes); }; };
  add(by({0}), {randn({5})});
  add(by({-1}), {randn({2, 3})});
  add(by({0, 2}), {randn({2, 3, 2})});
  add(by({}), {randn({2, 3})});
  add(by({}), {randn({})});
  add(by({0}), {randn({0, 3})});
  add_large(by({0, 1}), {randn(kLarge)});
  add_error<IndexError>(by({2}), {randn({2, 3})}, "flip: axis 2");
  add_error<ValueError>(by({0, 0}), {randn({2, 3})}, "named twice");
}

OP_SAMPLES(sort) {
  const auto along = [](int64_t axis, bool descending) {
    return [=](const Tensor& x) { return both(sort(x, axis, descending)); };
  };
  for (const bool descending : {false, true}) {
    add(along(0, descending), {distinct({7})});
    add(along(-1, descending), {distinct({3, 4})});
    add(along(0, descending), {distinct({3, 4})});
    add(along(1, descending), {distinct({2, 3, 2})});
    add(along(0, descending), {distinct({0, 3})});
    add(along(1, descending), {distinct({0, 3})});
    add(along(0, descending), {distinct({})});
    add(along(1, descending), {integers({3, 12}, 3)});
  }
  add_large(along(1, false), {randn(kLarge)});
  add_error<IndexError>(along(1, false), {randn({3})}, "sort: axis 1");
}

OP_SAMPLES(topk) {
  const auto fn = [](int64_t k, int64_t axis, bool largest) {
    return [=](const Tensor& x) { return both(topk(x, k, axis, largest)); };
  };
  for (const bool largest : {false, true}) {
    add(fn(3, 0, largest), {distinct({7})});
    add(fn(2, -1, largest), {distinct({3, 4})});
    add(fn(2, 0, largest), {distinct({3, 4})});
    add(fn(3, 1, largest), {distinct({2, 3, 2})});
    add(fn(0, 0, largest), {distinct({3})});
    add(fn(2, 1, largest), {distinct({0, 3})});
    add(fn(1, 0, largest), {distinct({})});
  }
  add_large(fn(8, 1, true), {randn(kLarge)});
  add_error<ValueError>(fn(4, 0, true), {randn({3})}, "topk: k = 4 of the 3 entries of axis 0");
  add_error<ValueError>(fn(-1, 0, true), {randn({3})}, "topk: k = -1");
  add_error<IndexError>(fn(1, 1, true), {randn({3})}, "topk: axis 1");
}

OP_SAMPLES(argsort) {
  const auto along = [](int64_t axis, bool descending) {
    return [=](const Tensor& x) { return argsort(x, axis, descending); };
  };
  for (const bool descending : {false, true}) {
    add(along(0, descending), {distinct({7})});
    add(along(1, descending), {distinct({3, 4})});
    add(along(0, descending), {distinct({3, 4})});
    add(along(0, descending), {distinct({})});
    add(along(0, descending), {distinct({0})});
  }
  add_error<IndexError>(along(1, false), {randn({3})}, "argsort: axis 1");
}

OP_SAMPLES(unique) {
  const auto fn = [](const Tensor& x) {
    const UniqueResult result = unique(x);
    return TensorList{result.values, result.inverse, result.counts};
  };
  add(fn, {integers({9}, 4)});
  add(fn, {integers_as_floats({3, 4})});
  add(fn, {bools({5})});
  add(fn, {integers({}, 3)});
  add(fn, {integers({0}, 3)});
}

OP_SAMPLES(copy_) {
  const auto overwrite = [](const Tensor& x, const Tensor& source) {
    return copy_(mul(x, 2), source);
  };
  add(overwrite, {randn({3, 4}), randn({3, 4})});
  add(overwrite, {randn({3, 4}), randn({4})});
  add(overwrite, {randn({3, 4}), randn({})});
  add(overwrite, {randn({0, 4}), randn({4})});
  add(overwrite, {randn({2}), integers({2}, 5)});
  add([](const Tensor& x) { return zero_(mul(x, 2)); }, {randn({3})});
  add_large(overwrite, {randn(kLarge), randn({1000})});
  add_error<ValueError>(overwrite, {randn({3}), randn({2, 3})}, "copy_: the source [2, 3]");
}

}  // namespace tapestry
