// Samples of dropout, with fixed keys.
#include "autograd/ops/random.h"
#include "tests/autograd/ops/op_samples.h"

namespace tapestry {

OP_SAMPLES(dropout) {
  const RandomKey key{7, 11, 5};
  const auto with = [key](double p) {
    return [=](const Tensor& x) { return dropout(x, p, true, key); };
  };
  for (const Shape& s : {Shape{}, Shape{1}, Shape{9}, Shape{2, 3, 5}, Shape{0, 4}}) {
    add(with(0.3), {randn(s)});
  }
  add(with(1), {randn({4})});
  const auto placed = [key](const LogicalPlace& place) {
    return [=](const Tensor& x) { return dropout(x, 0.5, key, place); };
  };
  add(placed({{4, 6, 5}, {1, 3, 2}, -1}), {randn({2, 3, 2})});
  add(placed({{4, 6, 5}, {1, 3, 2}, 0}), {randn({2, 3, 2})});
  add(placed({{0, 3, 5}, {9, 0, 0}, 0}), {randn({2, 3, 5})});
  add(placed({{4, 6, 5}, {0, 3, 0}, 1}), {randn({4, 3, 5})});
  add(placed({{4, 6}, {0, 3}, 1}), {randn({4, 3})});
  add_large(with(0.1), {randn({130, 300})});
  add_large(placed({{9, 130, 300}, {7, 0, 0}, 0}), {randn({2, 130, 300})});
  add_large(placed({{2, 130, 300}, {0, 9, 99}, 0}), {randn({2, 100, 200})});

  add_error<ValueError>(with(-0.1), {randn({4})}, "p must lie in [0, 1]");
  add_error<ValueError>(with(1.1), {randn({4})}, "1.1");
  add_error<TypeError>(with(0.5), {integers({4}, 3)}, "floating");
  add_error<ValueError>(placed({{4, 6}, {0, 0}, -1}), {randn({4})}, "axes of x");
  add_error<ValueError>(placed({{4, 6}, {0, 0}, 2}), {randn({4, 6})}, "sample_axis 2");
  add_error<ValueError>(placed({{4, 6}, {1, 0}, -1}), {randn({4, 6})}, "inside [4, 6]");
  add_error<ValueError>(placed({{4, 6}, {-1, 0}, -1}), {randn({2, 6})}, "inside [4, 6]");
}

}  // namespace tapestry
