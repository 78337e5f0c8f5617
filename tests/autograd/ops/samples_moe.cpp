#include "autograd/ops/elementwise.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/ops/transformer/grouped_linear.h"
#include "autograd/ops/transformer/moe_permute.h"
#include "autograd/tape/engine.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/factory.h"
#include "tests/autograd/ops/op_samples.h"

namespace tapestry {

namespace {

using GroupEnds = std::vector<int64_t>;

const GroupEnds kAllEnds[] = {{2, 5}, {0, 3, 3, 4}, {1, 1}, {4}, {0, 0, 6}, {0, 0, 0}};

Shape weight_shape(const GroupEnds& ends, int64_t outputs, int64_t inputs) {
  return {static_cast<int64_t>(ends.size()), outputs, inputs};
}

auto grouped(const GroupEnds& ends) {
  return [=](const Tensor& x, const Tensor& w) { return grouped_linear(x, w, ends); };
}

auto grouped_with_bias(const GroupEnds& ends) {
  return [=](const Tensor& x, const Tensor& w, const Tensor& b) {
    return grouped_linear(x, w, ends, b);
  };
}

// Assignments of four tokens to two experts each, of five; the last expert has none.
RowMap map_of(const std::vector<int32_t>& experts,
              int64_t topk,
              int64_t num_experts,
              const std::vector<uint8_t>& kept = {}) {
  std::vector<int64_t> counts;
  return row_map(experts, topk, num_experts, kept, counts);
}

std::vector<RowMap> sample_maps() {
  return {
      map_of({2, 0, 1, 3, 0, 2, 3, 1}, 2, 5),
      map_of({2, 0, 1, 3, 0, 2, 3, 1}, 2, 4, {1, 0, 0, 0, 1, 1, 0, 1}),
      map_of({0, 1, 2, 2, 1, 0, 1, 0, 2}, 3, 3),  // k = E
      map_of({0, 0, 0}, 1, 2),
      map_of({1, 0}, 2, 2),  // one token
      map_of({1, 0}, 2, 2, {0, 0}),
      map_of({}, 2, 4),
  };
}

// float32 gates for 16-bit rows.
Tensor unpermute_widened(const Tensor& x, const Tensor& gates, const RowMap& map) {
  return moe_unpermute(x, x.dtype() == kFloat64 ? gates : gates.to(kFloat32), map);
}

int64_t rows_of_map(const RowMap& map) { return static_cast<int64_t>(map.sources.size()); }

}  // namespace

OP_SAMPLES(grouped_linear) {
  for (const GroupEnds& ends : kAllEnds) {
    add(grouped(ends), {randn({ends.back(), 3}), randn(weight_shape(ends, 2, 3))});
    add(grouped_with_bias(ends), {randn({ends.back(), 3}), randn(weight_shape(ends, 2, 3)),
                                  randn({static_cast<int64_t>(ends.size()), 2})});
  }
  add(grouped({1, 3}), {randn({3, 1}), randn({2, 1, 1})});
  add(grouped({1, 3}), {randn({3, 0}), randn({2, 2, 0})});
  add(grouped({1, 3}), {randn({3, 2}), randn({2, 0, 2})});
  add(
      [](const Tensor& x, const Tensor& w) {
        return grouped_linear(x.t(), w.t(), {3, 4});
      },
      {randn({3, 4}), randn({2, 3, 2})});
  add_large(grouped_with_bias({400, 400, 430, 800}),
            {randn({800, 50}), randn({4, 60, 50}), randn({4, 60})})
      .threads_may_round();  // as linear

  const auto plain = grouped({2, 4});
  const auto with_bias = grouped_with_bias({2, 4});
  add_error<ValueError>(plain, {randn({4, 3}), randn({2, 3})}, "must be [groups, out, in]");
  add_error<ValueError>(plain, {randn({4, 3}), randn({2, 2, 4})}, ": x must be");
  add_error<ValueError>(plain, {randn({1, 4, 3}), randn({2, 2, 3})}, ": x must be");
  add_error<ValueError>(plain, {randn({4, 3}), randn({3, 2, 3})},
                        "grouped_linear: 2 ends for the 3 groups");
  add_error<ValueError>(plain, {randn({5, 3}), randn({2, 2, 3})}, "must end at the 5 rows");
  add_error<ValueError>(grouped({3, 2}), {randn({2, 3}), randn({2, 2, 3})},
                        "group 1 ends at 2 and begins at 3");
  add_error<ValueError>(grouped({-1, 2}), {randn({2, 3}), randn({2, 2, 3})},
                        "group 0 ends at -1 and begins at 0");
  add_error<ValueError>(grouped({}), {randn({2, 3}), randn({0, 2, 3})}, "must end at the 2 rows");
  add_error<ValueError>(with_bias, {randn({4, 3}), randn({2, 2, 3}), randn({2})},
                        "grouped_linear: bias [2] must be [groups, out]");
  add_error<TypeError>(plain, {randn({4, 3}), integers({2, 2, 3}, 5)}, "dtypes differ");
  add_error<TypeError>(plain, {integers({4, 3}, 5), integers({2, 2, 3}, 5)}, "floating");
  add_error<TypeError>(with_bias, {randn({4, 3}), randn({2, 2, 3}), integers({2, 2}, 5)},
                       "dtypes differ");
  const auto rounded = [](const Tensor& x, const Tensor& w, const Tensor& r) {
    return grouped_linear(x, w, {2, 4}, {}, r);
  };
  add_error<TypeError>(rounded, {randn({4, 3}), randn({2, 2, 3}), randn({2, 2, 3})},
                       "the rounded weight");
  add_error<ValueError>(
      [rounded](const Tensor& x, const Tensor& w, const Tensor& r) {
        return rounded(x.to(kBFloat16), w.to(kFloat32), r.to(kBFloat16));
      },
      {randn({4, 3}), randn({2, 2, 3}), randn({2, 3, 2})}, "the shape of weight");
}

OP_SAMPLES(grouped_linear_weight) {
  // The op appears where the gradient of a weight is itself recorded.
  const auto of = [](const GroupEnds& ends) {
    return [=](const Tensor& dy, const Tensor& x) {
      const EnableGradGuard guard;
      const Tensor weight =
          zeros({static_cast<int64_t>(ends.size()), dy.shape()[1], x.shape()[1]}, x.dtype())
              .set_requires_grad();
      return grad(grouped_linear(x, weight, ends), {weight}, dy, {.create_graph = true});
    };
  };
  for (const GroupEnds& ends : kAllEnds) {
    add(of(ends), {randn({ends.back(), 2}), randn({ends.back(), 3})});
  }
  add_large(of({400, 400, 430, 800}), {randn({800, 60}), randn({800, 50})}).threads_may_round();
}

OP_SAMPLES(moe_permute) {
  const auto of = [](const RowMap& map) {
    return [=](const Tensor& x) { return moe_permute(x, map); };
  };
  for (const RowMap& map : sample_maps()) {
    add(of(map), {randn({map.tokens, 3})});
  }
  add(of(sample_maps()[0]), {randn({4, 0})});
  add(of(map_of({0, 1, 1}, 1, 2)), {randn({3, 530})});
  std::vector<int32_t> experts(1600);
  for (size_t i = 0; i < experts.size(); ++i) {
    experts[i] = static_cast<int32_t>(i * i % 7);
  }
  add_large(of(map_of(experts, 2, 7)), {randn({800, 50})});

  add_error<ValueError>(of(sample_maps()[0]), {randn({5, 3})}, "moe_permute: x must be");
  add_error<ValueError>(of(sample_maps()[0]), {randn({4})}, "moe_permute: x must be");
  add_error<TypeError>(of(sample_maps()[0]), {integers({4, 3}, 5)}, "floating");
  for (const int32_t row : {-2, 1, 8}) {
    RowMap wrong = sample_maps()[0];
    wrong.rows[0] = row;
    add_error<ValueError>(of(wrong), {randn({4, 3})}, "contradicts itself");
  }
  RowMap lost = sample_maps()[0];
  lost.rows[0] = -1;
  add_error<ValueError>(of(lost), {randn({4, 3})}, "contradicts itself");
}

OP_SAMPLES(moe_unpermute) {
  const auto of = [](const RowMap& map) {
    return [=](const Tensor& x, const Tensor& gates) { return unpermute_widened(x, gates, map); };
  };
  const auto sum_of = [](const RowMap& map) {
    return [=](const Tensor& x) { return moe_unpermute(x, {}, map); };
  };
  for (const RowMap& map : sample_maps()) {
    add(of(map), {randn({rows_of_map(map), 3}), randn({map.tokens, map.topk})});
    add(sum_of(map), {randn({rows_of_map(map), 3})});
  }
  add(of(sample_maps()[0]), {randn({8, 0}), randn({4, 2})});
  add(of(map_of({0, 1, 1, 0}, 2, 2)), {randn({4, 530}), randn({2, 2})});
  add(of(sample_maps()[0]), {randn({8, 3}), randn({4, 2})}).differentiable({0});
  add(of(sample_maps()[0]), {randn({8, 3}), randn({4, 2})}).differentiable({1});
  std::vector<int32_t> experts(1600);
  for (size_t i = 0; i < experts.size(); ++i) {
    experts[i] = static_cast<int32_t>(i * i % 7);
  }
  add_large(of(map_of(experts, 2, 7)), {randn({1600, 50}), randn({800, 2})});

  const auto strict = [](const Tensor& x, const Tensor& gates) {
    return moe_unpermute(x, gates, sample_maps()[0]);
  };
  add_error<ValueError>(strict, {randn({4, 3}), randn({4, 2})}, "moe_unpermute: x must be");
  add_error<ValueError>(strict, {randn({8, 3}), randn({2, 4})}, ": gates must be");
  add_error<TypeError>(strict, {integers({8, 3}, 5), randn({4, 2})}, "floating");
  add_error<TypeError>(
      [strict](const Tensor& x, const Tensor& g) { return strict(x, g.to(kFloat32)); },
      {randn({8, 3}), randn({4, 2})}, "gates for float64 must be float64");
}

}  // namespace tapestry
