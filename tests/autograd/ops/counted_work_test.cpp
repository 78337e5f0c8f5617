// FLOPs that ops count against the formulas of their products.
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "autograd/kernels/gemm/gemm_grouped.h"
#include "autograd/kernels/machine/team.h"
#include "autograd/kernels/machine/work_counter.h"
#include "autograd/ops/ops.h"
#include "autograd/tape/engine.h"
#include "autograd/tensor/factory.h"

namespace tapestry {
namespace {

double flops_of(const std::function<void()>& work) {
  const double before = kernels::work_counter().flops;
  work();
  return kernels::work_counter().flops - before;
}

TEST(CountedWork, ProductsAndTheirBackward) {
  Tensor x = randn({5, 7});
  Tensor w = randn({3, 7});
  x.set_requires_grad();
  w.set_requires_grad();
  Tensor y;
  EXPECT_EQ(flops_of([&] { y = linear(x, w); }), 2.0 * 5 * 7 * 3);
  EXPECT_EQ(flops_of([&] { sum(y).backward(); }), 4.0 * 5 * 7 * 3);
  EXPECT_EQ(flops_of([&] { matmul(randn({4, 5, 7}), randn({4, 7, 2})); }), 2.0 * 4 * 5 * 7 * 2);
  EXPECT_EQ(flops_of([&] { x + x; }), 0);
}

// A batch is spread over the team, whose members call for products themselves.
TEST(CountedWork, AProductCountsOnceForAnyTeam) {
  const int threads = num_threads();
  for (const int team : {1, 3}) {
    set_num_threads(team);
    EXPECT_EQ(flops_of([&] {
                matmul(randn({64, 16, 16}), randn({64, 16, 16}));
              }),
              2.0 * 64 * 16 * 16 * 16);
  }
  set_num_threads(threads);
}

TEST(CountedWork, GroupsAreOneProduct) {
  const Tensor a = randn({10, 4});
  const Tensor b = randn({3, 4, 6});
  const Tensor c = empty({10, 6}, kFloat32);
  const std::vector<int64_t> ends = {2, 2, 10};
  EXPECT_EQ(flops_of([&] {
              kernels::grouped_gemm(
                  {.m = 10, .n = 6, .k = 4, .lda = 4, .ldb = 6, .stride_b = 24, .ldc = 6},
                  kernels::GroupAxis::kRows, ends, a.raw(), b.raw(), c.raw());
            }),
            2.0 * 10 * 4 * 6);
}

TEST(CountedWork, AttentionCountsWhatQueriesMaySee) {
  constexpr int64_t kBatch = 2;
  constexpr int64_t kHeads = 4;
  constexpr int64_t kLength = 9;
  constexpr int64_t kSize = 8;
  const auto all = [&](const AttentionOptions& options, double pairs) {
    Tensor q = randn({kBatch, kHeads, kLength, kSize});
    Tensor k = randn({kBatch, kHeads, kLength, kSize});
    Tensor v = randn({kBatch, kHeads, kLength, kSize});
    for (Tensor* t : {&q, &k, &v}) {
      t->set_requires_grad();
    }
    const double forward = 4.0 * kBatch * kHeads * kSize * pairs;
    Tensor y;
    EXPECT_EQ(flops_of([&] { y = scaled_dot_product_attention(q, k, v, options); }), forward);
    EXPECT_EQ(flops_of([&] { sum(y).backward(); }), 2 * forward);
  };
  all({}, kLength * kLength);
  all({.causal = true}, kLength * (kLength + 1) / 2);
}

// Gradients are made with the loss, or in backward from logits that are made again: three products.
TEST(CountedWork, LinearCrossEntropyIsThreeProducts) {
  for (const Reduction reduction : {Reduction::kMean, Reduction::kNone}) {
    Tensor hidden = randn({6, 8});
    Tensor weight = randn({11, 8});
    hidden.set_requires_grad();
    weight.set_requires_grad();
    const Tensor labels = zeros({6}, kInt64);
    LinearCrossEntropyOptions options;
    options.loss.reduction = reduction;
    EXPECT_EQ(flops_of([&] {
                Tensor loss = linear_cross_entropy(hidden, weight, labels, options);
                if (reduction == Reduction::kNone) {
                  loss = sum(loss);
                }
                loss.backward();
              }),
              3 * 2.0 * 6 * 8 * 11);
  }
}

TEST(CountedWork, WhatIsSavedForBackwardIsCounted) {
  Tensor x = randn({5, 7});
  x.set_requires_grad();
  const double before = kernels::work_counter().saved_bytes;
  const Tensor y = x * x;
  EXPECT_GE(kernels::work_counter().saved_bytes - before, 5 * 7 * 4);
}

}  // namespace
}  // namespace tapestry
