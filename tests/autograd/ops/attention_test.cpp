#include "autograd/ops/transformer/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <tuple>
#include <vector>

#include "autograd/kernels/machine/exact.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/ops/transformer/attention_passes.h"
#include "autograd/tape/engine.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"
#include "tests/autograd/ops/expect_close.h"

namespace tapestry {
namespace attention_test {
namespace {

Tensor input(const Shape& shape, uint64_t stream) {
  return normal(0, 1, shape, kFloat64, RandomKey{4, stream, 0});
}

struct Gradients {
  Tensor out, dq, dk, dv;
};

template <class F>
Gradients run(const F& attention, const Tensor& q, const Tensor& k, const Tensor& v) {
  const Tensor a = q.detach().set_requires_grad();
  const Tensor b = k.detach().set_requires_grad();
  const Tensor c = v.detach().set_requires_grad();
  const Tensor out = attention(a, b, c);
  const TensorList d = grad(out, {a, b, c}, input(out.shape(), 77).to(out.dtype()));
  return {out.detach(), d[0], d[1], d[2]};
}

void expect_equals_twin(const Tensor& q,
                        const Tensor& k,
                        const Tensor& v,
                        const AttentionOptions& options) {
  const auto fused = [&](const Tensor& a, const Tensor& b, const Tensor& c) {
    return scaled_dot_product_attention(a, b, c, options);
  };
  const auto twin = [&](const Tensor& a, const Tensor& b, const Tensor& c) {
    return composed_attention(a, b, c, options);
  };
  const Gradients one = run(fused, q, k, v);
  const Gradients two = run(twin, q, k, v);
  expect_close(one.out, two.out, 1e-13);
  expect_close(one.dq, two.dq, 1e-12);
  expect_close(one.dk, two.dk, 1e-12);
  expect_close(one.dv, two.dv, 1e-12);
}

TEST(Attention, FusedFormEqualsItsTwin) {
  // Sizes around the blocks of the kernel.
  for (const int64_t length : {1, 7, 64, 65, 150}) {
    const Tensor q = input({2, 4, length, 8}, 1);
    const Tensor k = input({2, 2, length, 8}, 2);
    const Tensor v = input({2, 2, length, 8}, 3);
    expect_equals_twin(q, k, v, {});
    expect_equals_twin(q, k, v, {.causal = true});
    expect_equals_twin(q, k, v, {.causal = true, .window_left = 5});
    expect_equals_twin(q, k, v, {.causal = true, .window_left = 70});
    expect_equals_twin(q, k, v, {.window_left = 3});
    expect_equals_twin(q, k, v, {.scale = -0.2});
    expect_equals_twin(q, k, v, {.causal = true, .window_left = 70, .score_cap = 0.5});
    expect_equals_twin(q, k, v, {.dropout_p = 0.3, .dropout_source = RandomKey{5, 6, 0}});
    expect_equals_twin(q, k, v,
                       {.causal = true,
                        .window_left = 40,
                        .dropout_p = 0.3,
                        .dropout_source = RandomKey{5, 6, 9}});
    expect_equals_twin(q, k, v,
                       {.dropout_p = 0.5,
                        .dropout_source = RandomKey{5, 6, 0},
                        .dropout_place = {{4, 9, length + 3, length}, {2, 3, 0, 0}, 0}});
  }
  expect_equals_twin(input({1, 2, 5, 4}, 1), input({1, 2, 70, 4}, 2), input({1, 2, 70, 4}, 3),
                     {.causal = true, .window_left = 66, .q_offset = 65});
}

TEST(Attention, ASinkIsAKeyWithoutAValue) {
  // One more channel, which only the key at the front has: its score is the sink, its value 0. The
  // gradient of that channel of the key, by which the query's 1 is multiplied, is the sink's.
  constexpr int64_t kLength = 90;
  constexpr double kScale = 0.4;
  const Tensor q = input({2, 4, kLength, 7}, 1);
  const Tensor k = input({2, 4, kLength, 7}, 2);
  const Tensor v = input({2, 4, kLength, 8}, 3);
  const Tensor sinks = tensor<double>({0.5, -1, 3, 0}, {4}).set_requires_grad();
  const Tensor visible = bernoulli(0.5, {kLength, kLength}, RandomKey{8, 1, 0});
  const auto channel = [](const Tensor& x, const Tensor& last) {
    return cat({x, last.expand({x.size(0), x.size(1), x.size(2), 1})}, 3);
  };
  const RandomKey random{5, 6, 0};
  for (const double dropout : {0.0, 0.3}) {
    const Tensor queries = channel(q, ones({1, 1, 1, 1}, kFloat64));
    const Tensor keys = channel(k, zeros({1, 1, 1, 1}, kFloat64));
    const Tensor sink_keys =
        cat({zeros({2, 4, 1, 7}, kFloat64),
             mul(sinks, 1 / kScale).reshape({1, 4, 1, 1}).expand({2, 4, 1, 1})},
            3);
    // The same weights are dropped: the sink's are those of the last key.
    const Tensor expected = composed_attention(
        queries, cat({keys, sink_keys}, 2), cat({v, zeros({2, 4, 1, 8}, kFloat64)}, 2),
        {.scale = kScale,
         .mask = cat({visible, full({kLength, 1}, 1, kBool)}, 1),
         .dropout_p = dropout,
         .dropout_source = random,
         .dropout_place = {{2, 4, kLength, kLength + 1}, {0, 0, 0, 0}, -1}});
    const AttentionOptions options{
        .scale = kScale,
        .mask = visible,
        .sinks = sinks,
        .dropout_p = dropout,
        .dropout_source = random,
        .dropout_place = {{2, 4, kLength, kLength + 1}, {0, 0, 0, 0}, -1}};
    const Tensor dout = input({2, 4, kLength, 8}, 77);
    const Tensor dsinks = grad(expected, {sinks}, dout)[0];
    for (const bool fused : {true, false}) {
      const Tensor out = fused ? scaled_dot_product_attention(queries, keys, v, options)
                               : composed_attention(queries, keys, v, options);
      expect_close(out, expected, 1e-13);
      expect_close(grad(out, {sinks}, dout)[0], dsinks, 1e-11);
    }
  }
}

TEST(Attention, SinksHaveADtypeOfTheirOwn) {
  const Tensor sinks = tensor<double>({0.5, -1}, {2}).to(kFloat32).set_requires_grad();
  for (const DType dtype : {kFloat64, kFloat32, kBFloat16}) {
    const Tensor q = input({1, 2, 9, 4}, 1).to(dtype);
    const Tensor out = scaled_dot_product_attention(q, q, q, {.sinks = sinks});
    EXPECT_EQ(out.dtype(), dtype);
    const Tensor d = grad(out, {sinks}, input(q.shape(), 77).to(dtype))[0];
    EXPECT_EQ(d.dtype(), kFloat32);
    EXPECT_GT(sum(abs(d)).item(), 0);
  }
}

TEST(Attention, PassesApartEqualTheOp) {
  for (const DType dtype : {kFloat32, kFloat64, kBFloat16}) {
    const Tensor q = input({2, 4, 70, 8}, 1).to(dtype);
    const Tensor k = input({2, 2, 70, 8}, 2).to(dtype);
    const Tensor v = input({2, 2, 70, 8}, 3).to(dtype);
    const Tensor dout = input(q.shape(), 77).to(dtype);
    AttentionOptions options = {.causal = true,
                                .window_left = 50,
                                .dropout_p = 0.3,
                                .dropout_source = RandomKey{5, 6, 0},
                                .dropout_place = {{4, 9, 70, 70}, {2, 3, 0, 0}, 0}};
    const Gradients whole =
        run([&](const Tensor& a, const Tensor& b,
                const Tensor& c) { return scaled_dot_product_attention(a, b, c, options); },
            q, k, v);
    // Queries 0 .. 29 and 30 .. 69, each with the keys up to its end.
    const DType wide = dtype == kFloat64 ? kFloat64 : kFloat32;
    const Tensor out = empty(q.shape(), dtype);
    const Tensor dq = empty(q.shape(), dtype);
    const Tensor dk = zeros(k.shape(), wide);
    const Tensor dv = zeros(v.shape(), wide);
    for (const auto& [first, end] : {std::pair{0, 30}, std::pair{30, 70}}) {
      const auto rows = [&, first = first, end = end](const Tensor& x) {
        return x.slice(2, first, end);
      };
      const auto keys = [&, end = end](const Tensor& x) { return x.slice(2, 0, end); };
      options.q_offset = first;
      options.dropout_place.start[2] = first;
      const AttentionResult result = {rows(out), empty({2, 4, end - first}, wide)};
      attention_forward(rows(q), keys(k), keys(v), options, result);
      attention_backward(rows(q), keys(k), keys(v), options, result, rows(dout),
                         {rows(dq), keys(dk), keys(dv)});
    }
    const double bound = dtype == kBFloat16 ? 1e-2 : dtype == kFloat32 ? 1e-5 : 1e-13;
    expect_close(out, whole.out, 0);
    expect_close(dq, whole.dq, bound);
    expect_close(dk, whole.dk, bound);
    expect_close(dv, whole.dv, bound);
  }
}

TEST(Attention, PassesApartSayWhatDoesNotFit) {
  const Tensor q = input({1, 2, 3, 4}, 1);
  const Tensor lse = empty({1, 2, 3}, kFloat64);
  EXPECT_THROW(attention_forward(q, q, q, {}, {empty({1, 2, 3, 5}, kFloat64), lse}), ValueError);
  EXPECT_THROW(attention_forward(q, q, q, {}, {empty_like(q), lse.to(kFloat32)}), ValueError);
  EXPECT_THROW(
      attention_forward(q, q, q, {.mask = full({2, 3, 4}, 1, kBool)}, {empty_like(q), lse}),
      ValueError);
  const AttentionResult result = {zeros_like(q), lse};
  EXPECT_THROW(attention_backward(q, q, q, {}, result, q, {q, q.to(kFloat32), q}), ValueError);
}

TEST(Attention, MasksOfEveryShape) {
  const Tensor q = input({3, 4, 6, 4}, 1);
  const Tensor k = input({3, 2, 5, 4}, 2);
  const Tensor v = input({3, 2, 5, 4}, 3);
  for (const Shape& shape :
       {Shape{6, 5}, Shape{5}, Shape{6, 1}, Shape{3, 1, 6, 5}, Shape{3, 1, 1, 5}, Shape{1, 1, 6, 5},
        Shape{4, 6, 5}, Shape{3, 4, 6, 5}}) {
    SCOPED_TRACE(shape);
    const Tensor mask = bernoulli(0.6, shape, RandomKey{8, 1, 0});
    expect_equals_twin(q, k, v, {.mask = mask});
    expect_equals_twin(
        q, k, v,
        {.causal = true, .mask = mask, .dropout_p = 0.2, .dropout_source = RandomKey{8, 2, 0}});
    expect_equals_twin(q, k, v,
                       {.mask = mask,
                        .dropout_p = 0.2,
                        .dropout_source = RandomKey{8, 2, 0},
                        .dropout_place = {{9, 4, 6, 5}, {6, 0, 0, 0}, 0}});
  }
}

TEST(Attention, DocumentsAndSlopes) {
  const std::vector<std::vector<int64_t>> rows = {{30, 31, 90}, {}, {65}};
  const Tensor starts = document_starts(rows, 130);
  const Tensor q = input({3, 4, 130, 8}, 1);
  const Tensor k = input({3, 2, 130, 8}, 2);
  const Tensor v = input({3, 2, 130, 8}, 3);
  expect_equals_twin(q, k, v, {.causal = true, .document_starts = starts});
  expect_equals_twin(q, k, v, {.causal = true, .document_starts = starts.slice(0, 2, 3)});
  expect_equals_twin(q, k, v, {.causal = true, .alibi_slopes = alibi_slopes(4)});
  const Tensor mask = bernoulli(0.6, {3, 1, 1, 130}, RandomKey{8, 1, 0});
  expect_equals_twin(q, k, v,
                     {.causal = true,
                      .window_left = 20,
                      .mask = mask,
                      .document_starts = starts,
                      .alibi_slopes = alibi_slopes(4),
                      .dropout_p = 0.3,
                      .dropout_source = RandomKey{5, 6, 0}});
  expect_equals_twin(q.slice(2, 100, 130), k, v,
                     {.causal = true,
                      .document_starts = starts,
                      .alibi_slopes = {1, 0.5, 0, -1},
                      .q_offset = 100});
}

TEST(Attention, DocumentStarts) {
  const std::vector<std::vector<int64_t>> rows = {{0, 2, 3}, {1}, {}};
  EXPECT_EQ(document_starts(rows, 4).to_vector<int64_t>(),
            (std::vector<int64_t>{0, 0, 2, 3, 0, 1, 1, 1, 0, 0, 0, 0}));
  for (const std::vector<int64_t>& wrong : {std::vector<int64_t>{4}, {-1}, {2, 2}, {3, 1}}) {
    EXPECT_THROW(document_starts({&wrong, 1}, 4), ValueError);
  }
}

TEST(Attention, AlibiSlopesAreThoseOfThePaper) {
  // Press et al. 2022 take 2^-1 .. 2^-8 for eight heads; for twelve, of sixteen heads every second.
  EXPECT_EQ(alibi_slopes(8), (std::vector<double>{1.0 / 2, 1.0 / 4, 1.0 / 8, 1.0 / 16, 1.0 / 32,
                                                  1.0 / 64, 1.0 / 128, 1.0 / 256}));
  const std::vector<double> twelve = alibi_slopes(12);
  ASSERT_EQ(twelve.size(), 12U);
  EXPECT_EQ(twelve[7], 1.0 / 256);
  EXPECT_DOUBLE_EQ(twelve[8], std::exp2(-0.5));
  EXPECT_DOUBLE_EQ(twelve[11], std::exp2(-3.5));
  EXPECT_EQ(alibi_slopes(1), std::vector<double>{1.0 / 256});
  EXPECT_THROW(alibi_slopes(0), ValueError);
}

TEST(Attention, WindowOfLSeesLPlusOneKeys) {
  // With equal scores the output is the mean of the visible values, here their positions.
  const Tensor q = zeros({1, 1, 6, 1}, kFloat64);
  const Tensor v = arange(6, kFloat64).reshape({1, 1, 6, 1});
  const Tensor out = scaled_dot_product_attention(q, q, v, {.causal = true, .window_left = 2});
  expect_close(out.reshape({6}), tensor<double>({0, 0.5, 1, 2, 3, 4}, {6}), 1e-15);
}

TEST(Attention, OneVisibleKeyHasNoGradientOfItsScore) {
  // The softmax of one score is constant. Rounding must not make a gradient out of that.
  for (const DType dtype : {kFloat32, kBFloat16, kFloat64}) {
    for (const int64_t dim : {5, 8, 64, 80}) {
      const Tensor q = input({1, 2, 70, dim}, 1).to(dtype);
      const Tensor k = input({1, 2, 70, dim}, 2).to(dtype);
      const Tensor v = input({1, 2, 70, dim}, 3).to(dtype);
      const auto attention = [](const Tensor& a, const Tensor& b, const Tensor& c) {
        return scaled_dot_product_attention(a, b, c, {.causal = true, .window_left = 0});
      };
      const Gradients g = run(attention, q, k, v);
      EXPECT_EQ(amax(abs(g.dq)).item(), 0) << name_of(dtype) << " " << dim;
      EXPECT_EQ(amax(abs(g.dk)).item(), 0) << name_of(dtype) << " " << dim;
      EXPECT_EQ(g.out.to_vector<float>(), v.to_vector<float>());
    }
  }
}

TEST(Attention, RowsWithoutKeysGiveZero) {
  const Tensor q = input({1, 2, 4, 3}, 1);
  const Tensor visible = ne(arange(4).unsqueeze(1).expand({4, 4}), 2.0);  // query 2 sees nothing
  const Gradients result =
      run([&](const Tensor& a, const Tensor& b,
              const Tensor& c) { return scaled_dot_product_attention(a, b, c, {.mask = visible}); },
          q, input({1, 2, 4, 3}, 2), input({1, 2, 4, 3}, 3));
  expect_close(select(result.out, 2, 2), zeros({1, 2, 3}, kFloat64), 0);
  expect_close(select(result.dq, 2, 2), zeros({1, 2, 3}, kFloat64), 0);
  for (const Tensor& t : {result.out, result.dq, result.dk, result.dv}) {
    EXPECT_EQ(sum(isfinite(t)).item(), static_cast<double>(t.numel()));
  }
}

TEST(Attention, GroupsAreSharedByNeighbouringHeads) {
  const Tensor q = input({2, 6, 5, 4}, 1);
  const Tensor k = input({2, 2, 5, 4}, 2);
  const Tensor v = input({2, 2, 5, 4}, 3);
  const auto repeat = [](const Tensor& t) {
    return t.unsqueeze(2).expand({2, 2, 3, 5, 4}).reshape({2, 6, 5, 4});
  };
  expect_close(scaled_dot_product_attention(q, k, v, {.causal = true}),
               scaled_dot_product_attention(q, repeat(k), repeat(v), {.causal = true}), 1e-14);
}

TEST(Attention, JoiningTheHeadsIsAView) {
  const Tensor x = input({2, 5, 3, 4}, 1).permute({0, 2, 1, 3});  // [B, H, S, D] on [B, S, H, D]
  const Tensor out = scaled_dot_product_attention(x, x, x, {.causal = true});
  EXPECT_EQ(out.shape(), (Shape{2, 3, 5, 4}));
  EXPECT_TRUE(out.permute({0, 2, 1, 3}).is_contiguous());
}

// q, k and v as parts of one tensor [B, S, groups, heads of a group and two, D], in one of two
// orders.
TEST(Attention, GradientsOfPartsOfATensorLieAsThese) {
  for (const auto& [groups, per_group, sequence_first] :
       {std::tuple(3, 1, false), std::tuple(3, 1, true), std::tuple(1, 4, false)}) {
    const int64_t heads = groups * per_group;
    const Tensor x = input({2, 5, groups, per_group + 2, 4}, 3).to(kFloat32).set_requires_grad();
    const auto parts_of = [&](const Tensor& fused) {
      TensorList parts = split(fused, Shape{per_group, 0, 1, 1}, 3);
      parts.erase(parts.begin() + 1);
      for (Tensor& part : parts) {
        part = part.reshape({2, 5, part.size(2) * part.size(3), 4});
        part = sequence_first ? part.permute({1, 2, 0, 3}) : part.permute({0, 2, 1, 3});
      }
      return parts;
    };
    const TensorList parts = parts_of(x);
    const Tensor out = scaled_dot_product_attention(parts[0], parts[1], parts[2], {.causal = true});
    ASSERT_EQ(out.size(1), heads);
    const Tensor dy = input(out.shape(), 77).to(kFloat32);  // as run() has it
    const TensorList d = grad(out, {x, parts[0], parts[1], parts[2]}, dy);
    EXPECT_EQ(d[0].storage().get(), d[1].storage().get());
    // The same of tensors of their own.
    const TensorList copies = parts_of(x.detach());
    const Gradients apart =
        run([](const Tensor& q, const Tensor& k,
               const Tensor& v) { return scaled_dot_product_attention(q, k, v, {.causal = true}); },
            copies[0] + 0, copies[1] + 0, copies[2] + 0);
    const TensorList in_one = parts_of(d[0].detach());
    expect_close(in_one[0], apart.dq, 0);
    expect_close(in_one[1], apart.dk, 0);
    expect_close(in_one[2], apart.dv, 0);
    // A part with another use has a gradient of its own.
    const TensorList again = parts_of(x);
    const Tensor other =
        scaled_dot_product_attention(again[0], again[1], again[2], {.causal = true});
    const Tensor more = add(sum(mul(other, dy)), sum(square(again[1])));
    const TensorList sums = parts_of(grad(more, {x})[0].detach());
    expect_close(sums[0], apart.dq, 0);
    expect_close(sums[1], add(apart.dk, mul(copies[1], 2)), 1e-6);
    expect_close(sums[2], apart.dv, 0);
  }
}

TEST(Attention, KeepsNoScores) {
  const int64_t length = 1024;  // so that each thread's blocks count for little
  const Tensor q = zeros({1, 1, length, 8}).set_requires_grad();
  RankContext::current().allocator().reset_peak();
  const int64_t before = memory_stats().current_bytes;
  const Tensor out = scaled_dot_product_attention(q, q, q, {.causal = true});
  const TensorList d = grad(out, {q}, ones({1, 1, length, 8}));
  EXPECT_LT(memory_stats().peak_bytes - before, length * length * 4 / 2);
}

TEST(Attention, FirstQueryMayHaveAPosition) {
  // The last rows alone give what they give among all.
  const Tensor q = input({1, 2, 9, 4}, 1);
  const Tensor k = input({1, 1, 9, 4}, 2);
  const Tensor v = input({1, 1, 9, 4}, 3);
  const AttentionOptions whole{.causal = true,
                               .window_left = 4,
                               .dropout_p = 0.4,
                               .dropout_source = RandomKey{1, 2, 0},
                               .dropout_place = {{1, 2, 9, 9}, {0, 0, 0, 0}, -1}};
  AttentionOptions part = whole;
  part.q_offset = 6;
  part.dropout_place.start[2] = 6;
  expect_close(scaled_dot_product_attention(slice(q, 2, 6, 9), k, v, part),
               slice(scaled_dot_product_attention(q, k, v, whole), 2, 6, 9), 1e-14);
}

TEST(Attention, DropoutDependsOnThePlaceAlone) {
  const Tensor q = input({4, 4, 6, 2}, 1);
  const Tensor k = input({4, 2, 6, 2}, 2);
  const Tensor v = input({4, 2, 6, 2}, 3);
  const auto with = [](const Shape& start) {
    return AttentionOptions{.causal = true,
                            .dropout_p = 0.5,
                            .dropout_source = RandomKey{1, 2, 0},
                            .dropout_place = {{0, 4, 6, 6}, start, 0}};
  };
  const Tensor whole = scaled_dot_product_attention(q, k, v, with({10, 0, 0, 0}));
  // Heads 2 and 3 (group 1) of samples 2 and 3, as another rank would have them.
  const auto cut = [](const Tensor& t, int64_t first_head, int64_t heads) {
    return slice(slice(t, 0, 2, 4), 1, first_head, first_head + heads);
  };
  const Tensor part =
      scaled_dot_product_attention(cut(q, 2, 2), cut(k, 1, 1), cut(v, 1, 1), with({12, 2, 0, 0}));
  expect_close(part, cut(whole, 2, 2), 1e-14);
}

TEST(Attention, DropoutKeepsTheMeanAndTheShare) {
  const Tensor q = zeros({2, 2, 200, 1}, kFloat64);
  const Tensor v = ones({2, 2, 200, 1}, kFloat64);
  const Tensor out = scaled_dot_product_attention(
      q, q, v, {.dropout_p = 0.25, .dropout_source = RandomKey{9, 9, 0}});
  EXPECT_NEAR(mean(out).item(), 1, 0.01);
  // Kept weights are 1 / 200 / 0.75: out counts them.
  const double kept = mean(out).item() * 0.75;
  EXPECT_NEAR(kept, 0.75, 0.005);
}

TEST(Attention, DropoutFromTheDefaultGeneratorMovesOn) {
  manual_seed(3);
  const Tensor q = input({1, 1, 8, 2}, 1);
  const AttentionOptions options{.dropout_p = 0.5};
  const Tensor first = scaled_dot_product_attention(q, q, q, options);
  const Tensor second = scaled_dot_product_attention(q, q, q, options);
  manual_seed(3);
  expect_close(scaled_dot_product_attention(q, q, q, options), first, 0);
  EXPECT_GT(sum(abs(sub(first, second))).item(), 0.1);
}

TEST(Attention, SixteenBits) {
  for (const DType dtype : {kBFloat16, kFloat16}) {
    const Tensor q = input({1, 2, 40, 16}, 1).to(dtype);
    const Tensor k = input({1, 1, 40, 16}, 2).to(dtype);
    const auto causal = [](const Tensor& a, const Tensor& b, const Tensor& c) {
      return scaled_dot_product_attention(a, b, c, {.causal = true});
    };
    const Gradients half = run(causal, q, k, k);
    const Gradients exact = run(causal, q.to(kFloat64), k.to(kFloat64), k.to(kFloat64));
    EXPECT_EQ(half.out.dtype(), dtype);
    EXPECT_EQ(half.dk.dtype(), dtype);
    const double bound = dtype == kBFloat16 ? 0.02 : 0.003;
    expect_close(half.out, exact.out, bound);
    expect_close(half.dq, exact.dq, bound);
    expect_close(half.dk, exact.dk, bound);
    expect_close(half.dv, exact.dv, bound);
  }
}

TEST(Attention, FusedFormEqualsItsTwinInEveryDtype) {
  // bfloat16: the twin rounds scores and weights to 8 bits, the fused form what its products need.
  const auto bound = [](DType dtype) {
    return dtype == kBFloat16 ? 0.03 : dtype == kFloat16 ? 0.004 : 1e-5;
  };
  for (const DType dtype : {kFloat32, kBFloat16, kFloat16}) {
    for (const AttentionOptions& options :
         {AttentionOptions{}, AttentionOptions{.causal = true},
          AttentionOptions{.causal = true, .window_left = 90},
          AttentionOptions{
              .causal = true, .dropout_p = 0.2, .dropout_source = RandomKey{5, 6, 0}}}) {
      const Tensor q = input({2, 4, 150, 24}, 1).to(dtype);
      const Tensor k = input({2, 2, 150, 24}, 2).to(dtype);
      const Tensor v = input({2, 2, 150, 24}, 3).to(dtype);
      const Gradients one =
          run([&](const Tensor& a, const Tensor& b,
                  const Tensor& c) { return scaled_dot_product_attention(a, b, c, options); },
              q, k, v);
      const Gradients two =
          run([&](const Tensor& a, const Tensor& b,
                  const Tensor& c) { return composed_attention(a, b, c, options); },
              q, k, v);
      SCOPED_TRACE(name_of(dtype));
      EXPECT_EQ(two.out.dtype(), dtype);
      EXPECT_EQ(two.dk.dtype(), dtype);
      expect_close(one.out, two.out, bound(dtype));
      expect_close(one.dq, two.dq, bound(dtype));
      expect_close(one.dk, two.dk, bound(dtype));
      expect_close(one.dv, two.dv, bound(dtype));
    }
  }
}

TEST(Attention, ComposedFormRoundsScoresAndWeights) {
  // 3 * 171 = 513 and 3 * 173 = 519 have ten bits; bfloat16 keeps eight: 512 and 520.
  const auto vector = [](const std::vector<double>& values) {
    const auto n = static_cast<int64_t>(values.size());
    return tensor<double>(values, {1, 1, n, 1}).to(kBFloat16);
  };
  const Tensor q = vector({3});
  const Tensor k = vector({171, 173, 160});
  const Tensor v = vector({1, 256, -64});
  const auto rounded = [](double x) {
    return tensor<double>({x}, {1}).to(kBFloat16).to(kFloat64).item();
  };
  const auto expected = [&](const std::vector<double>& scores) {
    double sum = 0;
    for (const double score : scores) {
      sum += std::exp(score);
    }
    double out = 0;
    const std::vector<double> values = {1, 256, -64};
    for (size_t j = 0; j < scores.size(); ++j) {
      out += rounded(std::exp(scores[j]) / sum) * values[j];
    }
    return rounded(out);
  };
  const double scale = 1.0 / 61;
  const AttentionOptions options{.scale = scale};
  EXPECT_EQ(composed_attention(q, k, v, options).item(),
            expected({512 * scale, 520 * scale, 480 * scale}));
  EXPECT_EQ(composed_attention(q, k, v, options, kFloat32).item(),
            expected({512 * scale, 520 * scale, 480 * scale}));
  EXPECT_EQ(composed_attention(q, k, v, options, kBFloat16).item(),
            expected({rounded(512 * scale), rounded(520 * scale), rounded(480 * scale)}));
  EXPECT_NE(expected({512 * scale, 520 * scale, 480 * scale}),
            expected({513 * scale, 519 * scale, 480 * scale}));
  EXPECT_THROW(composed_attention(q, k, v, options, kInt64), TypeError);
}

TEST(Attention, ChangedMaskIsNoticed) {
  const Tensor q = input({1, 1, 3, 2}, 1).set_requires_grad();
  const Tensor mask = bernoulli(1.0, {3, 3});
  const Tensor out = scaled_dot_product_attention(q, q, q, {.mask = mask});
  mask.bump_version();
  EXPECT_THROW(grad(out, {q}, ones({1, 1, 3, 2}, kFloat64)), RuntimeError);
}

/// The exact sums of the sinks' gradient over samples in micro-batches of `rows`.
std::vector<double> exact_sink_gradients(DType dtype, int64_t rows) {
  constexpr int64_t kSamples = 4;
  const ExactScope exact;
  const Tensor sinks = tensor<double>({0.5, -1, 3, 0}, {4}).to(dtype).set_requires_grad();
  sinks.set_main_grad(zeros({4}, kFloat64));
  for (int64_t b = 0; b < kSamples; b += rows) {
    const ExactTokensScope tokens({.samples = rows, .length = 32, .leaves = sequence_leaves(32)});
    const auto of = [&](int64_t heads, uint64_t stream) {
      return input({kSamples, heads, 32, 8}, stream).to(dtype).slice(0, b, b + rows);
    };
    const Tensor out = scaled_dot_product_attention(of(4, 1), of(2, 2), of(2, 3),
                                                    {.causal = true, .sinks = sinks});
    sum(mul(out, of(4, 5))).backward();
  }
  return sinks.main_grad().to_vector<double>();
}

TEST(Attention, InExactModeSinksHaveOneGradientForAnyMicroBatches) {
  for (const DType dtype : {kFloat32, kBFloat16}) {
    const std::vector<double> whole = exact_sink_gradients(dtype, 4);
    EXPECT_EQ(exact_sink_gradients(dtype, 1), whole);
    EXPECT_EQ(exact_sink_gradients(dtype, 2), whole);
    EXPECT_GT(std::abs(whole[0]), std::ldexp(1.0, 30));  // in units
  }
}

TEST(Attention, InExactModeGradientsOfKeysAreTheSumsOfLeaves) {
  constexpr int64_t kTokens = 64;
  const ExactScope exact;
  const Tensor k = input({1, 2, kTokens, 8}, 2).to(kFloat32);
  const Tensor v = input({1, 2, kTokens, 8}, 3).to(kFloat32);
  const Tensor q = input({1, 4, kTokens, 8}, 1).to(kFloat32);
  const auto gradients = [&](int64_t leaves) {
    const ExactTokensScope tokens({.samples = 1, .length = kTokens, .leaves = leaves});
    return run(
        [](const Tensor& a, const Tensor& b, const Tensor& c) {
          return scaled_dot_product_attention(a, b, c, {.causal = true});
        },
        q, k, v);
  };
  const Gradients one = gradients(1);
  const Gradients two = gradients(2);
  expect_close(two.dk, one.dk, 1e-5);
  expect_close(two.dv, one.dv, 1e-5);
  EXPECT_NE(two.dk.to_vector<float>(), one.dk.to_vector<float>());
  EXPECT_EQ(two.dq.to_vector<float>(), one.dq.to_vector<float>());
}

TEST(Attention, InExactModeIsNotMadeOfSingleOps) {
  const ExactScope exact;
  const Tensor x = input({1, 2, 8, 4}, 1).to(kFloat32);
  EXPECT_THROW(composed_attention(x, x, x, {.causal = true}), RuntimeError);
}

}  // namespace
}  // namespace attention_test
}  // namespace tapestry
