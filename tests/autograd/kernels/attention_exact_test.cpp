// Attention in exact mode: bits that depend neither on the level, nor on which queries are computed
// together, nor on how they are divided among ranks and threads.
#include <map>
#include <numeric>
#include <string_view>

#include "autograd/kernels/attention/attention.h"
#include "autograd/kernels/exact/exact_class.h"
#include "autograd/kernels/exact/exact_sums.h"
#include "autograd/kernels/machine/cpu.h"
#include "autograd/kernels/machine/exact.h"
#include "fused_testing.h"

namespace tapestry::testing {
namespace attention_exact_test {
namespace {

using kernels::AttentionShape;
using kernels::AttentionStrides;

/// A whole call: arrays [B, heads or groups, S, channels].
struct Call {
  DType dtype = kFloat32;
  AttentionShape shape;
  std::vector<int32_t> starts = {};  // [S]; or empty
  std::vector<double> slopes = {};
  std::vector<double> sinks = {};
};

Call call_of(DType dtype, int64_t heads, int64_t groups, int64_t length, int64_t dim) {
  Call c{dtype};
  c.shape.batch = 1;
  c.shape.heads = heads;
  c.shape.groups = groups;
  c.shape.q_len = length;
  c.shape.kv_len = length;
  c.shape.head_dim = dim;
  c.shape.value_dim = dim;
  c.shape.causal = true;
  c.shape.scale = 1 / std::sqrt(static_cast<double>(dim));
  c.shape.total_rows = length;
  c.shape.total_cols = length;
  return c;
}

AttentionStrides strides(int64_t heads, int64_t rows, int64_t dim) {
  return {heads * rows * dim, rows * dim, dim};
}

/// The rows of x [planes, rows, n] that are wanted, in this order.
Array rows_of(const Array& x, int64_t planes, int64_t rows, const std::vector<int64_t>& wanted) {
  const int64_t n = x.size() / (planes * rows);
  Array out(x.dtype(), planes * static_cast<int64_t>(wanted.size()) * n);
  int64_t at = 0;
  for (int64_t p = 0; p < planes; ++p) {
    for (const int64_t row : wanted) {
      for (int64_t d = 0; d < n; ++d) {
        out.set(at++, x[(p * rows + row) * n + d]);
      }
    }
  }
  return out;
}

std::vector<int64_t> between(int64_t begin, int64_t end) {
  std::vector<int64_t> out(static_cast<size_t>(end - begin));
  std::iota(out.begin(), out.end(), begin);
  return out;
}

/// Of the queries `rows`, which are neighbours in each half of them.
class Pass {
 public:
  Pass(const Call& call, std::vector<int64_t> rows)
      : call_(call), rows_(std::move(rows)), s_(call.shape) {
    const AttentionShape& s = call.shape;
    const int64_t queries = s.batch * s.heads * s.q_len * s.head_dim;
    const int64_t keys = s.batch * s.groups * s.kv_len * s.head_dim;
    const int64_t planes = s.batch * s.heads;
    q_ = rows_of(random_array(call.dtype, queries, 1), planes, s.q_len, rows_);
    dout_ = rows_of(random_array(call.dtype, queries, 4), planes, s.q_len, rows_);
    k_ = random_array(call.dtype, keys, 2);
    v_ = random_array(call.dtype, keys, 3);
    s_.q_len = static_cast<int64_t>(rows_.size());
    s_.q_offset = rows_[0];
    out = Array(call.dtype, q_.size());
    lse = Array(kFloat32, planes * s_.q_len);
    maxima = Array(kFloat32, Doubles(s.heads, -1e30));
  }

  /// Those before `keys` are seen, which must be all that are visible.
  void forward(int64_t keys) {
    AttentionShape s = s_;
    s.kv_len = keys;
    const ExactScope exact;
    kernels::attention({.dtype = call_.dtype,
                        .shape = s,
                        .q = {q_.data(), query_strides()},
                        .k = {k_.data(), key_strides()},
                        .v = {v_.data(), key_strides()},
                        .documents = {call_.starts.empty() ? nullptr : call_.starts.data(), 0},
                        .slopes = pointer(call_.slopes),
                        .sinks = pointer(call_.sinks),
                        .out = {out.data(), query_strides()},
                        .lse = lse.data(),
                        .max_scores = maxima.as<float>()});
  }

  /// `sums`: dk and dv are float32, dk without its factor. Wants out and lse.
  void backward(const kernels::AttentionLeaves& leaves, bool sums) {
    const DType type = sums ? kFloat32 : call_.dtype;
    dq = Array(call_.dtype, q_.size());
    dk = Array(type, Doubles(k_.size(), 0.0));
    dv = Array(type, Doubles(k_.size(), 0.0));
    dsinks = Array(kFloat64, Doubles(call_.sinks.size(), 0.0));
    const ExactScope exact;
    kernels::attention_backward(
        {.dtype = call_.dtype,
         .shape = s_,
         .q = {q_.data(), query_strides()},
         .k = {k_.data(), key_strides()},
         .v = {v_.data(), key_strides()},
         .documents = {call_.starts.empty() ? nullptr : call_.starts.data(), 0},
         .slopes = pointer(call_.slopes),
         .sinks = pointer(call_.sinks),
         .out = {out.data(), query_strides()},
         .dout = {dout_.data(), query_strides()},
         .lse = lse.data(),
         .dq = {dq.data(), query_strides()},
         .dk = {dk.data(), key_strides()},
         .dv = {dv.data(), key_strides()},
         .add_dkv = sums,
         .scale_dk = !sums,
         .leaves = leaves,
         .dsinks = dsinks.as<double>(),
         .exact_dsinks = true});
  }

  std::vector<Array> results() const { return {out, lse, maxima, dq, dk, dv, dsinks}; }

  Array out{kFloat32, 0}, lse{kFloat32, 0}, maxima{kFloat32, 0};
  Array dq{kFloat32, 0}, dk{kFloat32, 0}, dv{kFloat32, 0}, dsinks{kFloat64, 0};

 private:
  static const double* pointer(const std::vector<double>& x) {
    return x.empty() ? nullptr : x.data();
  }
  AttentionStrides query_strides() const { return strides(s_.heads, s_.q_len, s_.head_dim); }
  AttentionStrides key_strides() const {
    return strides(s_.groups, call_.shape.kv_len, s_.head_dim);
  }

  const Call& call_;
  std::vector<int64_t> rows_;
  AttentionShape s_;
  Array q_{kFloat32, 0}, k_{kFloat32, 0}, v_{kFloat32, 0}, dout_{kFloat32, 0};
};

Pass whole(const Call& call, const kernels::AttentionLeaves& leaves) {
  Pass pass(call, between(0, call.shape.q_len));
  pass.forward(call.shape.kv_len);
  pass.backward(leaves, false);
  return pass;
}

/// Calls body(call, leaves) for all that attention has.
template <class Body>
void for_each_call(const Body& body) {
  for (const DType dtype : {kFloat32, kBFloat16}) {
    const auto run = [&](const std::string& what, const Call& call) {
      SCOPED_TRACE(std::string(name_of(dtype)) + ", " + what);
      body(call, sequence_leaves(call.shape.q_len));
    };
    run("plain", call_of(dtype, 2, 2, 256, 64));
    run("head size 80, 320 tokens", call_of(dtype, 2, 1, 320, 80));
    run("head size 128, groups of 4", call_of(dtype, 4, 1, 96, 128));
    run("odd chunks", call_of(dtype, 4, 2, 144, 24));
    run("one leaf", call_of(dtype, 2, 1, 77, 16));
    Call c = call_of(dtype, 4, 2, 256, 32);
    c.shape.window_left = 70;
    run("window", c);
    c = call_of(dtype, 4, 2, 256, 32);
    c.starts.assign(256, 0);
    std::fill(c.starts.begin() + 33, c.starts.end(), 33);
    std::fill(c.starts.begin() + 201, c.starts.end(), 201);
    run("documents", c);
    c.shape.batch = 2;
    c.shape.window_left = 40;
    c.shape.score_cap = 3;
    c.shape.dropout_p = 0.2;
    c.shape.rng_seed = 5;
    c.slopes = {0.5, 0.25, 0.125, 0.0625};
    c.sinks = {0.5, -1, 2, 0};
    run("all at once", c);
  }
}

void expect_same(const std::vector<Array>& got, const std::vector<Array>& expected) {
  const char* const names[] = {"out", "lse", "maxima", "dq", "dk", "dv", "dsinks"};
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(got[i].same_bits(expected[i])) << names[i];
  }
}

TEST(ExactAttention, SameAtEveryLevel) {
  for_each_call([](const Call& call, int64_t leaves) {
    std::map<std::string_view, std::vector<Array>> of_class;
    for (const CpuLevel level : fused_cpu_levels()) {
      SCOPED_TRACE(std::string(name_of(level)));
      const CpuLevelGuard guard(level);
      const std::vector<Array> got = whole(call, {leaves}).results();
      std::vector<Array>& expected = of_class[exact_class(call.dtype)];
      if (expected.empty()) {
        expected = got;
      }
      expect_same(got, expected);
    }
  });
}

TEST(ExactAttention, SameForAnyTeam) {
  at_every_cpu_level([] {
    for_each_call([](const Call& call, int64_t leaves) {
      expect_same_for_any_team([&] { return whole(call, {leaves}).results(); });
    });
  });
}

TEST(ExactAttention, AQueryHasTheSameBitsWhateverIsComputedWithIt) {
  at_every_cpu_level([] {
    for_each_call([](const Call& call, int64_t leaves) {
      const Pass all = whole(call, {leaves});
      const AttentionShape& s = call.shape;
      const int64_t planes = s.batch * s.heads;
      const std::vector<int64_t> cuts = {0, 1, 2, 40, 65, s.q_len - 1, s.q_len};
      for (size_t i = 0; i + 1 < cuts.size(); ++i) {
        const std::vector<int64_t> rows = between(cuts[i], cuts[i + 1]);
        Pass some(call, rows);
        some.forward(cuts[i + 1]);
        some.backward({1}, false);
        EXPECT_TRUE(some.out.same_bits(rows_of(all.out, planes, s.q_len, rows))) << cuts[i];
        EXPECT_TRUE(some.lse.same_bits(rows_of(all.lse, planes, s.q_len, rows))) << cuts[i];
        EXPECT_TRUE(some.dq.same_bits(rows_of(all.dq, planes, s.q_len, rows))) << cuts[i];
      }
    });
  });
}

/// The sum of the arrays as a tree of neighbours.
Array tree(std::vector<Array> terms) {
  for (size_t step = 1; step < terms.size(); step *= 2) {
    for (size_t i = 0; i < terms.size(); i += 2 * step) {
      for (int64_t j = 0; j < terms[i].size(); ++j) {
        terms[i].as<float>()[j] += terms[i + step].as<float>()[j];
      }
    }
  }
  return terms[0];
}

Array rounded(const Array& x, DType dtype, float factor) {
  Array out(dtype, x.size());
  for (int64_t i = 0; i < x.size(); ++i) {
    out.set(i, static_cast<float>(x[i]) * factor);
  }
  return out;
}

TEST(ExactAttention, RanksOfTheSequenceAddToTheSameBits) {
  at_every_cpu_level([] {
    for_each_call([](const Call& call, int64_t leaves) {
      const Pass all = whole(call, {leaves});
      const AttentionShape& s = call.shape;
      for (int64_t ranks = 2; ranks <= leaves; ranks *= 2) {
        const int64_t piece = s.q_len / (2 * ranks);
        std::vector<Array> dk;
        std::vector<Array> dv;
        Doubles dsinks(call.sinks.size(), 0.0);
        for (int64_t rank = 0; rank < ranks; ++rank) {
          std::vector<int64_t> rows = between(rank * piece, (rank + 1) * piece);
          const int64_t late = (2 * ranks - 1 - rank) * piece;
          const std::vector<int64_t> later = between(late, late + piece);
          rows.insert(rows.end(), later.begin(), later.end());
          Pass own(call, rows);
          own.out = rows_of(all.out, s.batch * s.heads, s.q_len, rows);
          own.lse = rows_of(all.lse, s.batch * s.heads, s.q_len, rows);
          own.backward({leaves / ranks, late - (rank + 1) * piece}, true);
          EXPECT_TRUE(own.dq.same_bits(rows_of(all.dq, s.batch * s.heads, s.q_len, rows)));
          dk.push_back(own.dk);
          dv.push_back(own.dv);
          for (size_t h = 0; h < dsinks.size(); ++h) {
            dsinks[h] += own.dsinks[static_cast<int64_t>(h)];
          }
        }
        const auto scale = static_cast<float>(s.scale);
        EXPECT_TRUE(rounded(tree(dk), call.dtype, scale).same_bits(all.dk)) << ranks << " ranks";
        EXPECT_TRUE(rounded(tree(dv), call.dtype, 1).same_bits(all.dv)) << ranks << " ranks";
        EXPECT_TRUE(Array(kFloat64, dsinks).same_bits(all.dsinks)) << ranks << " ranks";
      }
    });
  });
}

TEST(ExactAttention, LeavesAreTheGradientsThatAttentionHas) {
  for_each_call([](const Call& call, int64_t leaves) {
    const Pass cut = whole(call, {leaves});
    const Pass uncut = whole(call, {});
    const double allowed = call.dtype == kFloat32 ? 1e-5 : 2e-2;
    expect_close(cut.dq, uncut.dq.values(), "dq", allowed);
    expect_close(cut.dk, uncut.dk.values(), "dk", allowed);
    expect_close(cut.dv, uncut.dv.values(), "dv", allowed);
    for (int64_t h = 0; h < cut.dsinks.size(); ++h) {  // in units
      EXPECT_EQ(cut.dsinks[h], std::nearbyint(cut.dsinks[h]));
      EXPECT_GT(std::abs(cut.dsinks[h]), std::ldexp(1.0, 30));
    }
  });
}

}  // namespace
}  // namespace attention_exact_test
}  // namespace tapestry::testing
