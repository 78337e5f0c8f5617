#include "autograd/ops/transformer/gated_delta_rule.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "autograd/kernels/machine/team.h"
#include "autograd/kernels/machine/work_counter.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/inplace.h"
#include "autograd/ops/random.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/ops/transformer/attention.h"
#include "autograd/ops/transformer/gated_delta_passes.h"
#include "autograd/tape/engine.h"
#include "autograd/tape/gradcheck.h"
#include "autograd/tape/recompute.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "tests/autograd/ops/expect_close.h"

namespace tapestry {
namespace {

namespace delta_test {

Tensor numbers(const Shape& shape, uint64_t stream, double mean = 0, double deviation = 1) {
  return normal(mean, deviation, shape, kFloat64, RandomKey{11, stream, 0});
}

struct Case {
  int64_t batch = 1;
  int64_t tokens = 1;
  GatedDeltaOptions options;
  double log_decay = -0.3;  // mean of g
  bool has_initial = false;
  double beta_scale = 1;

  std::string text() const {
    return concat("S ", tokens, ", heads ", options.key_heads, "/", options.value_heads, " of ",
                  options.key_dim, "/", options.value_dim, ", g ", log_decay,
                  has_initial ? ", initial state" : "",
                  options.document_starts.defined() ? ", documents" : "");
  }
};

GatedDeltaOptions sizes(int64_t hk, int64_t hv, int64_t dk, int64_t dv) {
  return {.key_heads = hk, .value_heads = hv, .key_dim = dk, .value_dim = dv};
}

// Float64 values that `dtype` and the gates' dtype hold exactly.
struct Inputs {
  Tensor qkv, g, beta, initial, dout, dfinal;
};

Inputs inputs_of(const Case& c, DType dtype) {
  const GatedDeltaOptions& o = c.options;
  const DType wide = dtype == kFloat64 ? kFloat64 : kFloat32;
  const auto rounded = [](const Tensor& x, DType to) { return x.to(to).to(kFloat64); };
  Inputs in;
  in.qkv = rounded(
      numbers({c.batch, c.tokens, 2 * o.key_heads * o.key_dim + o.value_heads * o.value_dim}, 1),
      dtype);
  const Shape gates{c.batch, c.tokens, o.value_heads};
  in.g = rounded(mul(abs(numbers(gates, 2, 1, 0.5)), c.log_decay), wide);
  in.beta = rounded(mul(sigmoid(numbers(gates, 3)), c.beta_scale), wide);
  const Shape state{c.batch, o.value_heads, o.key_dim, o.value_dim};
  in.initial = c.has_initial ? rounded(numbers(state, 4), wide) : Tensor();
  in.dout = rounded(numbers({c.batch, c.tokens, o.value_heads, o.value_dim}, 5), dtype);
  in.dfinal = rounded(numbers(state, 6), wide);
  return in;
}

struct Outcome {
  Tensor out, final_state, dqkv, dg, dbeta, dinitial;
};

// Token by token, in float64, forward and backward.
Outcome reference(const Case& c, const Inputs& in) {
  const GatedDeltaOptions& o = c.options;
  const int64_t dk = o.key_dim;
  const int64_t dv = o.value_dim;
  const int64_t width = in.qkv.size(2);
  Outcome r;
  r.out = zeros({c.batch, c.tokens, o.value_heads, dv}, kFloat64);
  r.final_state = zeros({c.batch, o.value_heads, dk, dv}, kFloat64);
  r.dqkv = zeros(in.qkv.shape(), kFloat64);
  r.dg = zeros(in.g.shape(), kFloat64);
  r.dbeta = zeros(in.g.shape(), kFloat64);
  r.dinitial = zeros(r.final_state.shape(), kFloat64);
  using Row = std::vector<double>;
  for (int64_t b = 0; b < c.batch; ++b) {
    for (int64_t h = 0; h < o.value_heads; ++h) {
      const int64_t kh = h / (o.value_heads / o.key_heads);
      const int64_t places[3] = {kh * dk, (o.key_heads + kh) * dk, 2 * o.key_heads * dk + h * dv};
      const auto row = [&](const Tensor& x, int64_t t, int part) {
        return x.data<double>() + (b * c.tokens + t) * width + places[part];
      };
      const auto gate = [&](const Tensor& x, int64_t t) -> double& {
        return x.data<double>()[(b * c.tokens + t) * o.value_heads + h];
      };
      const auto begins = [&](int64_t t) {
        if (!o.document_starts.defined()) {
          return false;
        }
        const int64_t at = o.first_position + t;
        const int64_t of = o.document_starts.size(0) == 1 ? 0 : b;
        const int64_t start =
            o.document_starts.data<int32_t>()[of * o.document_starts.size(1) + at];
        return start == at && at > 0;
      };
      const auto state_at = [&](const Tensor& x) {
        return x.data<double>() + (b * o.value_heads + h) * dk * dv;
      };
      const auto out_at = [&](const Tensor& x, int64_t t) {
        return x.data<double>() + ((b * c.tokens + t) * o.value_heads + h) * dv;
      };
      std::vector<Row> states = {Row(static_cast<size_t>(dk * dv))};
      if (in.initial.defined()) {
        std::copy_n(state_at(in.initial), dk * dv, states[0].begin());
      }
      std::vector<Row> decayed, qs, ks, deltas, errors;
      std::vector<std::array<double, 2>> lengths;
      for (int64_t t = 0; t < c.tokens; ++t) {
        std::array<double, 2> length = {o.eps, o.eps};
        for (int64_t i = 0; i < dk; ++i) {
          length[0] += row(in.qkv, t, 0)[i] * row(in.qkv, t, 0)[i];
          length[1] += row(in.qkv, t, 1)[i] * row(in.qkv, t, 1)[i];
        }
        Row q, k;
        for (int64_t i = 0; i < dk; ++i) {
          q.push_back(row(in.qkv, t, 0)[i] / std::sqrt(length[0] * static_cast<double>(dk)));
          k.push_back(row(in.qkv, t, 1)[i] / std::sqrt(length[1]));
        }
        Row s = states.back();
        const double decay = begins(t) ? 0 : std::exp(gate(in.g, t));
        for (double& x : s) {
          x *= decay;
        }
        decayed.push_back(s);
        Row error, delta;
        for (int64_t j = 0; j < dv; ++j) {
          double answer = 0;
          for (int64_t i = 0; i < dk; ++i) {
            answer += s[i * dv + j] * k[i];
          }
          error.push_back(row(in.qkv, t, 2)[j] - answer);
          delta.push_back(gate(in.beta, t) * error.back());
        }
        for (int64_t i = 0; i < dk; ++i) {
          for (int64_t j = 0; j < dv; ++j) {
            s[i * dv + j] += k[i] * delta[j];
            out_at(r.out, t)[j] += s[i * dv + j] * q[i];
          }
        }
        states.push_back(s);
        qs.push_back(q);
        ks.push_back(k);
        deltas.push_back(delta);
        errors.push_back(error);
        lengths.push_back(length);
      }
      std::copy_n(states.back().begin(), dk * dv, state_at(r.final_state));
      Row ds(state_at(in.dfinal), state_at(in.dfinal) + dk * dv);
      for (int64_t t = c.tokens; t-- > 0;) {
        const auto& k = ks[t];
        const double* dout = out_at(in.dout, t);
        Row dq(dk), dkey(dk), ddelta(dv);
        for (int64_t i = 0; i < dk; ++i) {
          for (int64_t j = 0; j < dv; ++j) {
            ds[i * dv + j] += qs[t][i] * dout[j];
            dq[i] += states[t + 1][i * dv + j] * dout[j];
            ddelta[j] += ds[i * dv + j] * k[i];
            dkey[i] += ds[i * dv + j] * deltas[t][j];
          }
        }
        for (int64_t j = 0; j < dv; ++j) {
          gate(r.dbeta, t) += ddelta[j] * errors[t][j];
          const double dv_j = gate(in.beta, t) * ddelta[j];
          row(r.dqkv, t, 2)[j] += dv_j;
          for (int64_t i = 0; i < dk; ++i) {
            dkey[i] -= decayed[t][i * dv + j] * dv_j;
            ds[i * dv + j] -= k[i] * dv_j;
          }
        }
        const double decay = begins(t) ? 0 : std::exp(gate(in.g, t));
        for (int64_t n = 0; n < dk * dv; ++n) {
          gate(r.dg, t) += decay * states[t][n] * ds[n];
          ds[n] *= decay;
        }
        const auto through_norm = [&](int part, const Row& dy, double factor) {
          const double n = std::sqrt(lengths[t][part]);
          double along = 0;
          for (int64_t i = 0; i < dk; ++i) {
            along += row(in.qkv, t, part)[i] / n * dy[i];
          }
          for (int64_t i = 0; i < dk; ++i) {
            row(r.dqkv, t, part)[i] += factor * (dy[i] - row(in.qkv, t, part)[i] / n * along) / n;
          }
        };
        through_norm(0, dq, 1 / std::sqrt(static_cast<double>(dk)));
        through_norm(1, dkey, 1);
      }
      std::copy(ds.begin(), ds.end(), state_at(r.dinitial));
    }
  }
  return r;
}

Outcome run(const Case& c, const Inputs& in, DType dtype) {
  const DType wide = dtype == kFloat64 ? kFloat64 : kFloat32;
  const auto leaf = [](const Tensor& x, DType to) {
    return x.to(to).clone().detach().set_requires_grad();
  };
  const Tensor qkv = leaf(in.qkv, dtype);
  const Tensor g = leaf(in.g, wide);
  const Tensor beta = leaf(in.beta, wide);
  GatedDeltaOptions o = c.options;
  o.wants_final_state = true;
  TensorList wanted = {qkv, g, beta};
  if (in.initial.defined()) {
    o.initial_state = leaf(in.initial, wide);
    wanted.push_back(o.initial_state);
  }
  const GatedDeltaResult result = gated_delta_rule(qkv, g, beta, o);
  const TensorList gradients = grad(TensorList{result.out, result.final_state}, wanted,
                                    TensorList{in.dout.to(dtype), in.dfinal.to(wide)});
  return {result.out.detach(), result.final_state.detach(),
          gradients[0],        gradients[1],
          gradients[2],        in.initial.defined() ? gradients[3] : Tensor()};
}

void expect_like(const Outcome& actual, const Outcome& expected, double bound, double of_out) {
  const auto close = [](const char* what, const Tensor& a, const Tensor& b, double most) {
    SCOPED_TRACE(what);
    expect_close(a, b, most);
  };
  close("out", actual.out, expected.out, of_out);
  close("final state", actual.final_state, expected.final_state, bound);
  close("dqkv", actual.dqkv, expected.dqkv, of_out);
  close("dg", actual.dg, expected.dg, bound);
  close("dbeta", actual.dbeta, expected.dbeta, bound);
  if (actual.dinitial.defined()) {
    close("dinitial", actual.dinitial, expected.dinitial, bound);
  }
}

bool same_bits(const Tensor& a, const Tensor& b) {
  const Tensor left = a.contiguous();
  const Tensor right = b.contiguous();
  return left.shape() == right.shape() && left.dtype() == right.dtype() &&
         (left.numel() == 0 ||
          std::memcmp(left.raw(), right.raw(),
                      static_cast<size_t>(left.numel() * size_of(left.dtype()))) == 0);
}

void expect_same_bits(const Outcome& a, const Outcome& b) {
  EXPECT_TRUE(same_bits(a.out, b.out));
  EXPECT_TRUE(same_bits(a.final_state, b.final_state));
  EXPECT_TRUE(same_bits(a.dqkv, b.dqkv));
  EXPECT_TRUE(same_bits(a.dg, b.dg));
  EXPECT_TRUE(same_bits(a.dbeta, b.dbeta));
  if (a.dinitial.defined()) {
    EXPECT_TRUE(same_bits(a.dinitial, b.dinitial));
  }
}

class Threads {
 public:
  explicit Threads(int count) : previous_(num_threads()) { set_num_threads(count); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;
  ~Threads() { set_num_threads(previous_); }

 private:
  int previous_;
};

std::vector<Case> cases() {
  std::vector<Case> out;
  for (const int64_t tokens : {1, 63, 64, 65, 200}) {
    out.push_back({.batch = 2, .tokens = tokens, .options = sizes(1, 1, 16, 16)});
    out.push_back({.tokens = tokens, .options = sizes(2, 4, 24, 40), .has_initial = true});
  }
  for (const double log_decay : {-30.0, 0.0}) {
    out.push_back({.tokens = 150,
                   .options = sizes(1, 2, 32, 8),
                   .log_decay = log_decay,
                   .has_initial = true});
  }
  // Negative eigenvalues, and nothing is ever forgotten.
  out.push_back({.tokens = 200,
                 .options = sizes(1, 1, 16, 16),
                 .log_decay = 0,
                 .has_initial = true,
                 .beta_scale = 2});
  Case documents = {.batch = 2, .tokens = 200, .options = sizes(2, 2, 20, 12), .has_initial = true};
  documents.options.document_starts =
      document_starts(std::vector<std::vector<int64_t>>{{5, 6, 64, 100, 191}, {128}}, 200);
  out.push_back(documents);
  documents.options.document_starts =
      document_starts(std::vector<std::vector<int64_t>>{{3, 30, 40, 70, 135, 239}}, 240);
  documents.options.first_position = 40;  // a document begins at the first token
  out.push_back(documents);
  documents.options.first_position = 39;
  out.push_back(documents);
  return out;
}

// Sums of some 200 products, each of numbers that are such sums themselves, in float32.
constexpr double kFloat32Bound = 256 * 0x1p-24;

TEST(GatedDeltaRule, AgreesWithTokenByToken) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.text());
    for (const DType dtype : {kFloat64, kFloat32}) {
      const Inputs in = inputs_of(c, dtype);
      const double bound = dtype == kFloat64 ? 1e-12 : kFloat32Bound;
      expect_like(run(c, in, dtype), reference(c, in), bound, bound);
    }
  }
}

TEST(GatedDeltaRule, SixteenBitsRoundTheResultsOnce) {
  for (const DType dtype : {kBFloat16, kFloat16}) {
    const double rounding = dtype == kBFloat16 ? 0x1p-8 : 0x1p-11;
    for (const Case& c : cases()) {
      SCOPED_TRACE(c.text());
      const Inputs in = inputs_of(c, dtype);
      const Outcome actual = run(c, in, dtype);
      EXPECT_EQ(actual.out.dtype(), dtype);
      EXPECT_EQ(actual.dqkv.dtype(), dtype);
      EXPECT_EQ(actual.final_state.dtype(), kFloat32);
      expect_like(actual, reference(c, in), kFloat32Bound, rounding + kFloat32Bound);
    }
  }
}

TEST(GatedDeltaRule, StrongDecayAndNoneAreFinite) {
  for (const double log_decay : {-1e30, -1e3, -30.0, 0.0}) {
    const Case c = {
        .tokens = 130, .options = sizes(1, 2, 8, 8), .log_decay = log_decay, .has_initial = true};
    SCOPED_TRACE(c.text());
    const Outcome o = run(c, inputs_of(c, kFloat32), kFloat32);
    for (const Tensor& x : {o.out, o.final_state, o.dqkv, o.dg, o.dbeta, o.dinitial}) {
      EXPECT_EQ(all(isfinite(x)).item(), 1);
    }
  }
}

TEST(GatedDeltaRule, BitsDoNotDependOnThreads) {
  // Of more heads than threads, of fewer, and of a number that they cannot share.
  for (const auto& [batch, hk, hv] :
       {std::array{1, 2, 4}, std::array{1, 1, 1}, std::array{1, 1, 3}, std::array{3, 1, 2}}) {
    for (const DType dtype : {kFloat32, kBFloat16}) {
      Case c = {
          .batch = batch, .tokens = 700, .options = sizes(hk, hv, 24, 40), .has_initial = true};
      c.options.document_starts =
          document_starts(std::vector<std::vector<int64_t>>{{100, 448, 500}}, 700);
      SCOPED_TRACE(c.text());
      const Inputs in = inputs_of(c, dtype);
      const auto with = [&](int threads) {
        const Threads guard(threads);
        return run(c, in, dtype);
      };
      const Outcome one = with(1);
      for (const int threads : {2, 3, 8}) {
        expect_same_bits(with(threads), one);
      }
      // Without a graph nothing is kept, and states of few heads are made in runs of chunks.
      GatedDeltaOptions o = c.options;
      o.initial_state = in.initial.to(kFloat32);
      const NoGradGuard guard;
      for (const int threads : {1, 2}) {
        const Threads count(threads);
        EXPECT_TRUE(same_bits(
            gated_delta_rule(in.qkv.to(dtype), in.g.to(kFloat32), in.beta.to(kFloat32), o).out,
            one.out));
      }
    }
  }
}

// One pass, passes of any length with states handed on, and steps of one token.
TEST(GatedDeltaRule, PassesAndStepsAreOnePass) {
  const NoGradGuard no_grad;
  const Case c = {.batch = 2, .tokens = 150, .options = sizes(2, 4, 24, 40), .has_initial = true};
  const Inputs in = inputs_of(c, kFloat32);
  const auto wide = [](const Tensor& x) { return x.to(kFloat32); };
  GatedDeltaOptions o = c.options;
  o.wants_final_state = true;
  o.initial_state = wide(in.initial);
  const GatedDeltaResult whole = gated_delta_rule(wide(in.qkv), wide(in.g), wide(in.beta), o);
  for (const int64_t length : {1, 7, 64, 100}) {
    Tensor state = wide(in.initial);
    TensorList parts;
    for (int64_t begin = 0; begin < c.tokens; begin += length) {
      const int64_t end = std::min(begin + length, c.tokens);
      const auto part = [&](const Tensor& x) { return wide(x).slice(1, begin, end); };
      o.initial_state = state;
      const GatedDeltaResult result = gated_delta_rule(part(in.qkv), part(in.g), part(in.beta), o);
      parts.push_back(result.out);
      state = result.final_state;
    }
    expect_close(cat(parts, 1), whole.out, kFloat32Bound);
    expect_close(state, whole.final_state, kFloat32Bound);
  }
  // Text b in slot 2 - 2 b; slot 1 belongs to nobody.
  const Tensor states = full({3, 4, 24, 40}, 7.0, kFloat32);
  const std::vector<int64_t> slots = {2, 0};
  for (int64_t b = 0; b < 2; ++b) {
    copy_(states.select(0, slots[b]), wide(in.initial).select(0, b));
  }
  TensorList steps;
  for (int64_t t = 0; t < c.tokens; ++t) {
    const auto token = [&](const Tensor& x) { return wide(x).select(1, t); };
    steps.push_back(
        gated_delta_step(token(in.qkv), token(in.g), token(in.beta), states, slots, c.options));
  }
  expect_close(stack(steps, 1), whole.out, kFloat32Bound);
  for (int64_t b = 0; b < 2; ++b) {
    expect_close(states.select(0, slots[b]), whole.final_state.select(0, b), kFloat32Bound);
  }
  expect_close(states.select(0, 1), full({4, 24, 40}, 7.0, kFloat32), 0);
}

TEST(GatedDeltaRule, OutputsComeFromTheStates) {
  const NoGradGuard no_grad;
  const Case c = {.tokens = 130, .options = sizes(1, 1, 16, 16)};
  const Inputs in = inputs_of(c, kFloat64);
  const Tensor states = zeros(gated_delta_states_shape(1, 130, c.options), kFloat64);
  const Tensor out = zeros({1, 130, 1, 16}, kFloat64);
  gated_delta_outputs(in.qkv, in.g, in.beta, c.options, {.out = out, .states = states});
  // As if a document began at each chunk.
  GatedDeltaOptions o = c.options;
  o.document_starts = document_starts(std::vector<std::vector<int64_t>>{{64, 128}}, 130);
  expect_close(out, gated_delta_rule(in.qkv, in.g, in.beta, o).out, 1e-13);
}

TEST(GatedDeltaRule, CountsItsWork) {
  const Case c = {.tokens = 130, .options = sizes(1, 2, 16, 24)};
  const double before = kernels::work_counter().flops;
  run(c, inputs_of(c, kFloat32), kFloat32);
  // Three products with a state and four with a triangle of 64 x 64; twice that backward.
  EXPECT_EQ(kernels::work_counter().flops - before,
            3 * 2.0 * 130 * 2 * (3 * 16 * 24 + 32 * (2 * 16 + 2 * 24)));
}

TEST(GatedDeltaStep, ATextDoesNotDependOnOthers) {
  const NoGradGuard no_grad;
  const GatedDeltaOptions o = sizes(2, 4, 32, 36);
  const Tensor qkv = numbers({5, 2 * 2 * 32 + 4 * 36}, 1).to(kBFloat16);
  const Tensor g = neg(abs(numbers({5, 4}, 2))).to(kFloat32);
  const Tensor beta = sigmoid(numbers({5, 4}, 3)).to(kFloat32);
  const Tensor start = numbers({5, 4, 32, 36}, 4).to(kFloat32);
  const Tensor together = start.clone();
  const Tensor out =
      gated_delta_step(qkv, g, beta, together, std::vector<int64_t>{0, 1, 2, 3, 4}, o);
  EXPECT_EQ(out.dtype(), kBFloat16);
  for (int64_t m = 0; m < 5; ++m) {
    const Tensor alone = start.clone();
    const auto row = [&](const Tensor& x) { return x.slice(0, m, m + 1); };
    const Tensor own = gated_delta_step(row(qkv), row(g), row(beta), alone, std::vector{m}, o);
    EXPECT_TRUE(same_bits(own, row(out)));
    EXPECT_TRUE(same_bits(row(alone), row(together)));
  }
}

// Dropped and made again: from the states that the op has kept, without the pass over them.
TEST(GatedDeltaRule, IsMadeAgainFromItsStates) {
  const Case c = {.tokens = 300, .options = sizes(1, 2, 16, 24), .has_initial = true};
  const Inputs in = inputs_of(c, kFloat32);
  const auto outcome = [&](bool drops) {
    const auto leaf = [](const Tensor& x) { return x.to(kFloat32).clone().set_requires_grad(); };
    const Tensor qkv = leaf(in.qkv);
    const Tensor g = leaf(in.g);
    const Tensor beta = leaf(in.beta);
    const Tensor initial = leaf(in.initial);
    RecomputedValues values;
    GatedDeltaResult result;
    {
      const RecomputeScope scope(drops ? &values : nullptr);
      GatedDeltaOptions o = c.options;
      o.initial_state = initial;
      o.wants_final_state = true;
      result = gated_delta_rule(mul(qkv, 1.0), g, beta, o);
    }
    const int64_t dropped = values.drop();
    EXPECT_EQ(result.out.storage()->is_dropped(), drops);
    // What forward has made, but for the states.
    const int64_t made = 4 * (qkv.numel() + result.out.numel() + result.final_state.numel());
    EXPECT_EQ(dropped, drops ? made : 0);
    const Tensor loss = add(sum(mul(square(result.out), in.dout.to(kFloat32))),
                            sum(mul(result.final_state, in.dfinal.to(kFloat32))));
    const TensorList d = grad(loss, {qkv, g, beta, initial});
    return Outcome{result.out.detach(), result.final_state.detach(), d[0], d[1], d[2], d[3]};
  };
  expect_same_bits(outcome(true), outcome(false));
}

TEST(GatedDeltaRule, ItsPassesAreItsOwn) {
  const NoGradGuard no_grad;
  for (const int threads : {1, 2}) {
    const Threads guard(threads);
    const Case c = {.tokens = 200, .options = sizes(1, 1, 24, 40), .has_initial = true};
    const Inputs in = inputs_of(c, kFloat32);
    Outcome expected;
    {
      const EnableGradGuard grad;
      expected = run(c, in, kFloat32);
    }
    const auto wide = [](const Tensor& x) { return x.to(kFloat32); };
    GatedDeltaOptions o = c.options;
    o.initial_state = wide(in.initial);
    const Tensor qkv = wide(in.qkv);
    const Tensor g = wide(in.g);
    const Tensor beta = wide(in.beta);
    const Tensor states = empty(gated_delta_states_shape(1, 200, o));
    EXPECT_EQ(states.shape(), (Shape{1, 1, 3, 24, 40}));
    const Tensor out = empty(expected.out.shape());
    const Tensor final_state = empty(expected.final_state.shape());
    gated_delta_forward(qkv, g, beta, o, {.states = states, .final_state = final_state});
    EXPECT_TRUE(same_bits(final_state, expected.final_state));
    const Tensor again = empty(expected.final_state.shape());
    gated_delta_outputs(qkv, g, beta, o, {.out = out, .states = states, .final_state = again});
    EXPECT_TRUE(same_bits(out, expected.out));
    EXPECT_TRUE(same_bits(again, expected.final_state));
    const Tensor dfinal = wide(in.dfinal);
    const Tensor dout = wide(in.dout);
    const Tensor dinitial = empty(expected.dinitial.shape());
    gated_delta_backward(qkv, g, beta, o, {}, dout, dfinal, {.dinitial = dinitial});
    EXPECT_TRUE(same_bits(dinitial, expected.dinitial));
    const GatedDeltaGradients all = {empty(qkv.shape()), empty(g.shape()), empty(g.shape()),
                                     empty(dinitial.shape())};
    gated_delta_backward(qkv, g, beta, o, states, dout, dfinal, all);
    EXPECT_TRUE(same_bits(all.dqkv, expected.dqkv));
    EXPECT_TRUE(same_bits(all.dg, expected.dg));
    EXPECT_TRUE(same_bits(all.dbeta, expected.dbeta));
    EXPECT_TRUE(same_bits(all.dinitial, expected.dinitial));
  }
}

TEST(GatedDeltaRule, PassesCheckWhatTheyAreGiven) {
  const NoGradGuard no_grad;
  const GatedDeltaOptions o = sizes(1, 1, 2, 2);
  const Tensor qkv = zeros({1, 3, 6});
  const Tensor gate = zeros({1, 3, 1});
  EXPECT_THROW(gated_delta_forward(qkv, gate.to(kFloat64), gate, o, {}), TypeError);
  EXPECT_THROW(gated_delta_forward(qkv, gate, gate, o, {.out = zeros({1, 3, 2})}), ValueError);
  EXPECT_THROW(gated_delta_forward(qkv, gate, gate, o, {.states = zeros({1, 1, 1, 2, 2})}),
               ValueError);
  EXPECT_THROW(gated_delta_outputs(qkv, gate, gate, o, {.out = zeros({1, 3, 1, 2})}), RuntimeError);
  const Tensor states = zeros({1, 1, 0, 2, 2});
  EXPECT_THROW(gated_delta_backward(qkv, gate, gate, o, states, {}, {}, {.dqkv = zeros({1, 3, 6})}),
               ValueError);
  EXPECT_THROW(gated_delta_backward(qkv, gate, gate, o, states, zeros({1, 3, 2}), {},
                                    {.dinitial = zeros({1, 1, 2, 2})}),
               ValueError);
  EXPECT_THROW(gated_delta_backward(qkv, gate, gate, o, states, {}, zeros({1, 1, 2}),
                                    {.dinitial = zeros({1, 1, 2, 2})}),
               ValueError);
}

TEST(GatedDeltaGates, AreTheFormula) {
  const Tensor a = numbers({2, 3, 4}, 1, 0, 4);
  const Tensor b = numbers({2, 3, 4}, 2, 0, 4);
  const Tensor a_log = numbers({4}, 3);
  const Tensor dt_bias = numbers({4}, 4);
  const GatedDeltaGates gates = gated_delta_gates(a, b, a_log, dt_bias, 2);
  for (int64_t i = 0; i < 24; ++i) {
    const double x = a.data<double>()[i] + dt_bias.data<double>()[i % 4];
    const double softplus = std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x)));
    EXPECT_NEAR(gates.g.data<double>()[i], -std::exp(a_log.data<double>()[i % 4]) * softplus,
                1e-13);
    EXPECT_NEAR(gates.beta.data<double>()[i], 2 / (1 + std::exp(-b.data<double>()[i])), 1e-14);
  }
  const GatedDeltaGates narrow =
      gated_delta_gates(a.to(kBFloat16), b.to(kBFloat16), a_log.to(kFloat32), dt_bias.to(kFloat32));
  EXPECT_EQ(narrow.g.dtype(), kFloat32);
  EXPECT_EQ(narrow.beta.dtype(), kFloat32);
  const auto f = [](const TensorList& in) -> TensorList {
    const GatedDeltaGates of = gated_delta_gates(in[0], in[1], in[2], in[3]);
    return {of.g, of.beta};
  };
  TensorList inputs;
  for (const Tensor& x : {a, b, a_log, dt_bias}) {
    inputs.push_back(x.clone().set_requires_grad());
  }
  const GradcheckResult result = gradcheck(f, inputs);
  EXPECT_TRUE(result) << result.message;
  EXPECT_THROW(gated_delta_gates(a, b.slice(0, 0, 1), a_log, dt_bias), ValueError);
  EXPECT_THROW(gated_delta_gates(a, b, a_log.slice(0, 0, 3), dt_bias), ValueError);
  EXPECT_THROW(gated_delta_gates(a, b, a_log, dt_bias, 0), ValueError);
  EXPECT_THROW(gated_delta_gates(a.to(kInt64), b, a_log, dt_bias), TypeError);
}

}  // namespace delta_test
}  // namespace
}  // namespace tapestry
