// Attention of ranks that divide the sequences, against attention over whole ones.
#include "parallel_core/context_parallel/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "autograd/kernels/machine/exact.h"
#include "autograd/ops/map.h"
#include "autograd/ops/ops.h"
#include "autograd/tape/engine.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"
#include "tests/cpu_levels.h"
#include "tests/parallel_core/parallel_testing.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry {
namespace {

using testing::distance;
using testing::run_parallel;
using testing::same_bits;

Tensor input(const Shape& shape, uint64_t stream, DType dtype) {
  return normal(0, 1, shape, kFloat64, RandomKey{4, stream, 0}).to(dtype);
}

struct Sizes {
  int64_t batch = 2;
  int64_t heads = 8;
  int64_t groups = 4;
  int64_t length = 48;
  int64_t dim = 8;
};

struct Outcome {
  Tensor out, dq, dk, dv, dsinks;
};

// The mask of the rank's queries, where there is one.
AttentionOptions own_options(AttentionOptions options, const ContextParallelLayout& layout) {
  if (options.mask.defined() && options.mask.size(2) > 1) {
    options.mask = own_chunks(options.mask, 2, layout);
  }
  return options;
}

// Attention over the inputs of `sizes` on the current rank; results in the order of the sequence.
Outcome run(const Sizes& s,
            DType dtype,
            const AttentionOptions& options,
            const ContextParallelLayout& layout,
            bool fused = true) {
  const auto own = [&](int64_t heads, uint64_t stream) {
    return own_chunks(input({s.batch, heads, s.length, s.dim}, stream, dtype), 2, layout)
        .detach()
        .set_requires_grad();
  };
  const Tensor q = own(s.heads, 1);
  const Tensor k = own(s.groups, 2);
  const Tensor v = own(s.groups, 3);
  AttentionOptions mine = own_options(options, layout);
  TensorList inputs = {q, k, v};
  if (mine.sinks.defined()) {
    mine.sinks = mine.sinks.detach().set_requires_grad();
    inputs.push_back(mine.sinks);
  }
  const Tensor out = fused ? context_parallel_attention(q, k, v, mine, layout)
                           : composed_context_parallel_attention(q, k, v, mine, layout);
  const TensorList d = grad(out, inputs, own(s.heads, 77).detach());
  // The ranks share the sinks: the sum of their gradients is the whole one.
  Tensor dsinks = mine.sinks.defined() ? d[3] : zeros({1});
  if (mine.sinks.defined() && layout.size > 1) {
    dsinks = dsinks.contiguous();
    layout.group->all_reduce(dsinks);
  }
  const auto whole = [&](const Tensor& t) { return gather_chunks(t.detach(), 2, layout); };
  return {whole(out), whole(d[0]), whole(d[1]), whole(d[2]), dsinks};
}

struct Case {
  std::string name;
  AttentionOptions options;
};

std::vector<Case> cases(const Sizes& s) {
  const LogicalPlace place = {{7, 14, s.length, s.length}, {3, 2, 0, 0}, 0};
  Tensor mask = bernoulli(0.6, {s.batch, 1, s.length, s.length}, RandomKey{8, 1, 0});
  std::vector<std::vector<int64_t>> documents;
  for (int64_t b = 0; b < s.batch; ++b) {
    documents.push_back({3 + b, s.length / 2, s.length - 2});
  }
  const Tensor starts = document_starts(documents, s.length);
  Tensor shared_mask = mask.slice(0, 0, 1).contiguous();
  const Tensor sinks = input({s.heads}, 9, kFloat32);
  return {{"causal", {.causal = true}},
          {"window", {.causal = true, .window_left = 9}},
          {"narrow_window", {.causal = true, .window_left = 0}},
          {"all_keys", {.scale = 0.3}},
          {"mask", {.causal = true, .mask = mask}},
          {"shared_mask", {.causal = true, .mask = shared_mask}},
          {"dropout",
           {.causal = true,
            .dropout_p = 0.3,
            .dropout_source = RandomKey{5, 6, 0},
            .dropout_place = place}},
          {"padding", {.causal = true, .mask = mask.slice(2, 0, 1)}},
          {"documents", {.causal = true, .document_starts = starts}},
          {"alibi", {.causal = true, .alibi_slopes = alibi_slopes(s.heads)}},
          {"cap", {.causal = true, .score_cap = 0.6}},
          {"sinks", {.causal = true, .sinks = sinks}},
          {"sinks_and_window", {.causal = true, .window_left = 5, .score_cap = 1, .sinks = sinks}},
          {"everything",
           {.causal = true,
            .window_left = 20,
            .score_cap = 1.2,
            .mask = mask,
            .document_starts = starts,
            .alibi_slopes = alibi_slopes(s.heads),
            .sinks = sinks,
            .dropout_p = 0.3,
            .dropout_source = RandomKey{5, 6, 0},
            .dropout_place = place}}};
}

// At levels above avx512 the others have run what they run here.
std::vector<DType> dtypes_that_are_new() {
  return only_bfloat16_is_new() ? std::vector<DType>{kBFloat16}
                                : std::vector<DType>{kFloat32, kFloat64, kBFloat16};
}

class ContextParallelAttention : public ::testing::TestWithParam<int> {};

TEST_P(ContextParallelAttention, IsThatOfOneRank) {
  const int ranks = GetParam();
  for (const Sizes& sizes : {Sizes{}, Sizes{1, 4, 4, 16, 4}, Sizes{1, 6, 1, 80, 16},
                             Sizes{2, 12, 6, 144, 8}, Sizes{1, 5, 5, 8L * ranks, 20}}) {
    for (const Case& c : cases(sizes)) {
      for (const DType dtype : dtypes_that_are_new()) {
        const Outcome expected = run(sizes, dtype, c.options, {});
        run_parallel(ranks, {.context_parallel_size = ranks}, [&] {
          const ContextParallelLayout layout = context_parallel_layout();
          const double bound = dtype == kBFloat16 ? 2e-2 : dtype == kFloat32 ? 2e-6 : 1e-14;
          SCOPED_TRACE(c.name + " " + std::string(name_of(dtype)));
          const Outcome found = run(sizes, dtype, c.options, layout);
          EXPECT_LE(distance(found.out, expected.out), dtype == kBFloat16 ? bound : bound / 10);
          EXPECT_LE(distance(found.dq, expected.dq, 1e-2), bound);
          EXPECT_LE(distance(found.dk, expected.dk, 1e-2), bound);
          EXPECT_LE(distance(found.dv, expected.dv, 1e-2), bound);
          EXPECT_LE(distance(found.dsinks, expected.dsinks, 1e-2), std::max(bound, 1e-6));
          const Outcome composed = run(sizes, dtype, c.options, layout, /*fused=*/false);
          const double loose = dtype == kBFloat16 ? 5e-2 : 2 * bound;
          EXPECT_LE(distance(composed.out, expected.out), loose);
          EXPECT_LE(distance(composed.dq, expected.dq, 1e-2), loose);
          EXPECT_LE(distance(composed.dk, expected.dk, 1e-2), loose);
          EXPECT_LE(distance(composed.dv, expected.dv, 1e-2), loose);
          EXPECT_LE(distance(composed.dsinks, expected.dsinks, 1e-2), std::max(loose, 1e-6));
        });
      }
    }
  }
}

// Of all ranks together they are those of one rank, to the bit: each score is the same sum.
TEST_P(ContextParallelAttention, LargestScoresAreThoseOfOneRank) {
  const int ranks = GetParam();
  const Sizes sizes{2, 12, 6, 144, 8};
  const auto fresh = [&] {
    return full({sizes.heads}, -std::numeric_limits<double>::infinity(), kFloat32);
  };
  for (const Case& c : cases(sizes)) {
    for (const DType dtype : {kFloat32, kBFloat16}) {
      AttentionOptions options = c.options;
      options.max_logits = fresh();
      run(sizes, dtype, options, {});
      const std::vector<float> expected = options.max_logits.to_vector<float>();
      run_parallel(ranks, {.context_parallel_size = ranks}, [&] {
        SCOPED_TRACE(c.name + " " + std::string(name_of(dtype)));
        const ContextParallelLayout layout = context_parallel_layout();
        for (const bool fused : {true, false}) {
          AttentionOptions own = c.options;
          own.max_logits = fresh();
          run(sizes, dtype, own, layout, fused);
          layout.group->all_reduce(own.max_logits, ReduceOp::kMax);
          const std::vector<float> found = own.max_logits.to_vector<float>();
          for (size_t h = 0; h < found.size(); ++h) {
            // The composed form rounds in other places, of 16-bit numbers to 16 bits.
            const double bound = fused ? 0 : dtype == kBFloat16 ? 0x1p-7 : 0x1p-20;
            EXPECT_NEAR(found[h], expected[h], bound * (1 + std::abs(expected[h])))
                << "head " << h << (fused ? "" : ", composed");
          }
        }
      });
    }
  }
}

// Each query meets its keys in the order in which it would on one rank.
TEST_P(ContextParallelAttention, OutputHasTheBitsOfOneRank) {
  const int ranks = GetParam();
  const Sizes sizes{1, 4, 2, 512, 16};
  for (const DType dtype : {kFloat32, kBFloat16}) {
    const Outcome expected = run(sizes, dtype, {.causal = true, .window_left = 200}, {});
    run_parallel(ranks, {.context_parallel_size = ranks}, [&] {
      const Outcome found =
          run(sizes, dtype, {.causal = true, .window_left = 200}, context_parallel_layout());
      EXPECT_TRUE(same_bits(found.out, expected.out));
      EXPECT_TRUE(same_bits(found.dq, expected.dq));
    });
  }
}

// A rank has whole leaves of queries, whose sums are a part of the tree of one rank.
TEST_P(ContextParallelAttention, ExactModeHasTheBitsOfOneRank) {
  const int ranks = GetParam();
  for (const Sizes& sizes : {Sizes{2, 8, 4, 16L * ranks, 20}, Sizes{1, 6, 2, 160, 24}}) {
    for (const Case& c : cases(sizes)) {
      for (const DType dtype : {kFloat32, kBFloat16}) {
        SCOPED_TRACE(c.name + " " + std::string(name_of(dtype)));
        const auto run_exactly = [&](const ContextParallelLayout& layout) {
          const ExactScope exact;
          const ExactTokensScope tokens({.samples = sizes.batch,
                                         .length = sizes.length / layout.size,
                                         .leaves = sequence_leaves(sizes.length) / layout.size});
          return run(sizes, dtype, c.options, layout);
        };
        const Outcome expected = run_exactly({});
        run_parallel(ranks, {.context_parallel_size = ranks}, [&] {
          const Outcome found = run_exactly(context_parallel_layout());
          EXPECT_TRUE(same_bits(found.out, expected.out));
          EXPECT_TRUE(same_bits(found.dq, expected.dq));
          EXPECT_TRUE(same_bits(found.dk, expected.dk));
          EXPECT_TRUE(same_bits(found.dv, expected.dv));
        });
      }
    }
  }
}

TEST_P(ContextParallelAttention, TwoRunsHaveTheSameBits) {
  const int ranks = GetParam();
  std::vector<Outcome> first(static_cast<size_t>(ranks));
  for (const int round : {0, 1}) {
    run_parallel(ranks, {.context_parallel_size = ranks}, [&] {
      const ContextParallelLayout layout = context_parallel_layout();
      const Outcome found = run({}, kBFloat16, {.causal = true}, layout);
      Outcome& kept = first[static_cast<size_t>(layout.rank)];
      if (round == 0) {
        kept = found;
        return;
      }
      EXPECT_TRUE(same_bits(found.out, kept.out) && same_bits(found.dq, kept.dq) &&
                  same_bits(found.dk, kept.dk) && same_bits(found.dv, kept.dv));
    });
  }
}

TEST_P(ContextParallelAttention, CommunicatesWhatItSays) {
  const int ranks = GetParam();
  for (const DType dtype : {kFloat32, kBFloat16}) {
    run_parallel(ranks, {.context_parallel_size = ranks}, [&] {
      const ContextParallelLayout layout = context_parallel_layout();
      const Sizes s;
      const Tensor q = own_chunks(input({s.batch, s.heads, s.length, s.dim}, 1, dtype), 2, layout);
      const Tensor k = own_chunks(input({s.batch, s.groups, s.length, s.dim}, 2, dtype), 2, layout)
                           .detach()
                           .set_requires_grad();
      layout.group->reset_stats();
      const Tensor out = context_parallel_attention(q, k, k, {.causal = true}, layout);
      const int64_t elements = 2 * s.batch * s.groups * s.length * s.dim;
      const CommunicationStats& stats = layout.group->stats();
      EXPECT_EQ(stats.of(Collective::kAllGather).bytes, elements * size_of(dtype));
      EXPECT_EQ(stats.of(Collective::kReduceScatter).bytes, 0);
      grad(out, {k}, q);
      EXPECT_EQ(stats.of(Collective::kAllGather).bytes, 2 * elements * size_of(dtype));
      EXPECT_EQ(stats.of(Collective::kReduceScatter).bytes, elements * 4);
      EXPECT_EQ(stats.of(Collective::kAllReduce).calls, 0);
    });
  }
}

// Between the passes a rank holds its own tokens only.
TEST_P(ContextParallelAttention, KeepsTheOwnTokensAlone) {
  const int ranks = GetParam();
  run_parallel(ranks, {.context_parallel_size = ranks}, [&] {
    const ContextParallelLayout layout = context_parallel_layout();
    const Sizes s{1, 8, 8, 1024, 16};
    const auto own = [&](uint64_t stream) {
      return own_chunks(input({s.batch, s.heads, s.length, s.dim}, stream, kFloat32), 2, layout)
          .detach()
          .set_requires_grad();
    };
    const Tensor q = own(1);
    const Tensor k = own(2);
    const Tensor v = own(3);
    const int64_t before = memory_stats().current_bytes;
    const Tensor out = context_parallel_attention(q, k, v, {.causal = true}, layout);
    const int64_t kept = memory_stats().current_bytes - before;
    // The output and a number for each row and head.
    EXPECT_LE(kept, out.numel() * 4 + out.numel() / s.dim * 4 + 4096);
  });
}

TEST_P(ContextParallelAttention, HasSecondDerivatives) {
  const int ranks = GetParam();
  const Sizes s{1, 2, 1, 16, 4};
  const auto second = [&](const ContextParallelLayout& layout) {
    const auto own = [&](int64_t heads, uint64_t stream) {
      return own_chunks(input({s.batch, heads, s.length, s.dim}, stream, kFloat64), 2, layout)
          .detach()
          .set_requires_grad();
    };
    const Tensor q = own(s.heads, 1);
    const Tensor k = own(s.groups, 2);
    const Tensor v = own(s.groups, 3);
    const Tensor out = context_parallel_attention(q, k, v, {.causal = true}, layout);
    const TensorList first =
        grad(out, {q, k, v}, own(s.heads, 77).detach(), {.create_graph = true});
    const Tensor scalar = sum(square(first[0])) + sum(square(first[1])) + sum(square(first[2]));
    TensorList found;
    for (const Tensor& d : grad(scalar, {q, k, v})) {
      found.push_back(gather_chunks(d.detach(), 2, layout));
    }
    return found;
  };
  const TensorList expected = second({});
  run_parallel(ranks, {.context_parallel_size = ranks}, [&] {
    const TensorList found = second(context_parallel_layout());
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_LE(distance(found[i], expected[i]), 1e-11);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, ContextParallelAttention, ::testing::Values(2, 4));

TEST(ContextParallelAttention, SaysWhatDoesNotFit) {
  run_parallel(2, {.context_parallel_size = 2}, [] {
    const ContextParallelLayout layout = context_parallel_layout();
    const Tensor q = zeros({1, 4, 6, 4});
    const Tensor k = zeros({1, 2, 6, 4});
    const auto call = [&](const Tensor& a, const Tensor& b, const AttentionOptions& options) {
      context_parallel_attention(a, b, b, options, layout);
    };
    EXPECT_THROW(call(q, zeros({1, 3, 6, 4}), {}), ValueError);
    EXPECT_THROW(call(q, zeros({1, 2, 12, 4}), {}), ValueError);
    EXPECT_THROW(call(zeros({1, 4, 5, 4}), zeros({1, 2, 5, 4}), {}), ValueError);
    EXPECT_THROW(call(q, k, {.mask = full({1, 1, 6, 6}, 1, kBool)}), ValueError);
    EXPECT_THROW(call(q, k, {.mask = full({1, 4, 6, 12}, 1, kBool)}), ValueError);
    EXPECT_THROW(call(q, k, {.dropout_p = 0.5, .dropout_source = RandomKey{1, 2, 0}}), ValueError);
    EXPECT_THROW(call(q, k, {.sinks = zeros({2})}), ValueError);
    EXPECT_THROW(own_chunks(zeros({1, 6}), 1, layout), ValueError);
  });
}

TEST(ContextParallelLayout, EachRankHasAnEarlyAndALateChunk) {
  const ContextParallelLayout layout{.group = nullptr, .rank = 1, .size = 4};
  const SequencePart part = layout.positions(6);
  EXPECT_EQ(part.length, 24);
  ASSERT_EQ(part.runs.size(), 2U);
  EXPECT_EQ(part.runs[0].first, 3);
  EXPECT_EQ(part.runs[1].first, 18);
  // The third of two pieces that sequence parallelism makes of it reaches over both chunks.
  const SequencePart middle = part.slice(2, 4);
  ASSERT_EQ(middle.runs.size(), 2U);
  EXPECT_EQ(middle.runs[0].first, 5);
  EXPECT_EQ(middle.runs[0].count, 1);
  EXPECT_EQ(middle.runs[1].first, 18);
  EXPECT_EQ(middle.runs[1].count, 1);
  EXPECT_EQ(part.slice(3, 6).runs.size(), 1U);
}

TEST(ContextParallelLayout, ChunksGatherInTheOrderOfTheSequence) {
  for (const int ranks : {1, 2, 4}) {
    run_parallel(ranks, {.context_parallel_size = ranks}, [&] {
      const ContextParallelLayout layout = context_parallel_layout();
      const Tensor x = arange(3 * 16 * 2).reshape({3, 16, 2});
      const Tensor own = own_chunks(x, 1, layout);
      EXPECT_EQ(own.size(1), 16 / ranks);
      EXPECT_TRUE(same_bits(gather_chunks(own, 1, layout), x));
    });
  }
}

}  // namespace
}  // namespace tapestry
