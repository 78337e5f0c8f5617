#include "autograd/kernels/attention/attention.h"

#include <limits>

#include "autograd/kernels/philox.h"
#include "fused_testing.h"

namespace tapestry::testing {
namespace attention_test {
namespace {

using kernels::AttentionShape;
using kernels::AttentionStrides;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Inputs and outputs; channels are contiguous, sizes in the order [B,S,H,D]
/// ("BSH") or [B,H,S,D].
struct Problem {
  AttentionShape shape;
  bool rows_first = false;
  Array q, k, v, dout;
  std::vector<char> mask;  // [S,T] unless strides are given; or empty
  AttentionStrides mask_strides = {};
  std::vector<int32_t> starts = {};  // of documents [B,S]; or empty
  std::vector<double> slopes = {};
  std::vector<double> sinks = {};
};

kernels::AttentionDocuments documents(const Problem& p) {
  return {p.starts.empty() ? nullptr : p.starts.data(),
          static_cast<int64_t>(p.starts.size()) / std::max<int64_t>(p.shape.batch, 1)};
}
const double* slopes(const Problem& p) { return p.slopes.empty() ? nullptr : p.slopes.data(); }
const double* sinks(const Problem& p) { return p.sinks.empty() ? nullptr : p.sinks.data(); }

AttentionStrides strides(const Problem& p, int64_t heads, int64_t rows) {
  const int64_t d = p.shape.head_dim;
  return p.rows_first ? AttentionStrides{rows * heads * d, d, heads * d}
                      : AttentionStrides{heads * rows * d, rows * d, d};
}

Problem make(DType dtype, const AttentionShape& s, bool rows_first = false) {
  const int64_t q_size = s.batch * s.heads * s.q_len * s.head_dim;
  const int64_t k_size = s.batch * s.groups * s.kv_len * s.head_dim;
  return {s,
          rows_first,
          random_array(dtype, q_size, 1),
          random_array(dtype, k_size, 2),
          random_array(dtype, k_size, 3),
          random_array(dtype, q_size, 4),
          {},
          {.row = s.kv_len}};
}

struct Result {
  Array out, lse, dq, dk, dv, dsinks;
};

Result run(const Problem& p) {
  const AttentionShape& s = p.shape;
  const DType t = p.q.dtype();
  const AttentionStrides qs = strides(p, s.heads, s.q_len);
  const AttentionStrides ks = strides(p, s.groups, s.kv_len);
  const kernels::AttentionMask mask = {
      p.mask.empty() ? nullptr : reinterpret_cast<const bool*>(p.mask.data()), p.mask_strides};
  Result r{Array(t, p.q.size()), Array(statistics_dtype(t), s.batch * s.heads * s.q_len),
           Array(t, p.q.size()), Array(t, p.k.size()),
           Array(t, p.k.size()), Array(kFloat64, Doubles(p.sinks.size(), 0.0))};
  kernels::attention({.dtype = t,
                      .shape = s,
                      .q = {p.q.data(), qs},
                      .k = {p.k.data(), ks},
                      .v = {p.v.data(), ks},
                      .mask = mask,
                      .documents = documents(p),
                      .slopes = slopes(p),
                      .sinks = sinks(p),
                      .out = {r.out.data(), qs},
                      .lse = r.lse.data()});
  kernels::attention_backward({.dtype = t,
                               .shape = s,
                               .q = {p.q.data(), qs},
                               .k = {p.k.data(), ks},
                               .v = {p.v.data(), ks},
                               .mask = mask,
                               .documents = documents(p),
                               .slopes = slopes(p),
                               .sinks = sinks(p),
                               .out = {r.out.data(), qs},
                               .dout = {p.dout.data(), qs},
                               .lse = r.lse.data(),
                               .dq = {r.dq.data(), qs},
                               .dk = {r.dk.data(), ks},
                               .dv = {r.dv.data(), ks},
                               .dsinks = r.dsinks.as<double>()});
  return r;
}

struct Expected {
  Doubles out, lse, dq, dk, dv, dsinks;
};

/// Row after row, with the whole row of probabilities in memory.
Expected reference(const Problem& p) {
  const AttentionShape& s = p.shape;
  const AttentionStrides qs = strides(p, s.heads, s.q_len);
  const AttentionStrides ks = strides(p, s.groups, s.kv_len);
  Expected e{Doubles(p.q.size()), Doubles(s.batch * s.heads * s.q_len),
             Doubles(p.q.size()), Doubles(p.k.size()),
             Doubles(p.k.size()), Doubles(p.sinks.size(), 0.0)};
  const int64_t total_heads = s.total_heads > 0 ? s.total_heads : s.heads;
  const int64_t total_rows = s.total_rows > 0 ? s.total_rows : s.q_len;
  const int64_t total_cols = s.total_cols > 0 ? s.total_cols : s.kv_len;
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t h = 0; h < s.heads; ++h) {
      const int64_t g = h / (s.heads / s.groups);
      for (int64_t i = 0; i < s.q_len; ++i) {
        const int64_t qi = b * qs.batch + h * qs.head + i * qs.row;
        const auto kj = [&](int64_t j) { return b * ks.batch + g * ks.head + j * ks.row; };
        const int64_t position = i + s.q_offset;
        Doubles prob(s.kv_len, 0.0);
        Doubles keep(s.kv_len, 1.0);
        Doubles slope(s.kv_len, 1.0);  // of the cap
        double max = -kInfinity;
        for (int64_t j = 0; j < s.kv_len; ++j) {
          bool sees = !s.causal || j <= position;
          sees = sees && (s.window_left < 0 || j >= position - s.window_left);
          sees =
              sees && (p.mask.empty() || p.mask[b * p.mask_strides.batch + h * p.mask_strides.head +
                                                i * p.mask_strides.row + j] != 0);
          sees = sees &&
                 (p.starts.empty() || j >= p.starts[b * (p.starts.size() / s.batch) + position]);
          for (int64_t d = 0; sees && d < s.head_dim; ++d) {
            prob[j] += s.scale * p.q[qi + d] * p.k[kj(j) + d];
          }
          if (s.score_cap > 0) {  // tanh' = 1 / cosh^2
            const double z = prob[j] / s.score_cap;
            prob[j] = s.score_cap * std::tanh(z);
            slope[j] = 1 / (std::cosh(z) * std::cosh(z));
          }
          prob[j] += p.slopes.empty() ? 0.0 : p.slopes[h] * static_cast<double>(j - position);
          prob[j] = sees ? prob[j] : -kInfinity;
          max = std::max(max, prob[j]);
          if (s.dropout_p > 0) {
            const int64_t sample = s.sample_streams != nullptr ? 0 : s.sample_offset + b;
            const uint64_t stream =
                s.sample_streams != nullptr ? s.sample_streams[b] : s.rng_stream;
            const int64_t index =
                ((sample * total_heads + s.head_offset + h) * total_rows + position) * total_cols +
                j;
            bool kept = false;
            kernels::fill_bernoulli(1, s.rng_seed, stream, static_cast<uint64_t>(index),
                                    1 - s.dropout_p, &kept);
            keep[j] = kept ? 1 / (1 - s.dropout_p) : 0;
          }
        }
        const double sink = p.sinks.empty() ? -kInfinity : p.sinks[h];
        max = std::max(max, sink);
        const double sink_term = max == -kInfinity ? 0 : std::exp(sink - max);
        double sum = sink_term;
        for (double& x : prob) {
          x = max == -kInfinity ? 0 : std::exp(x - max);
          sum += x;
        }
        e.lse[(b * s.heads + h) * s.q_len + i] = sum == 0 ? -kInfinity : max + std::log(sum);
        double delta = 0;
        Doubles dprob(s.kv_len);
        for (int64_t j = 0; j < s.kv_len; ++j) {
          prob[j] = sum == 0 ? 0 : prob[j] / sum;
          for (int64_t d = 0; d < s.head_dim; ++d) {
            e.out[qi + d] += prob[j] * keep[j] * p.v[kj(j) + d];
            e.dv[kj(j) + d] += prob[j] * keep[j] * p.dout[qi + d];
            dprob[j] += p.dout[qi + d] * p.v[kj(j) + d] * keep[j];
          }
          delta += prob[j] * dprob[j];
        }
        if (!p.sinks.empty() && sum != 0) {  // as a key whose value is 0
          e.dsinks[h] += sink_term / sum * (0 - delta);
        }
        for (int64_t j = 0; j < s.kv_len; ++j) {
          const double ds = s.scale * slope[j] * prob[j] * (dprob[j] - delta);
          for (int64_t d = 0; d < s.head_dim; ++d) {
            e.dq[qi + d] += ds * p.k[kj(j) + d];
            e.dk[kj(j) + d] += ds * p.q[qi + d];
          }
        }
      }
    }
  }
  return e;
}

void expect_matches(const Problem& p) {
  const Result r = run(p);
  const Expected e = reference(p);
  const DType t = p.q.dtype();
  // The backward pass of 16-bit types starts from a rounded output.
  const double loose = 3 * tolerance(t);
  expect_close(r.out, e.out, "out");
  expect_close(r.lse, e.lse, "lse");
  expect_close(r.dq, e.dq, "dq", loose, p.shape.scale);
  expect_close(r.dk, e.dk, "dk", loose, p.shape.scale);
  expect_close(r.dv, e.dv, "dv", loose);
  // Of a sum over all queries, whose terms cancel: against the number of them.
  expect_close(r.dsinks, e.dsinks, "dsinks", loose,
               std::sqrt(static_cast<double>(p.shape.batch * p.shape.q_len)));
}

AttentionShape shape_of(
    int64_t batch, int64_t heads, int64_t groups, int64_t q_len, int64_t kv_len, int64_t head_dim) {
  AttentionShape s;
  s.batch = batch;
  s.heads = heads;
  s.groups = groups;
  s.q_len = q_len;
  s.kv_len = kv_len;
  s.head_dim = head_dim;
  s.scale = 1 / std::sqrt(static_cast<double>(head_dim));
  return s;
}

TEST(Attention, MatchesLoops) {
  for_each_dtype([](DType dtype) {
    for (const bool rows_first : {false, true}) {
      for (const bool causal : {false, true}) {
        for (AttentionShape s : {shape_of(1, 1, 1, 1, 1, 1), shape_of(2, 4, 2, 70, 70, 8),
                                 shape_of(1, 3, 1, 65, 131, 33), shape_of(1, 2, 2, 130, 67, 32),
                                 shape_of(1, 2, 1, 64, 128, 64)}) {
          s.causal = causal;
          SCOPED_TRACE(::testing::Message() << s.q_len << "x" << s.kv_len << "x" << s.head_dim
                                            << " causal " << causal << " BSH " << rows_first);
          expect_matches(make(dtype, s, rows_first));
        }
      }
    }
  });
}

TEST(Attention, AnyHeadSize) {
  for_each_dtype([](DType dtype) {
    for (const int64_t dim : {2, 3, 15, 17, 40, 65, 80, 127, 128, 255, 256}) {
      AttentionShape s = shape_of(1, 2, 1, 35, 70, dim);
      s.causal = true;
      s.q_offset = 35;
      SCOPED_TRACE(dim);
      expect_matches(make(dtype, s));
    }
  });
}

TEST(Attention, ManyBlocks) {
  // More queries than pass over the keys together, and diagonals at any place
  // in a block.
  for_each_dtype([](DType dtype) {
    for (const int64_t window : {-1, 100}) {
      for (const int64_t offset : {3, 64}) {
        AttentionShape s = shape_of(1, 2, 1, 333, 333 + offset, 20);
        s.causal = true;
        s.window_left = window;
        s.q_offset = offset;
        SCOPED_TRACE(::testing::Message() << "window " << window << " offset " << offset);
        expect_matches(make(dtype, s));
      }
    }
  });
}

TEST(Attention, EveryDiagonal) {
  at_every_cpu_level([] {
    for (const DType dtype : {kFloat32, kBFloat16}) {
      for (int64_t offset = 0; offset < 66; ++offset) {
        AttentionShape s = shape_of(1, 1, 1, 66, 135, 4);
        s.causal = true;
        s.window_left = 20 + offset % 7;
        s.q_offset = offset;
        SCOPED_TRACE(offset);
        expect_matches(make(dtype, s));
      }
    }
  });
}

TEST(Attention, QueriesOfSeveralCallsShareKeys) {
  // Two runs of queries that lie apart, as a context-parallel rank has them:
  // each meets the keys up to its end, and the gradients of the keys add up in
  // the compute type.
  for_each_dtype([](DType dtype) {
    constexpr int64_t kChunk = 45;
    constexpr int64_t kLength = 4 * kChunk;
    constexpr int64_t kDim = 16;
    AttentionShape s = shape_of(1, 2, 1, kLength, kLength, kDim);
    s.causal = true;
    s.window_left = 70;
    s.dropout_p = 0.2;
    s.rng_seed = 3;
    s.total_rows = kLength;
    s.total_cols = kLength;
    Problem p = make(dtype, s);
    std::vector<char> own(kLength, 0);
    for (const int64_t chunk : {1, 2}) {
      std::fill_n(own.begin() + chunk * kChunk, kChunk, 1);
    }
    for (int64_t i = 0; i < 2 * kLength * kDim; ++i) {
      if (own[i / kDim % kLength] == 0) {
        p.dout.set(i, 0);  // the other queries then add nothing to the keys
      }
    }
    const Expected e = reference(p);
    const AttentionStrides qs = strides(p, 2, kLength);
    const AttentionStrides ks = strides(p, 1, kLength);
    const int64_t item = size_of(dtype);
    Array out(dtype, Doubles(p.q.size()));
    Array dq(dtype, Doubles(p.q.size()));
    Array dk(statistics_dtype(dtype), Doubles(p.k.size()));
    Array dv(statistics_dtype(dtype), Doubles(p.k.size()));
    for (const int64_t chunk : {1, 2}) {
      AttentionShape part = s;
      part.q_offset = chunk * kChunk;
      part.q_len = kChunk;
      part.kv_len = part.q_offset + kChunk;
      const auto rows = [&](const Array& x) {
        return static_cast<char*>(const_cast<void*>(x.data())) + part.q_offset * kDim * item;
      };
      Array lse(statistics_dtype(dtype), 2 * kChunk);
      kernels::attention({.dtype = dtype,
                          .shape = part,
                          .q = {rows(p.q), qs},
                          .k = {p.k.data(), ks},
                          .v = {p.v.data(), ks},
                          .out = {rows(out), qs},
                          .lse = lse.data()});
      kernels::attention_backward({.dtype = dtype,
                                   .shape = part,
                                   .q = {rows(p.q), qs},
                                   .k = {p.k.data(), ks},
                                   .v = {p.v.data(), ks},
                                   .out = {rows(out), qs},
                                   .dout = {rows(p.dout), qs},
                                   .lse = lse.data(),
                                   .dq = {rows(dq), qs},
                                   .dk = {dk.data(), ks},
                                   .dv = {dv.data(), ks},
                                   .add_dkv = true});
    }
    const double loose = 3 * tolerance(dtype);
    expect_close(dk, e.dk, "dk", loose, s.scale);
    expect_close(dv, e.dv, "dv", loose);
    expect_close(dq, e.dq, "dq", loose, s.scale);
    for (int64_t i = 0; i < p.q.size(); ++i) {
      ASSERT_TRUE(own[i / kDim % kLength] != 0 || (out[i] == 0 && dq[i] == 0));
    }
  });
}

TEST(Attention, RowsOfAFusedProjection) {
  // [B, S, groups, heads per group + 2, D]: the queries of a group, its key,
  // its value.
  for_each_dtype([](DType dtype) {
    AttentionShape s = shape_of(2, 4, 2, 90, 90, 24);
    s.causal = true;
    const int64_t per_row = 2 * (2 + 2) * 24;
    const int64_t item = size_of(dtype);
    const Array fused = random_array(dtype, 2 * 90 * per_row, 9);
    const auto* start = static_cast<const char*>(fused.data());
    Problem p = make(dtype, s);
    const AttentionStrides qs = strides(p, 4, 90);
    const AttentionStrides ks = strides(p, 2, 90);
    for (int64_t b = 0; b < 2; ++b) {
      for (int64_t i = 0; i < 90; ++i) {
        for (int64_t d = 0; d < 24; ++d) {
          const auto from = [&](int64_t group, int64_t part) {
            return fused[(b * 90 + i) * per_row + (group * 4 + part) * 24 + d];
          };
          for (int64_t g = 0; g < 2; ++g) {
            for (int64_t h = 0; h < 2; ++h) {
              p.q.set(b * qs.batch + (g * 2 + h) * qs.head + i * qs.row + d, from(g, h));
            }
            p.k.set(b * ks.batch + g * ks.head + i * ks.row + d, from(g, 2));
            p.v.set(b * ks.batch + g * ks.head + i * ks.row + d, from(g, 3));
          }
        }
      }
    }
    // Heads of one group are D apart, those of the next group two places
    // further on: one call for each group.
    const Result expected = run(p);
    Array out(dtype, p.q.size());
    Array lse(statistics_dtype(dtype), 2 * 4 * 90);
    for (int64_t b = 0; b < 2; ++b) {
      for (int64_t g = 0; g < 2; ++g) {
        AttentionShape part = s;
        part.batch = 1;
        part.heads = 2;
        part.groups = 1;
        const AttentionStrides rows{0, 24, per_row};
        const auto address = [&](int64_t place) {
          return start + (b * 90 * per_row + (g * 4 + place) * 24) * item;
        };
        kernels::attention(
            {.dtype = dtype,
             .shape = part,
             .q = {address(0), rows},
             .k = {address(2), rows},
             .v = {address(3), rows},
             .out = {static_cast<char*>(out.data()) + (b * qs.batch + g * 2 * qs.head) * item, qs},
             .lse = static_cast<char*>(lse.data()) + (b * 4 + g * 2) * 90 * size_of(lse.dtype())});
      }
    }
    EXPECT_TRUE(out.same_bits(expected.out));
    EXPECT_TRUE(lse.same_bits(expected.lse));
  });
}

TEST(Attention, EmptySizes) {
  at_every_cpu_level([] {
    for (const AttentionShape& s : {shape_of(0, 2, 1, 3, 3, 4), shape_of(1, 2, 1, 0, 3, 4),
                                    shape_of(1, 2, 1, 3, 0, 4), shape_of(1, 0, 0, 3, 3, 4)}) {
      if (s.heads > 0) {
        expect_matches(make(kFloat32, s));
      }
    }
  });
}

TEST(Attention, Windows) {
  at_every_cpu_level([] {
    for (const bool causal : {true, false}) {
      for (const int64_t window : {0, 1, 7, 63, 64, 100, 1000}) {
        AttentionShape s = shape_of(1, 2, 1, 150, 150, 16);
        s.causal = causal;
        s.window_left = window;
        SCOPED_TRACE(window);
        expect_matches(make(kFloat32, s));
      }
    }
  });
}

TEST(Attention, QueryOffset) {
  at_every_cpu_level([] {
    for (const int64_t offset : {1, 64, 77, -5}) {
      AttentionShape s = shape_of(1, 2, 2, 66, 140, 16);
      s.causal = true;
      s.window_left = 90;
      s.q_offset = offset;
      SCOPED_TRACE(offset);
      expect_matches(make(kFloat32, s));
    }
  });
}

TEST(Attention, MaskAndRowsWithoutKeys) {
  for_each_dtype([](DType dtype) {
    for (const bool causal : {false, true}) {
      AttentionShape s = shape_of(2, 2, 1, 70, 150, 16);
      s.causal = causal;
      Problem p = make(dtype, s);
      p.mask.resize(70 * 150);
      for (int64_t i = 0; i < 70; ++i) {
        for (int64_t j = 0; j < 150; ++j) {
          const bool seen = i % 5 != 3 && (i * 7 + j * 3) % 4 != 0 && !(i == 20 && j < 70);
          p.mask[i * 150 + j] = seen ? 1 : 0;
        }
      }
      expect_matches(p);
      const Result r = run(p);
      for (int64_t d = 0; d < 16; ++d) {  // row 3 sees nothing
        EXPECT_EQ(r.out[3 * 16 + d], 0);
        EXPECT_EQ(r.dq[3 * 16 + d], 0);
      }
      EXPECT_EQ(r.lse[3], -kInfinity);
    }
  });
}

TEST(Attention, MasksOfSamplesAndHeads) {
  for_each_dtype([](DType dtype) {
    for (const bool causal : {false, true}) {
      AttentionShape s = shape_of(2, 4, 2, 70, 150, 16);
      s.causal = causal;
      for (const AttentionStrides& strides :
           {AttentionStrides{150, 0, 0}, AttentionStrides{0, 150, 0}, AttentionStrides{600, 150, 0},
            AttentionStrides{70 * 150, 0, 150}, AttentionStrides{4 * 70 * 150, 70 * 150, 150}}) {
        Problem p = make(dtype, s);
        p.mask_strides = strides;
        p.mask.resize(2 * 4 * 70 * 150);
        for (size_t i = 0; i < p.mask.size(); ++i) {
          p.mask[i] = i * 7 % 11 < 6 && i % 300 < 220 ? 1 : 0;
        }
        expect_matches(p);
      }
    }
  });
}

TEST(Attention, PaddedKeysOfWholeBlocksAreNotLookedAt) {
  // NaN in keys and values that are multiplied by 0 would be seen.
  at_every_cpu_level([] {
    constexpr int64_t kKeys = 300;
    constexpr int64_t kDim = 16;
    for (const DType dtype : {kFloat32, kBFloat16}) {
      for (const bool per_row : {false, true}) {
        Problem p = make(dtype, shape_of(3, 2, 1, 200, kKeys, kDim));
        const std::vector<int64_t> lengths = {64, kKeys, 0};
        p.mask_strides =
            per_row ? AttentionStrides{200 * kKeys, 0, kKeys} : AttentionStrides{kKeys, 0, 0};
        p.mask.assign(per_row ? 3 * 200 * kKeys : 3 * kKeys, 0);
        for (int64_t b = 0; b < 3; ++b) {
          for (int64_t row = 0; row < (per_row ? 200 : 1); ++row) {
            for (int64_t j = 0; j < lengths[b]; ++j) {
              p.mask[b * p.mask_strides.batch + row * p.mask_strides.row + j] = 1;
            }
          }
          for (int64_t i = (b * kKeys + lengths[b]) * kDim; i < (b + 1) * kKeys * kDim; ++i) {
            p.k.set(i, std::nan(""));
            p.v.set(i, std::nan(""));
          }
        }
        const Result r = run(p);
        for (const Array* x : {&r.out, &r.dq, &r.dk, &r.dv}) {
          for (int64_t i = 0; i < x->size(); ++i) {
            ASSERT_TRUE(std::isfinite((*x)[i])) << i;
          }
        }
        for (int64_t i = 64 * kDim; i < kKeys * kDim; ++i) {
          ASSERT_EQ(r.dk[i], 0);
          ASSERT_EQ(r.dv[i], 0);
        }
        EXPECT_EQ(r.lse[2 * 2 * 200], -kInfinity);
      }
    }
  });
}

TEST(Attention, WindowLeavesNoKeys) {
  // Queries far behind the last key.
  AttentionShape s = shape_of(1, 1, 1, 80, 10, 8);
  s.causal = true;
  s.window_left = 3;
  at_every_cpu_level([&] { expect_matches(make(kFloat32, s)); });
}

// Starts of documents of these lengths, again and again, in each row of `length` tokens; every row
// begins one token later in the list.
std::vector<int32_t> starts_of(int64_t batch, int64_t length, const std::vector<int64_t>& lengths) {
  std::vector<int32_t> starts;
  for (int64_t b = 0; b < batch; ++b) {
    int64_t start = 0;
    int64_t end = lengths[b % lengths.size()];
    for (int64_t p = 0, n = b; p < length; ++p) {
      if (p == end) {
        start = end;
        end += lengths[++n % lengths.size()];
      }
      starts.push_back(static_cast<int32_t>(start));
    }
  }
  return starts;
}

TEST(Attention, Documents) {
  for_each_dtype([](DType dtype) {
    for (const std::vector<int64_t>& lengths :
         {std::vector<int64_t>{128}, {1}, {7, 1, 30}, {63, 66}, {200, 90, 1000}}) {
      const int64_t tokens = lengths[0] == 200 ? 333 : 150;
      AttentionShape s = shape_of(2, 2, 1, tokens, tokens, 8);
      s.causal = true;
      s.window_left = lengths[0] == 63 ? 20 : -1;
      Problem p = make(dtype, s);
      p.starts = starts_of(2, tokens, lengths);
      SCOPED_TRACE(lengths[0]);
      expect_matches(p);
    }
  });
}

TEST(Attention, DocumentsWithAllElse) {
  for_each_dtype([](DType dtype) {
    for (const int64_t offset : {64, 77}) {
      AttentionShape s = shape_of(2, 2, 1, 100, 100 + offset, 8);
      s.causal = true;
      s.q_offset = offset;
      s.window_left = 90;
      s.dropout_p = 0.3;
      s.rng_seed = 5;
      s.total_rows = 300;
      Problem p = make(dtype, s);
      p.starts = starts_of(2, 100 + offset, {40, 71, 9});
      p.slopes = {0.5, 0.125};
      p.mask_strides = {s.kv_len, 0, 0};
      p.mask.assign(2 * s.kv_len, 1);
      for (size_t i = 0; i < p.mask.size(); i += 5) {
        p.mask[i] = 0;
      }
      SCOPED_TRACE(offset);
      expect_matches(p);
    }
  });
}

TEST(Attention, DocumentsAreWhatSeparateSamplesAre) {
  // To the bit where they fill whole blocks: everything is summed in the same order.
  at_every_cpu_level([] {
    for (const DType dtype : {kFloat32, kBFloat16}) {
      constexpr int64_t kLength = 128;
      AttentionShape s = shape_of(4, 2, 1, kLength, kLength, 16);
      s.causal = true;
      Problem apart = make(dtype, s, /*rows_first=*/true);
      Problem joined = apart;
      joined.shape.batch = 1;
      joined.shape.q_len = joined.shape.kv_len = 4 * kLength;
      joined.starts = starts_of(1, 4 * kLength, {kLength});
      const Result a = run(apart);
      const Result j = run(joined);
      EXPECT_TRUE(j.out.same_bits(a.out));
      EXPECT_TRUE(j.dq.same_bits(a.dq));
      EXPECT_TRUE(j.dk.same_bits(a.dk));
      EXPECT_TRUE(j.dv.same_bits(a.dv));
    }
  });
}

TEST(Attention, KeysOfOtherDocumentsAreNotLookedAt) {
  // NaN in keys and values that are multiplied by 0 would be seen.
  at_every_cpu_level([] {
    constexpr int64_t kDim = 16;
    for (const DType dtype : {kFloat32, kBFloat16}) {
      AttentionShape s = shape_of(1, 2, 1, 384, 384, kDim);
      s.causal = true;
      Problem p = make(dtype, s);
      p.starts = starts_of(1, 384, {128});
      for (int64_t i = 128 * kDim; i < 256 * kDim; ++i) {
        p.k.set(i, std::nan(""));
        p.v.set(i, std::nan(""));
      }
      const Result r = run(p);
      for (int64_t h = 0; h < 2; ++h) {
        for (int64_t i = 0; i < 384 * kDim; ++i) {
          const bool own = i / kDim / 128 == 1;
          ASSERT_TRUE(own || (std::isfinite(r.out[h * 384 * kDim + i]) &&
                              std::isfinite(r.dq[h * 384 * kDim + i])));
          ASSERT_TRUE(own || (std::isfinite(r.dk[i]) && std::isfinite(r.dv[i])));
        }
      }
    }
  });
}

TEST(Attention, LinearBias) {
  for_each_dtype([](DType dtype) {
    for (const double scale : {0.25, -0.25}) {
      AttentionShape s = shape_of(1, 3, 1, 90, 130, 8);
      s.scale = scale;
      s.causal = true;
      s.q_offset = 40;
      Problem p = make(dtype, s);
      p.slopes = {0.5, 0.0625, 0.00390625};
      SCOPED_TRACE(scale);
      expect_matches(p);
    }
  });
}

TEST(Attention, ScoreCap) {
  for_each_dtype([](DType dtype) {
    for (const double cap : {0.5, 3.0, 50.0}) {
      for (const double scale : {0.7, -0.7, 0.0}) {
        AttentionShape s = shape_of(1, 2, 1, 70, 80, 8);
        s.score_cap = cap;
        s.scale = scale;
        SCOPED_TRACE(::testing::Message() << "cap " << cap << " scale " << scale);
        expect_matches(make(dtype, s));
        s.causal = true;
        s.window_left = 33;
        s.q_offset = 10;
        expect_matches(make(dtype, s));
      }
    }
  });
}

TEST(Attention, ScoreCapWithAllElse) {
  for_each_dtype([](DType dtype) {
    AttentionShape s = shape_of(2, 2, 1, 100, 177, 8);
    s.causal = true;
    s.q_offset = 77;
    s.window_left = 90;
    s.dropout_p = 0.3;
    s.rng_seed = 5;
    s.total_rows = 300;
    s.score_cap = 1.5;
    Problem p = make(dtype, s);
    p.starts = starts_of(2, 177, {40, 71, 9});
    p.slopes = {0.5, 0.125};
    p.mask_strides = {s.kv_len, 0, 0};
    p.mask.assign(2 * s.kv_len, 1);
    for (size_t i = 0; i < p.mask.size(); i += 5) {
      p.mask[i] = 0;
    }
    expect_matches(p);
  });
}

TEST(Attention, Sinks) {
  for_each_dtype([](DType dtype) {
    for (const double scale : {0.3, -0.3, 0.0}) {
      for (const double cap : {0.0, 2.0}) {
        AttentionShape s = shape_of(1, 4, 2, 70, 80, 8);
        s.scale = scale;
        s.score_cap = cap;
        Problem p = make(dtype, s);
        p.sinks = {0.5, -3, 9, -kInfinity};  // a term of many, hardly one, most of all, none
        SCOPED_TRACE(::testing::Message() << "scale " << scale << " cap " << cap);
        expect_matches(p);
        p.shape.causal = true;
        p.shape.window_left = 33;
        p.shape.q_offset = 10;
        expect_matches(p);
      }
    }
  });
}

TEST(Attention, SinksWithAllElse) {
  for_each_dtype([](DType dtype) {
    AttentionShape s = shape_of(2, 2, 1, 300, 377, 8);
    s.causal = true;
    s.q_offset = 77;
    s.window_left = 90;
    s.dropout_p = 0.3;
    s.rng_seed = 5;
    s.score_cap = 1.5;
    s.total_rows = 400;
    Problem p = make(dtype, s);
    p.sinks = {1.5, -0.5};
    p.starts = starts_of(2, 377, {40, 71, 9});
    p.slopes = {0.5, 0.125};
    p.mask_strides = {s.kv_len, 0, 0};
    p.mask.assign(2 * s.kv_len, 1);
    for (size_t i = 0; i < p.mask.size(); i += 5) {
      p.mask[i] = 0;
    }
    expect_matches(p);
  });
}

TEST(Attention, ASinkIsAllThatAQueryWithoutKeysHas) {
  at_every_cpu_level([] {
    for (const DType dtype : {kFloat32, kBFloat16}) {
      AttentionShape s = shape_of(1, 2, 1, 80, 10, 8);
      s.causal = true;
      s.window_left = 3;
      Problem p = make(dtype, s);
      p.sinks = {0.25, -2};
      expect_matches(p);
      const Result r = run(p);
      for (int64_t h = 0; h < 2; ++h) {  // the last queries see nothing
        EXPECT_NEAR(r.lse[h * 80 + 79], p.sinks[h], 1e-6);
        EXPECT_EQ(r.out[(h * 80 + 79) * 8], 0);
        EXPECT_EQ(r.dq[(h * 80 + 79) * 8], 0);
      }
    }
  });
}

TEST(Attention, CappedScoresStayFinite) {
  // Raw scores far beyond float's range of exponents: each is one of the two ends.
  at_every_cpu_level([] {
    for (const DType dtype : {kFloat32, kBFloat16}) {
      AttentionShape s = shape_of(1, 1, 1, 70, 140, 8);
      s.scale = 1e6;
      s.score_cap = 30;
      const Problem p = make(dtype, s);
      const Result r = run(p);
      expect_close(r.out, reference(p).out, "out");
      for (int64_t i = 0; i < r.dq.size(); ++i) {
        ASSERT_TRUE(std::isfinite(r.dq[i]));
      }
    }
  });
}

TEST(Attention, LargeScores) {
  at_every_cpu_level([] {
    AttentionShape s = shape_of(1, 1, 1, 70, 140, 8);
    for (const double scale : {300.0, -300.0, 0.0}) {
      s.scale = scale;
      s.causal = true;
      const Problem p = make(kFloat64, s);
      const Result r = run(p);
      const Expected e = reference(p);
      expect_close(r.out, e.out, "out", 1e-11);
      // A score near 1000 is off by 1e-13, and so is its probability, times the
      // scale.
      expect_close(r.dq, e.dq, "dq", 1e-11, std::abs(scale));
      expect_close(r.dk, e.dk, "dk", 1e-11, std::abs(scale));
      for (const double x : run(make(kFloat32, s)).out.values()) {
        ASSERT_TRUE(std::isfinite(x));
      }
    }
  });
}

TEST(Attention, Dropout) {
  for_each_dtype([](DType dtype) {
    AttentionShape s = shape_of(2, 2, 1, 70, 131, 16);
    s.causal = true;
    s.dropout_p = 0.3;
    s.rng_seed = 5;
    s.rng_stream = 9;
    s.sample_offset = 3;
    s.head_offset = 1;
    s.total_heads = 5;
    s.total_rows = 100;
    s.total_cols = 133;
    s.q_offset = 7;
    expect_matches(make(dtype, s));
    const uint64_t streams[] = {11, 12};
    s.sample_streams = streams;
    expect_matches(make(dtype, s));
  });
}

TEST(Attention, DropoutDoesNotDependOnTheCut) {
  // The second head alone, told where it belongs, gives what it gave among
  // others.
  AttentionShape s = shape_of(1, 2, 2, 70, 70, 16);
  s.dropout_p = 0.5;
  s.rng_seed = 1;
  Problem whole = make(kFloat32, s);
  AttentionShape half = s;
  half.heads = 1;
  half.groups = 1;
  half.head_offset = 1;
  half.total_heads = 2;
  Problem part = make(kFloat32, half);
  const int64_t size = 70 * 16;
  for (int64_t i = 0; i < size; ++i) {
    part.q.set(i, whole.q[size + i]);
    part.k.set(i, whole.k[size + i]);
    part.v.set(i, whole.v[size + i]);
  }
  const Result a = run(whole);
  const Result b = run(part);
  for (int64_t i = 0; i < size; ++i) {
    ASSERT_EQ(a.out[size + i], b.out[i]);
  }
}

TEST(Attention, GradientsMatchDifferences) {
  AttentionShape s = shape_of(1, 2, 1, 5, 6, 3);
  s.causal = true;
  s.window_left = 2;
  s.dropout_p = 0.25;
  s.rng_seed = 3;
  s.score_cap = 1.5;
  Problem p = make(kFloat64, s);
  p.sinks = {0.5, -1};
  const Result r = run(p);
  const auto loss = [&] {
    const Result now = run(p);
    double sum = 0;
    for (int64_t i = 0; i < now.out.size(); ++i) {
      sum += now.out[i] * p.dout[i];
    }
    return sum;
  };
  const auto expect_gradient = [&](Array& x, const Array& gradient) {
    for (int64_t i = 0; i < x.size(); ++i) {
      const double before = x[i];
      x.set(i, before + 1e-6);
      const double above = loss();
      x.set(i, before - 1e-6);
      const double below = loss();
      x.set(i, before);
      ASSERT_NEAR(gradient[i], (above - below) / 2e-6, 1e-8);
    }
  };
  expect_gradient(p.q, r.dq);
  for (int64_t h = 0; h < 2; ++h) {
    const double before = p.sinks[h];
    p.sinks[h] = before + 1e-6;
    const double above = loss();
    p.sinks[h] = before - 1e-6;
    const double below = loss();
    p.sinks[h] = before;
    ASSERT_NEAR(r.dsinks[h], (above - below) / 2e-6, 1e-8);
  }
  expect_gradient(p.k, r.dk);
  expect_gradient(p.v, r.dv);
}

TEST(Attention, SameForAnyTeam) {
  // One group: with a team of 2 or 3 the backward pass splits keys and queries.
  at_every_cpu_level([] {
    for (const int64_t groups : {1, 2, 4}) {
      for (const DType dtype : {kFloat32, kBFloat16}) {
        expect_same_for_any_team([&] {
          AttentionShape s = shape_of(1, 4, groups, 300, 300, 24);
          s.causal = true;
          s.dropout_p = 0.1;
          Problem p = make(dtype, s);
          p.sinks = {0.5, 0, -1, 2};
          if (groups == 2) {  // a large segment, which is split, and a small one
            p.starts = starts_of(1, 300, {263, 1000});
          }
          const Result r = run(p);
          return std::vector<Array>{r.out, r.lse, r.dq, r.dk, r.dv, r.dsinks};
        });
      }
    }
  });
}

}  // namespace
}  // namespace attention_test
}  // namespace tapestry::testing
