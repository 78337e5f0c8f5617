// Ops inside a OneOrderScope: attention of packed documents has the bits of attention over a cache,
// and what is recomputed those of the first time.
#include "autograd/kernels/machine/one_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "autograd/kernels/machine/team.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/map.h"
#include "autograd/ops/matmul.h"
#include "autograd/ops/random.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/ops/transformer/attention.h"
#include "autograd/ops/transformer/cached_attention.h"
#include "autograd/tape/checkpoint.h"
#include "autograd/tape/engine.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tape/recompute.h"
#include "autograd/tensor/factory.h"
#include "tests/cpu_levels.h"

namespace tapestry {
namespace {

namespace one_order_ops {

bool same_bits(const Tensor& a, const Tensor& b) {
  const Tensor x = dense(a);
  const Tensor y = dense(b);
  return x.shape() == y.shape() && x.dtype() == y.dtype() &&
         std::memcmp(x.raw(), y.raw(), static_cast<size_t>(x.numel() * size_of(x.dtype()))) == 0;
}

double largest_of(const Tensor& x) { return amax(abs(x.to(kFloat64)), {0, 1, 2, 3}).item(); }

struct Kind {
  std::string name;
  int64_t heads = 4;
  int64_t groups = 2;
  int64_t dim = 16;
  int64_t value_dim = 16;
  std::optional<int64_t> window = std::nullopt;
  double cap = 0;
  bool slopes = false;
  bool sinks = false;
};

std::vector<Kind> kinds() {
  return {{.name = "groups"},
          {.name = "one group of wide heads", .heads = 6, .groups = 1, .dim = 72, .value_dim = 40},
          {.name = "window", .window = 37},
          {.name = "long window", .window = 300, .cap = 3},
          {.name = "slopes", .heads = 3, .groups = 3, .dim = 20, .value_dim = 20, .slopes = true},
          {.name = "sinks", .window = 5, .sinks = true}};
}

/// Rows [begin, end) of the tokens.
Tensor tokens(const Tensor& x, int64_t begin, int64_t end) { return x.slice(2, begin, end); }

struct Operands {
  Tensor q, k, v, sinks;
  std::vector<double> slopes;
};

/// One document of a row, its queries `step` at a time over a cache of a larger capacity.
Tensor over_cache(const Kind& kind, const Operands& all, int64_t begin, int64_t end, int64_t step) {
  const NoGradGuard guard;
  const auto cached = [&](const Tensor& x) {
    return cat({tokens(x, begin, end), zeros({1, x.size(1), 50, x.size(3)}, x.dtype())}, 2);
  };
  const Tensor k = cached(all.k);
  const Tensor v = cached(all.v);
  TensorList parts;
  for (int64_t p = 0; p < end - begin; p += step) {
    const int64_t count = std::min(step, end - begin - p);
    parts.push_back(cached_attention(tokens(all.q, begin + p, begin + p + count), k, v, {p},
                                     {.window_left = kind.window,
                                      .score_cap = kind.cap,
                                      .alibi_slopes = all.slopes,
                                      .sinks = all.sinks}));
  }
  return cat(parts, 2);
}

void check_attention(const Kind& kind, DType dtype) {
  SCOPED_TRACE(kind.name + (dtype == kFloat32 ? ", float32" : ", bfloat16"));
  constexpr int64_t kLength = 700;
  const std::vector<int64_t> starts = {3, 4, 91, 420};
  const std::vector<int64_t> edges = {0, 3, 4, 91, 420, kLength};
  const Operands all = {.q = randn({1, kind.heads, kLength, kind.dim}).to(dtype),
                        .k = randn({1, kind.groups, kLength, kind.dim}).to(dtype),
                        .v = randn({1, kind.groups, kLength, kind.value_dim}).to(dtype),
                        .sinks = kind.sinks ? randn({kind.heads}) : Tensor(),
                        .slopes = kind.slopes ? alibi_slopes(kind.heads) : std::vector<double>()};
  const AttentionOptions options = {
      .causal = true,
      .window_left = kind.window,
      .score_cap = kind.cap,
      .document_starts = document_starts(std::vector<std::vector<int64_t>>{starts}, kLength),
      .alibi_slopes = all.slopes,
      .sinks = all.sinks};
  const Tensor outside = scaled_dot_product_attention(all.q, all.k, all.v, options);
  const OneOrderScope scope;
  const Tensor packed = scaled_dot_product_attention(all.q, all.k, all.v, options);
  EXPECT_LE(largest_of(sub(packed.to(kFloat32), outside.to(kFloat32))),
            dtype == kFloat32 ? 1e-5 : 0.05);
  for (size_t d = 0; d + 1 < edges.size(); ++d) {
    const Tensor own = tokens(packed, edges[d], edges[d + 1]);
    for (const int64_t step : {1, 5, 130, 700}) {
      EXPECT_TRUE(same_bits(over_cache(kind, all, edges[d], edges[d + 1], step), own))
          << "document " << d << ", " << step << " queries at a time";
    }
  }
}

TEST(OneOrder, DocumentsHaveTheBitsOfTextsOverACache) {
  const int threads = num_threads();
  at_every_cpu_level([&] {
    for (const Kind& kind : kinds()) {
      for (const DType dtype : {kFloat32, kBFloat16}) {
        set_num_threads(kind.sinks ? 2 : 1);
        check_attention(kind, dtype);
      }
    }
  });
  set_num_threads(threads);
}

/// Gradients are those of the same attention outside.
TEST(OneOrder, AttentionHasTheGradientsOfAnyAttention) {
  constexpr int64_t kLength = 300;
  Operands all = {.q = randn({2, 4, kLength, 16}),
                  .k = randn({2, 2, kLength, 16}),
                  .v = randn({2, 2, kLength, 16}),
                  .sinks = randn({4}),
                  .slopes = {}};
  const TensorList inputs = {all.q, all.k, all.v, all.sinks};
  for (Tensor t : inputs) {
    t.set_requires_grad();
  }
  const Tensor dy = randn(all.q.shape());
  Tensor maxima[2];
  const auto gradients = [&](bool inside) {
    Tensor& most = maxima[inside ? 1 : 0];
    most = full({4}, -std::numeric_limits<double>::infinity(), kFloat32);
    Tensor out;
    {
      const OneOrderScope scope(inside);
      out = scaled_dot_product_attention(
          all.q, all.k, all.v,
          {.causal = true,
           .window_left = 140,
           .score_cap = 4,
           .document_starts =
               document_starts(std::vector<std::vector<int64_t>>{{7, 9, 200}, {299}}, kLength),
           .sinks = all.sinks,
           .max_logits = most});
    }
    return grad(out, inputs, dy);
  };
  const TensorList expected = gradients(false);
  const TensorList found = gradients(true);
  for (size_t i = 0; i < expected.size(); ++i) {
    const Tensor difference = sub(found[i], expected[i]).reshape({1, 1, 1, expected[i].numel()});
    EXPECT_LE(largest_of(difference), 2e-4) << "input " << i;
  }
  for (int64_t head = 0; head < 4; ++head) {
    EXPECT_NEAR(maxima[1].data<float>()[head], maxima[0].data<float>()[head], 1e-5);
  }
}

/// Rows of tokens of several texts, with bias, and a weight of one row, whose layout is ambiguous.
TEST(OneOrder, ALinearLayersRowsHaveTheirBitsInAnyBatch) {
  at_every_cpu_level([] {
    for (const DType dtype : {kFloat32, kBFloat16}) {
      for (const int64_t out : {1, 70}) {
        const OneOrderScope scope;
        const Tensor x = randn({3, 90, 200}).to(dtype);
        const Tensor weight = randn({out, 200}).to(dtype);
        const Tensor bias = randn({out}).to(dtype);
        const Tensor all = linear(x, weight, bias);
        const Tensor flipped = linear(x.transpose(0, 1), weight, bias).transpose(0, 1);
        EXPECT_TRUE(same_bits(flipped, all));
        for (const int64_t row : {0, 41, 89}) {
          const auto one = [&](const Tensor& t) { return t.slice(1, row, row + 1); };
          EXPECT_TRUE(same_bits(linear(one(x), weight, bias), one(all))) << name_of(dtype);
        }
      }
    }
  });
}

/// A product whose bits outside of the scope are others: without that the tests below see nothing.
struct Product {
  Tensor x = randn({150, 2000});
  Tensor weight = randn({60, 2000});
  Tensor outside = linear(x, weight);
  Tensor inside = [this] {
    const OneOrderScope scope;
    return linear(x, weight);
  }();
};

TEST(OneOrder, WhatACheckpointRunsAgainHasTheBitsOfTheFirstTime) {
  Product product;
  ASSERT_FALSE(same_bits(product.inside, product.outside));
  TensorList seen;
  product.weight.set_requires_grad();
  const auto layer = [&](const Tensor& x) {
    seen.push_back(linear(x, product.weight).detach());
    return linear(x, product.weight);
  };
  Tensor out;
  {
    const OneOrderScope scope;
    out = checkpoint([&](const TensorList& in) { return layer(in[0]); }, {product.x});
  }
  EXPECT_FALSE(in_one_order());
  const Tensor gradient = grad(sum(out), {product.weight})[0];
  ASSERT_EQ(seen.size(), 2U);
  EXPECT_TRUE(same_bits(seen[0], product.inside));
  EXPECT_TRUE(same_bits(seen[1], product.inside));
}

TEST(OneOrder, DroppedValuesAreMadeAgainAsTheyWere) {
  Product product;
  ASSERT_FALSE(same_bits(product.inside, product.outside));
  product.weight.set_requires_grad();
  RecomputedValues values;
  Tensor y;
  {
    const OneOrderScope order;
    const RecomputeScope scope(&values);
    y = linear(product.x, product.weight);
  }
  EXPECT_GT(values.drop(), 0);
  EXPECT_TRUE(same_bits(y, product.inside));
}

/// The same gradient whether backward() is called inside or outside.
TEST(OneOrder, BackwardPassesRunOutside) {
  Product product;
  product.x.set_requires_grad();
  const auto gradient = [&](bool inside) {
    const Tensor out = linear(product.x, product.weight);
    const OneOrderScope scope(inside);
    return grad(sum(mul(out, out)), {product.x})[0];
  };
  EXPECT_TRUE(same_bits(gradient(true), gradient(false)));
}

}  // namespace one_order_ops

}  // namespace
}  // namespace tapestry
