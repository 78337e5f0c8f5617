// The largest score of each head, against a loop over all of them in double precision.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/inplace.h"
#include "autograd/ops/transformer/attention.h"
#include "autograd/tape/engine.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"

namespace tapestry {
namespace attention_maxima_test {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

struct Sizes {
  int64_t batch = 2;
  int64_t heads = 4;
  int64_t groups = 2;
  int64_t queries = 150;
  int64_t keys = 150;
  int64_t dim = 24;
};

struct Inputs {
  Tensor q, k, v;
};

Inputs inputs(const Sizes& s, DType dtype) {
  const auto made = [&](int64_t heads, int64_t length, uint64_t stream) {
    return normal(0, 2, {s.batch, heads, length, s.dim}, kFloat64, RandomKey{9, stream, 0})
        .to(dtype);
  };
  return {made(s.heads, s.queries, 1), made(s.groups, s.keys, 2), made(s.groups, s.keys, 3)};
}

// Of the scores that `sees` lets through; `bias` is added to each. The bound is that of a sum of
// `dim` products in float32.
struct Expected {
  std::vector<double> maxima;
  double bound = 0;
};
using Sees = std::function<bool(int64_t b, int64_t h, int64_t i, int64_t j)>;
Expected expected(const Sizes& s,
                  const Inputs& in,
                  const AttentionOptions& options,
                  const Sees& sees,
                  double slope = 0) {
  const std::vector<double> q = in.q.to(kFloat64).contiguous().to_vector<double>();
  const std::vector<double> k = in.k.to(kFloat64).contiguous().to_vector<double>();
  const double scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(s.dim)));
  Expected out{std::vector<double>(static_cast<size_t>(s.heads), kNothing)};
  const double unit = std::ldexp(1, -24);
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t h = 0; h < s.heads; ++h) {
      const int64_t g = h / (s.heads / s.groups);
      for (int64_t i = 0; i < s.queries; ++i) {
        for (int64_t j = 0; j < s.keys; ++j) {
          if (!sees(b, h, i, j)) {
            continue;
          }
          double score = 0;
          double size = 0;
          for (int64_t d = 0; d < s.dim; ++d) {
            const double term =
                q[static_cast<size_t>(((b * s.heads + h) * s.queries + i) * s.dim + d)] *
                k[static_cast<size_t>(((b * s.groups + g) * s.keys + j) * s.dim + d)];
            score += term;
            size += std::fabs(term);
          }
          score *= scale;
          out.bound =
              std::max(out.bound, static_cast<double>(s.dim + 4) * unit * size * std::fabs(scale));
          if (options.score_cap > 0) {
            score = options.score_cap * std::tanh(score / options.score_cap);
            out.bound = std::max(out.bound, 16 * unit * options.score_cap);
          }
          score += slope * static_cast<double>(j - i - options.q_offset);
          double& most = out.maxima[static_cast<size_t>(h)];
          most = std::max(most, score);
        }
      }
    }
  }
  out.bound += 4 * unit * std::fabs(slope) * static_cast<double>(s.queries + s.keys);
  return out;
}

std::vector<float> measured(const Inputs& in, AttentionOptions options, bool fused = true) {
  options.max_logits = full({in.q.size(1)}, kNothing, kFloat32);
  if (fused) {
    scaled_dot_product_attention(in.q, in.k, in.v, options);
  } else {
    composed_attention(in.q, in.k, in.v, options, in.q.dtype() == kFloat64 ? kFloat64 : kFloat32);
  }
  return options.max_logits.to_vector<float>();
}

void expect_maxima(const std::vector<float>& found, const Expected& wanted, const std::string& of) {
  ASSERT_EQ(found.size(), wanted.maxima.size());
  for (size_t h = 0; h < found.size(); ++h) {
    if (std::isinf(wanted.maxima[h])) {
      EXPECT_EQ(found[h], kNothing) << of << ", head " << h;
    } else {
      // The last rounding is to float32.
      EXPECT_NEAR(found[h], wanted.maxima[h],
                  wanted.bound + std::ldexp(std::fabs(wanted.maxima[h]), -23))
          << of << ", head " << h;
    }
  }
}

struct Case {
  std::string name;
  Sizes sizes;
  AttentionOptions options;
  Sees sees;
  double slope = 0;
};

std::vector<Case> cases() {
  const auto causal = [](int64_t, int64_t, int64_t i, int64_t j) { return j <= i; };
  std::vector<Case> all = {
      {"causal", {}, {.causal = true}, causal},
      {"all", {}, {}, [](int64_t, int64_t, int64_t, int64_t) { return true; }},
      {"one head a group", {.heads = 3, .groups = 3}, {.causal = true}, causal},
      {"one token", {.queries = 1, .keys = 1}, {.causal = true}, causal},
      {"window",
       {},
       {.causal = true, .window_left = 9},
       [](int64_t, int64_t, int64_t i, int64_t j) { return j <= i && j >= i - 9; }},
      {"offset",
       {.queries = 40},
       {.causal = true, .q_offset = 70},
       [](int64_t, int64_t, int64_t i, int64_t j) { return j <= i + 70; }},
      {"cap", {}, {.causal = true, .score_cap = 5}, causal},
      {"scale", {}, {.causal = true, .scale = 0.7}, causal},
      {"negative scale", {}, {.causal = true, .scale = -0.7}, causal}};
  {
    // Sample 1 has 30 keys, and the other none that its first head may see.
    Case padded{"mask", {}, {}, [](int64_t b, int64_t h, int64_t, int64_t j) {
                  return b == 1 ? j < 30 && h > 0 : h > 0;
                }};
    std::vector<double> keep;
    for (int64_t b = 0; b < 2; ++b) {
      for (int64_t h = 0; h < 4; ++h) {
        for (int64_t j = 0; j < 150; ++j) {
          keep.push_back(padded.sees(b, h, 0, j) ? 1 : 0);
        }
      }
    }
    padded.options.mask = tensor(keep, {2, 4, 1, 150}).to(kBool);
    all.push_back(padded);
  }
  {
    Case documents{"documents", {}, {.causal = true}, [](int64_t, int64_t, int64_t i, int64_t j) {
                     return j <= i && j >= (i < 70 ? 0 : 70);
                   }};
    const std::vector<std::vector<int64_t>> starts = {{0, 70}};
    documents.options.document_starts = document_starts(starts, 150);
    all.push_back(documents);
  }
  {
    Case sinks{"sinks far above", {}, {.causal = true}, causal};
    sinks.options.sinks = full({4}, 1000, kFloat32);
    all.push_back(sinks);
  }
  {
    Case bias{"slopes", {}, {.causal = true}, causal, 0.5};
    bias.options.alibi_slopes = std::vector<double>(4, 0.5);
    all.push_back(bias);
  }
  return all;
}

TEST(AttentionMaxima, AreThoseOfTheVisibleScores) {
  for (const Case& c : cases()) {
    for (const DType dtype : {kFloat64, kFloat32, kBFloat16, kFloat16}) {
      const Inputs in = inputs(c.sizes, dtype);
      const Expected wanted = expected(c.sizes, in, c.options, c.sees, c.slope);
      const std::string of = concat(c.name, ", ", name_of(dtype));
      expect_maxima(measured(in, c.options), wanted, of);
      if (dtype == kFloat32 || dtype == kFloat64) {  // others have scores of 16 bits
        expect_maxima(measured(in, c.options, /*fused=*/false), wanted, of + ", composed");
      }
    }
  }
}

TEST(AttentionMaxima, RaiseWhatIsThere) {
  const Inputs in = inputs({}, kFloat32);
  AttentionOptions options{.causal = true, .max_logits = full({4}, kNothing, kFloat32)};
  const std::vector<float> alone = measured(in, {.causal = true});
  const std::vector<float> before = {1e6F, -1e6F, 1e6F, -1e6F};
  for (const bool fused : {true, false}) {
    options.max_logits = tensor(before, {4});
    if (fused) {
      scaled_dot_product_attention(in.q, in.k, in.v, options);
    } else {
      composed_attention(in.q, in.k, in.v, options);
    }
    const std::vector<float> after = options.max_logits.to_vector<float>();
    for (size_t h = 0; h < 4; ++h) {
      // The composed form sums in another order.
      EXPECT_NEAR(after[h], std::max(before[h], alone[h]), fused ? 0 : 1e-3) << h;
    }
  }
}

// Measuring changes no bit of the output or the gradients, and gradients no maximum.
TEST(AttentionMaxima, LeaveTheResultsAlone) {
  const Inputs in = inputs({}, kFloat32);
  const auto run = [&](const AttentionOptions& options) {
    TensorList leaves;
    for (const Tensor& x : {in.q, in.k, in.v}) {
      leaves.push_back(x.detach().set_requires_grad());
    }
    const Tensor out = scaled_dot_product_attention(leaves[0], leaves[1], leaves[2], options);
    const std::vector<float> seen =
        options.max_logits.defined() ? options.max_logits.to_vector<float>() : std::vector<float>();
    if (options.max_logits.defined()) {
      fill_(options.max_logits, kNothing);
    }
    TensorList all = grad(out, leaves, normal(0, 1, out.shape(), kFloat32, RandomKey{9, 7, 0}));
    if (options.max_logits.defined()) {
      EXPECT_EQ(options.max_logits.to_vector<float>(), std::vector<float>(4, kNothing));
    }
    all.push_back(out.detach());
    return all;
  };
  AttentionOptions options{.causal = true};
  const TensorList plain = run(options);
  options.max_logits = full({4}, kNothing, kFloat32);
  const TensorList watched = run(options);
  for (size_t i = 0; i < plain.size(); ++i) {
    EXPECT_EQ(plain[i].contiguous().to_vector<float>(), watched[i].contiguous().to_vector<float>())
        << i;
  }
}

TEST(AttentionMaxima, WithoutTokensNothingIsRaised) {
  const Inputs in = inputs({.queries = 0}, kFloat32);
  for (const bool fused : {true, false}) {
    EXPECT_EQ(measured(in, {}, fused), std::vector<float>(4, kNothing));
  }
}

TEST(AttentionMaxima, RefusesAnotherShapeOrDtype) {
  const Inputs in = inputs({}, kFloat32);
  const auto message = [&](const Tensor& maxima) -> std::string {
    try {
      scaled_dot_product_attention(in.q, in.k, in.v, {.max_logits = maxima});
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(message(zeros({3})).find("max_logits must be contiguous [4], got"), std::string::npos);
  EXPECT_NE(message(zeros({4}, kFloat64)).find("max_logits must be float32, got float64"),
            std::string::npos);
  EXPECT_NE(message(zeros({8}).slice(0, 0, 8, 2)).find("max_logits must be contiguous"),
            std::string::npos);
}

}  // namespace
}  // namespace attention_maxima_test
}  // namespace tapestry
