#include "autograd/ops/matmul.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tensor/factory.h"
#include "tests/autograd/ops/op_samples.h"

namespace tapestry {

OP_SAMPLES(matmul) {
  const auto fn = [](const Tensor& a, const Tensor& b) { return matmul(a, b); };
  const std::pair<Shape, Shape> shapes[] = {{{3}, {3}},
                                            {{3}, {3, 2}},
                                            {{4, 3}, {3}},
                                            {{4, 3}, {3, 2}},
                                            {{2, 4, 3}, {2, 3, 2}},
                                            {{2, 4, 3}, {3, 2}},
                                            {{4, 3}, {2, 3, 2}},
                                            {{2, 2, 4, 3}, {2, 2, 3, 2}},
                                            {{2, 1, 4, 3}, {3, 3, 2}},
                                            {{2, 2, 4, 3}, {3}},
                                            {{3}, {2, 3, 2}},
                                            {{1, 3}, {3, 1}},
                                            {{1, 1}, {1, 1}},
                                            {{3, 0}, {0, 2}},
                                            {{0, 3}, {3, 2}},
                                            {{2, 0, 3}, {3, 2}},
                                            {{0, 4, 3}, {3, 2}},
                                            {{2, 4, 0}, {0, 2}},
                                            {{3, 1, 2}, {2, 2}},
                                            {{3, 1, 4}, {3, 4, 1}},
                                            {{2, 1, 2, 3}, {1, 2, 3, 2}}};
  for (const auto& [a, b] : shapes) {
    add(fn, {randn(a), randn(b)});
  }
  // Operands that are transposed, permuted among the batch axes, or both.
  add([](const Tensor& a, const Tensor& b) { return matmul(a.t(), b.t()); },
      {randn({3, 4}), randn({2, 3})});
  add(
      [](const Tensor& a, const Tensor& b) {
        return matmul(a.permute({0, 2, 1, 3}), b.permute({0, 2, 3, 1}));
      },
      {randn({2, 3, 2, 4}), randn({2, 3, 2, 4})});
  // A shared right side under batch axes in every order.
  for (const Shape& axes : {Shape{1, 0, 2}, Shape{2, 0, 1}, Shape{1, 2, 0}, Shape{0, 2, 1}}) {
    add([axes](const Tensor& a, const Tensor& b) { return matmul(a.permute(axes), b); },
        {randn({3, 3, 3}), randn({3, 2})});
  }
  add([](const Tensor& a, const Tensor& b) { return bmm(a, b); },
      {randn({2, 3, 4}), randn({2, 4, 2})});
  add([](const Tensor& a, const Tensor& b) { return dot(a, b); }, {randn({4}), randn({4})});
  // BLAS cuts one large product for its team, and the edges of the pieces round otherwise.
  add_large(fn, {randn({150, 130}), randn({130, 140})}).threads_may_round();
  add_large(fn, {randn({20, 40, 30}), randn({20, 30, 40})});
  add_large(fn, {randn({20, 40, 30}), randn({30, 40})}).threads_may_round();

  add_error<ValueError>(fn, {randn({4, 3}), randn({5, 2})}, "differ: a [4, 3], b [5, 2]");
  add_error<ValueError>(fn, {randn({4, 3}), randn({4})}, "inner sizes differ");
  add_error<ValueError>(fn, {randn({}), randn({4})}, "operands must have axes");
  add_error<ValueError>(fn, {randn({2, 4, 3}), randn({3, 3, 2})}, "matmul: shapes");
  add_error<TypeError>(fn, {randn({2, 2}), integers({2, 2}, 3)}, "matmul: dtypes differ");
  add_error<TypeError>(fn, {bools({2, 2}), bools({2, 2})}, "not defined for bool");
  const auto batched = [](const Tensor& a, const Tensor& b) { return bmm(a, b); };
  add_error<ValueError>(batched, {randn({2, 3}), randn({3, 2})}, "bmm: needs [batch, m, k]");
  add_error<ValueError>(batched, {randn({2, 2, 3}), randn({3, 3, 2})}, "bmm");
  add_error<ValueError>([](const Tensor& a, const Tensor& b) { return dot(a, b); },
                        {randn({3}), randn({4})}, "dot: needs two vectors");
  add_error<ValueError>([](const Tensor& a, const Tensor& b) { return outer(a, b); },
                        {randn({3}), randn({4, 1})}, "outer: needs two vectors");

  // einsum is made of it.
  const auto sum_by = [](const char* equation) {
    return [equation](const TensorList& in) { return einsum(equation, in); };
  };
  add(sum_by("ij,jk->ik"), {randn({3, 4}), randn({4, 2})});
  add(sum_by("bij,bjk"), {randn({2, 3, 4}), randn({2, 4, 2})});
  add(sum_by("bhid, bhjd -> bhij"), {randn({2, 2, 3, 2}), randn({2, 2, 2, 2})});
  add(sum_by("i,j->ji"), {randn({3}), randn({2})});
  add(sum_by("ij,ij->"), {randn({3, 2}), randn({3, 2})});
  add(sum_by("ab,bc,cd->da"), {randn({2, 3}), randn({3, 2}), randn({2, 3})})
      .rounds(2, 3);  // two products
  add(sum_by("ik,jkl,il->ij"), {randn({2, 3}), randn({2, 3, 2}), randn({2, 2})}).rounds(2, 3);
  add(sum_by("aib,cb->ci"), {randn({2, 3, 2}), randn({2, 2})});
  add(sum_by("ii,i->i"), {randn({3, 3}), randn({3})});
  add(sum_by("ij,jk->ik"), {randn({0, 4}), randn({4, 2})});
  add(sum_by("ij,jk->ik"), {randn({3, 0}), randn({0, 2})});
}

OP_SAMPLES(linear) {
  const auto fn = [](const Tensor& x, const Tensor& w, const Tensor& b) { return linear(x, w, b); };
  const auto plain = [](const Tensor& x, const Tensor& w) { return linear(x, w); };
  for (const Shape& s :
       {Shape{4, 3}, Shape{2, 4, 3}, Shape{3}, Shape{0, 3}, Shape{1, 1}, Shape{2, 1, 2, 3}}) {
    add(fn, {randn(s), randn({2, s.back()}), randn({2})});
    add(plain, {randn(s), randn({2, s.back()})});
  }
  add(fn, {randn({4, 0}), randn({2, 0}), randn({2})});
  add(fn, {randn({4, 3}), randn({0, 3}), randn({0})});
  // Sequence before batch, and a transposed weight.
  add(
      [](const Tensor& x, const Tensor& w) {
        return linear(x.permute({1, 0, 2}), w.t());
      },
      {randn({2, 3, 4}), randn({4, 2})});
  add_large(fn, {randn({20, 40, 50}), randn({60, 50}), randn({60})}).threads_may_round();

  add_error<ValueError>(fn, {randn({4, 3}), randn({2, 4}), randn({2})}, "linear: the last axis");
  add_error<ValueError>(fn, {randn({4, 3}), randn({3}), randn({2})}, "one axis, [3], takes a bias");
  add_error<ValueError>(fn, {randn({4, 3}), randn({2, 3, 3}), randn({2})}, "weight must be");
  add_error<ValueError>(fn, {randn({4, 3}), randn({2, 3}), randn({3})}, "linear: bias [3]");
  add_error<ValueError>(fn, {randn({}), randn({2, 3}), randn({2})}, "linear: the last axis");
  add_error<TypeError>(fn, {randn({4, 3}), integers({2, 3}, 5), randn({2})}, "dtypes differ");
  add_error<TypeError>(fn, {randn({4, 3}), randn({2, 3}), integers({2}, 5)}, "dtypes differ");
}

}  // namespace tapestry
