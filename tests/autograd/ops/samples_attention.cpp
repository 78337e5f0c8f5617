// Samples of attention and rotary embedding.
#include "autograd/kernels/machine/cpu.h"
#include "autograd/ops/transformer/attention.h"
#include "autograd/ops/transformer/cached_attention.h"
#include "autograd/ops/transformer/rope.h"
#include "autograd/tensor/factory.h"
#include "tests/autograd/ops/op_samples.h"

namespace tapestry {

OP_SAMPLES(scaled_dot_product_attention) {
  // dq and dk are made of p (dp - sum(dy y)) with the rounded y: of a few keys a difference of
  // numbers that are nearly equal. Where the processor multiplies pairs of bfloat16, p is rounded
  // before it meets the values, and so is the result.
  const bool multiplies_pairs = cpu_level() >= CpuLevel::kAvx512Bf16;
  rounds(multiplies_pairs ? 2 : 1, multiplies_pairs ? 7 : 6);
  const auto with = [](const AttentionOptions& options) {
    return [=](const Tensor& q, const Tensor& k, const Tensor& v) {
      return scaled_dot_product_attention(q, k, v, options);
    };
  };
  const auto add_shape = [&](const AttentionOptions& options, const Shape& q, const Shape& kv) {
    add(with(options), {randn(q), randn(kv), randn(kv)});
  };
  add_shape({}, {1, 2, 3, 4}, {1, 2, 3, 4});
  add_shape({}, {1, 2, 2, 3}, {1, 2, 4, 3});
  add_shape({.causal = true}, {2, 2, 4, 2}, {2, 2, 4, 2});
  add_shape({.causal = true}, {1, 4, 3, 2}, {1, 2, 3, 2});  // two heads share a group
  add_shape({.causal = true}, {1, 3, 3, 2}, {1, 1, 3, 2});
  add_shape({.causal = true, .window_left = 1}, {1, 1, 5, 2}, {1, 1, 5, 2});
  add_shape({.causal = true, .window_left = 0}, {1, 1, 3, 2}, {1, 1, 3, 2});
  add_shape({.window_left = 1}, {1, 1, 4, 2}, {1, 1, 4, 2});
  add_shape({.causal = true, .scale = 0.3}, {1, 1, 3, 2}, {1, 1, 3, 2});
  add_shape({.causal = true, .q_offset = 2}, {1, 1, 2, 2}, {1, 1, 4, 2});
  // Rows without a key: queries 3 and 4 see no key of 0 .. 1.
  add_shape({.causal = true, .window_left = 1}, {1, 1, 5, 2}, {1, 1, 2, 2});
  add_shape({.causal = true}, {1, 1, 1, 1}, {1, 1, 1, 1});
  add_shape({.causal = true}, {0, 2, 3, 4}, {0, 2, 3, 4});
  add_shape({}, {1, 2, 0, 3}, {1, 2, 2, 3});
  add_shape({}, {1, 1, 2, 3}, {1, 1, 0, 3});
  const RandomKey key{3, 5, 0};
  add_shape({.causal = true, .dropout_p = 0.4, .dropout_source = key}, {2, 2, 4, 2}, {2, 1, 4, 2});
  add_shape(
      {.dropout_p = 0.4, .dropout_source = key, .dropout_place = {{9, 4, 6, 3}, {5, 2, 0, 0}, 0}},
      {2, 2, 3, 2}, {2, 2, 3, 2});

  const auto masked = [](const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask) {
    return scaled_dot_product_attention(q, k, v, {.mask = mask});
  };
  for (const Shape& mask : {Shape{3, 4}, Shape{4}, Shape{2, 1, 3, 4}, Shape{2, 1, 1, 4},
                            Shape{2, 2, 3, 4}, Shape{1, 2, 1, 1}}) {
    add(masked, {randn({2, 2, 3, 2}), randn({2, 2, 4, 2}), randn({2, 2, 4, 2}), bools(mask)});
  }
  const auto starts = [](const std::vector<std::vector<int64_t>>& rows, int64_t length) {
    return document_starts(rows, length);
  };
  add_shape({.causal = true, .document_starts = starts({{2, 3}, {}}, 5)}, {2, 2, 5, 2},
            {2, 1, 5, 2});
  add_shape({.causal = true, .window_left = 1, .document_starts = starts({{3}}, 6), .q_offset = 2},
            {2, 1, 3, 2}, {2, 1, 5, 2});
  add_shape({.causal = true, .alibi_slopes = {0.5, 0.25}}, {2, 2, 4, 2}, {2, 1, 4, 2});
  add_shape({.score_cap = 0.8}, {1, 2, 3, 4}, {1, 1, 4, 4});
  add_shape({.causal = true, .window_left = 1, .scale = -0.9, .score_cap = 2}, {2, 2, 4, 2},
            {2, 2, 4, 2});
  add_shape({.causal = true,
             .score_cap = 1.5,
             .document_starts = starts({{2}, {}}, 4),
             .alibi_slopes = {0.5, 0.25},
             .dropout_p = 0.4,
             .dropout_source = key},
            {2, 2, 4, 2}, {2, 1, 4, 2});
  const auto with_sinks = [](const AttentionOptions& options) {
    return [=](const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& sinks) {
      AttentionOptions own = options;
      own.sinks = sinks;
      return scaled_dot_product_attention(q, k, v, own);
    };
  };
  const auto add_sinks = [&](const AttentionOptions& options, const Shape& q, const Shape& kv) {
    add(with_sinks(options), {randn(q), randn(kv), randn(kv), randn({q[1]})});
  };
  add_sinks({}, {1, 2, 3, 4}, {1, 1, 4, 4});
  // Queries 3 and 4 see no key.
  add_sinks({.causal = true, .window_left = 1}, {1, 2, 5, 2}, {1, 2, 2, 2});
  add_sinks({.causal = true}, {0, 2, 3, 4}, {0, 2, 3, 4});
  add_sinks({}, {1, 1, 2, 3}, {1, 1, 0, 3});
  add_sinks({.causal = true,
             .score_cap = 1.5,
             .document_starts = starts({{2}, {}}, 4),
             .alibi_slopes = {0.5, 0.25},
             .dropout_p = 0.4,
             .dropout_source = key},
            {2, 2, 4, 2}, {2, 1, 4, 2});
  add_large(with_sinks({.causal = true}),
            {randn({2, 4, 70, 64}), randn({2, 2, 70, 64}), randn({2, 2, 70, 64}), randn({4})});
  add([](const Tensor& x) { return scaled_dot_product_attention(x, x, x, {.causal = true}); },
      {randn({1, 2, 3, 2})});
  add_large(with({.causal = true}),
            {randn({2, 4, 70, 64}), randn({2, 2, 70, 64}), randn({2, 2, 70, 64})});
  add_large(with({.dropout_p = 0.2, .dropout_source = key}),
            {randn({2, 4, 70, 64}), randn({2, 2, 70, 64}), randn({2, 2, 70, 64})});

  const auto add_wrong = [&](const AttentionOptions& options, const Shape& q, const Shape& k,
                             const Shape& v, const std::string& fragment) {
    add_error<ValueError>(with(options), {randn(q), randn(k), randn(v)}, fragment);
  };
  add_wrong({}, {2, 3, 4}, {2, 3, 4}, {2, 3, 4}, "[2, 3, 4]");
  add_wrong({}, {1, 3, 2, 4}, {1, 2, 2, 4}, {1, 2, 2, 4}, "the 2 heads of k");
  add_wrong({}, {1, 2, 2, 4}, {1, 2, 2, 3}, {1, 2, 2, 3}, "head size");
  add_wrong({}, {1, 2, 2, 4}, {2, 2, 2, 4}, {2, 2, 2, 4}, "batch");
  add_wrong({}, {1, 2, 2, 4}, {1, 2, 3, 4}, {1, 2, 2, 4}, "k [1, 2, 3, 4]");
  const Shape s{1, 1, 2, 2};
  const Tensor two = starts({{}}, 2);
  add_wrong({.document_starts = two}, s, s, s, "causal");
  add_wrong({.causal = true, .document_starts = two, .q_offset = 1}, s, s, s, "at least 3");
  add_wrong({.causal = true, .document_starts = starts({{}, {}}, 2)}, s, s, s, "1 or 1");
  add_wrong({.causal = true, .document_starts = tensor<int32_t>({0, 2}, {1, 2})}, s, s, s,
            "got 2 at position 1");
  add_wrong({.causal = true, .document_starts = tensor<int32_t>({-1, 0}, {1, 2})}, s, s, s,
            "got -1 at position 0");
  add_error<TypeError>(with({.causal = true, .document_starts = two.to(kInt64)}),
                       {randn(s), randn(s), randn(s)}, "int32");
  add_wrong({.alibi_slopes = {1, 2}}, s, s, s, "2 slopes for 1 heads");
  add_wrong({.scale = 0, .alibi_slopes = {1}}, s, s, s, "scale of 0");
  add_error<ValueError>(with_sinks({}), {randn(s), randn(s), randn(s), randn({2})},
                        "sinks must be [1], got [2]");
  add_error<TypeError>(with_sinks({}), {randn(s), randn(s), randn(s), integers({1}, 3)},
                       "sinks must be floating");
  add_wrong({.score_cap = -1}, s, s, s, "score_cap");
  add_wrong({.window_left = -1}, s, s, s, "window_left");
  add_wrong({.q_offset = -1}, s, s, s, "q_offset");
  add_wrong({.dropout_p = 1.0}, s, s, s, "dropout_p");
  const auto add_misplaced = [&](const LogicalPlace& place, const std::string& fragment) {
    add_wrong({.dropout_p = 0.5, .dropout_source = key, .dropout_place = place}, s, s, s, fragment);
  };
  add_misplaced({{1, 1, 2}, {0, 0, 0}, 0}, "four axes");
  add_misplaced({{1, 1, 2, 2}, {0, 0, 0, 0}, 1}, "sample_axis");
  add_misplaced({{1, 1, 4, 2}, {0, 0, 1, 0}, 0}, "q_offset");
  add_misplaced({{1, 1, 2, 2}, {0, 1, 0, 0}, 0}, "inside");
  add_error<ValueError>(masked, {randn(s), randn(s), randn(s), bools({3, 2})}, "broadcast");
  add_error<TypeError>(masked, {randn(s), randn(s), randn(s), randn({2, 2})}, "mask must be bool");
  add_error<TypeError>(with({}), {randn(s), randn(s), integers(s, 3)}, "int64");
}

OP_SAMPLES(rope) {
  const auto turn = [](int64_t rows, int64_t rotary_dim, const RopeOptions& options) {
    const RopeTable table = rope_table(rows, rotary_dim, {.base = 100, .dtype = kFloat64});
    const RopeTable narrow{table.cos.to(kFloat32), table.sin.to(kFloat32)};
    return
        [=](const Tensor& x) { return rope(x, x.dtype() == kFloat64 ? table : narrow, options); };
  };
  const Tensor two_rows = tensor<int64_t>({0, 1, 0, 4, 0, 1}, {2, 3});
  for (const bool interleaved : {false, true}) {
    add(turn(5, 4, {.interleaved = interleaved}), {randn({2, 2, 5, 4})});
    add(turn(5, 4, {.interleaved = interleaved}), {randn({1, 2, 3, 7})});  // partly rotated
    add(turn(9, 4, {.interleaved = interleaved, .position_offset = 6}), {randn({1, 1, 3, 4})});
    add_large(turn(64, 32, {.interleaved = interleaved}), {randn({2, 8, 64, 48})});
    add(turn(5, 4, {.interleaved = interleaved, .positions = two_rows}), {randn({2, 2, 3, 5})});
    add(turn(5, 4, {.interleaved = interleaved, .positions = two_rows.slice(0, 1, 2)}),
        {randn({2, 2, 3, 5})});
  }
  add(turn(4, 2, {}), {randn({0, 2, 4, 4})});
  add(turn(4, 2, {}), {randn({1, 1, 0, 2})});
  add_error<ValueError>(turn(4, 4, {}), {randn({4, 4})}, "[B, H, S, D]");
  add_error<ValueError>(turn(4, 6, {}), {randn({1, 1, 2, 4})}, "only 4");
  add_error<ValueError>(turn(4, 4, {}), {randn({1, 1, 5, 4})}, "has 4 rows");
  add_error<ValueError>(turn(4, 4, {.position_offset = 3}), {randn({1, 1, 2, 4})}, "3 .. 4");
  add_error<ValueError>(turn(4, 4, {.position_offset = -1}), {randn({1, 1, 2, 4})}, "-1");
  add_error<TypeError>(turn(4, 4, {}), {integers({1, 1, 2, 4}, 3)}, "floating");
  add_error<ValueError>(turn(4, 4, {.positions = two_rows}), {randn({2, 1, 3, 4})}, "position 4");
  add_error<ValueError>(turn(5, 4, {.positions = two_rows}), {randn({3, 1, 3, 4})}, "[3 or 1, 3]");
  add_error<ValueError>(turn(5, 4, {.positions = two_rows}), {randn({2, 1, 2, 4})}, "[2 or 1, 2]");
  add_error<ValueError>(turn(9, 4, {.position_offset = 1, .positions = two_rows}),
                        {randn({2, 1, 3, 4})}, "exclude");
  add_error<TypeError>(turn(5, 4, {.positions = two_rows.to(kInt32)}), {randn({2, 1, 3, 4})},
                       "int64");
}

OP_SAMPLES(cached_attention) {
  const auto at = [](std::vector<int64_t> positions, const CachedAttentionOptions& options) {
    return [=](const Tensor& q, const Tensor& k, const Tensor& v) {
      return cached_attention(q, k, v, positions, options);
    };
  };
  const auto add_shape = [&](const std::vector<int64_t>& positions,
                             const CachedAttentionOptions& options, const Shape& q,
                             const Shape& kv) {
    add(at(positions, options), {randn(q), randn(kv), randn(kv)}).differentiable({});
  };
  add_shape({4}, {}, {1, 2, 1, 4}, {1, 2, 7, 4});
  add_shape({0, 3}, {}, {2, 4, 1, 3}, {2, 2, 5, 3});  // two heads share a group
  add_shape({2, 0}, {.counts = {1, 3}}, {2, 2, 3, 4}, {2, 1, 6, 4});
  add_shape({0, 2}, {.counts = {0, 2}}, {2, 2, 2, 4}, {2, 1, 6, 4});
  add_shape({3}, {.window_left = 1}, {1, 2, 2, 4}, {1, 2, 8, 4});
  add_shape({9}, {.window_left = 2, .ring = true}, {1, 2, 2, 4}, {1, 2, 5, 4});
  add_shape({3}, {.scale = 0.3, .alibi_slopes = {0.5, 0.25}}, {1, 2, 2, 4}, {1, 1, 6, 4});
  add_shape({3}, {.score_cap = 0.7, .alibi_slopes = {0.5, 0.25}}, {1, 2, 2, 4}, {1, 1, 6, 4});
  add_shape({1}, {}, {1, 1, 70, 4}, {1, 1, 72, 4});  // many queries
  add_shape({3}, {.sinks = tensor<double>({0.5, -1}, {2})}, {1, 2, 2, 4}, {1, 1, 6, 4});
  add_shape({1}, {.score_cap = 0.7}, {1, 1, 70, 4}, {1, 1, 72, 4});
  add_shape({}, {}, {0, 2, 1, 4}, {0, 2, 7, 4});
  add_large(at({700, 300, 999}, {}),
            {randn({3, 8, 4, 64}), randn({3, 2, 1003, 64}), randn({3, 2, 1003, 64})})
      .differentiable({});

  const auto wrong = [&](const std::vector<int64_t>& positions,
                         const CachedAttentionOptions& options, const Shape& q, const Shape& kv,
                         const char* fragment) {
    add_error<ValueError>(at(positions, options), {randn(q), randn(kv), randn(kv)}, fragment);
  };
  const Shape q{1, 2, 1, 4};
  const Shape kv{1, 2, 5, 4};
  wrong({5}, {}, q, kv, "cached_attention: row 0 has 1 queries from position 5 on, the caches");
  wrong({-1}, {}, q, kv, "from position -1 on");
  wrong({}, {}, q, kv, "cached_attention: 0 positions for 1 rows");
  wrong({0}, {.counts = {2}}, q, kv, "row 0 has 2 of 1 queries");
  wrong({0}, {.counts = {1, 1}}, q, kv, "2 counts for 1 rows");
  wrong({0}, {.window_left = -1}, q, kv, "window_left must not");
  wrong({0}, {.ring = true}, q, kv, "a ring needs window_left");
  wrong({0}, {.window_left = 5, .ring = true}, q, kv, "a ring needs window_left");
  wrong({0}, {.sinks = zeros({3})}, q, kv, "sinks must be [2], got [3]");
  wrong({0}, {.score_cap = -1}, q, kv, "score_cap must be a finite number");
  wrong({0}, {.scale = 0.0}, q, kv, "the scale must not be 0");
  wrong({0}, {.alibi_slopes = {0.5}}, q, kv, "1 slopes for 2 heads");
  wrong({0}, {}, {1, 3, 1, 4}, kv, "must divide the 3 heads");
  wrong({0}, {}, {1, 2, 1, 3}, kv, "differ in batch or head");
  wrong({0}, {}, {2, 1, 4}, kv, "q must be [B, H, T, D]");
  add_error<TypeError>(at({0}, {}), {randn(q), randn(kv).to(kFloat32), randn(kv)},
                       "one floating dtype");
}

}  // namespace tapestry
