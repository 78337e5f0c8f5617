// state_space() against the recurrence from token to token, in float64.
#include "autograd/ops/transformer/state_space.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/kernels/machine/work_counter.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/inplace.h"
#include "autograd/ops/random.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/ops/transformer/attention.h"
#include "autograd/ops/transformer/state_space_passes.h"
#include "autograd/tape/engine.h"
#include "autograd/tape/recompute.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"
#include "tests/autograd/ops/expect_close.h"

namespace tapestry {
namespace state_space_test {
namespace {

using Values = std::vector<double>;

// Everything that goes in and comes out, as plain numbers.
struct Problem {
  StateSpaceOptions options;
  int64_t batch = 1;
  int64_t tokens = 1;
  std::vector<std::vector<int64_t>> starts;  // of documents, by row; empty: one document
  Values xbc, dt, a_log, d, dt_bias, initial;

  int64_t width() const {
    return options.heads * options.head_dim + 2 * options.groups * options.state_size;
  }
  Shape state_shape() const { return {batch, options.heads, options.head_dim, options.state_size}; }
};

struct Outcome {
  Values y, final_state;
  Values dxbc, ddt, da_log, dd, ddt_bias, dinitial;
  double sum_scale =
      1;  // largest sum of the magnitudes that are added up in a parameter's gradient
};

Values numbers(size_t count, uint64_t stream, double mean, double deviation) {
  return normal(mean, deviation, {static_cast<int64_t>(count)}, kFloat64, RandomKey{11, stream, 0})
      .to_vector<double>();
}

Problem problem_of(const StateSpaceOptions& options, int64_t batch, int64_t tokens) {
  Problem p;
  p.options = options;
  p.options.want_final_state = true;
  p.batch = batch;
  p.tokens = tokens;
  const auto rows = static_cast<size_t>(batch * tokens);
  const auto heads = static_cast<size_t>(options.heads);
  p.xbc = numbers(rows * static_cast<size_t>(p.width()), 1, 0, 1);
  p.dt = numbers(rows * heads, 2, -1, 1);
  p.a_log = numbers(heads, 3, 0, 1);
  p.d = numbers(heads, 4, 1, 1);
  p.dt_bias = numbers(heads, 5, 0, 1);
  p.initial = numbers(static_cast<size_t>(p.state_shape().numel()), 6, 0, 1);
  return p;
}

double softplus_of(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

// One token after the other; dy and dfinal are given.
Outcome reference(const Problem& p, const Values& dy, const Values& dfinal) {
  const StateSpaceOptions& o = p.options;
  const int64_t n = o.state_size;
  const int64_t c = o.head_dim;
  const auto at = [](int64_t i) { return static_cast<size_t>(i); };
  Outcome out;
  out.y.resize(at(p.batch * p.tokens * o.heads * c));
  out.final_state.resize(p.initial.size());
  out.dxbc.resize(p.xbc.size());
  out.ddt.resize(p.dt.size());
  out.da_log.resize(at(o.heads));
  out.dd.resize(at(o.heads));
  out.ddt_bias.resize(at(o.heads));
  out.dinitial.resize(p.initial.size());
  for (int64_t b = 0; b < p.batch; ++b) {
    for (int64_t h = 0; h < o.heads; ++h) {
      const double a = -std::exp(p.a_log[at(h)]);
      const int64_t group = h / (o.heads / o.groups);
      const auto resets = [&](int64_t t) {
        if (p.starts.empty()) {
          return false;
        }
        const auto& row =
            p.starts[at(std::min<int64_t>(b, static_cast<int64_t>(p.starts.size()) - 1))];
        return t > 0 && std::find(row.begin(), row.end(), t) != row.end();
      };
      const auto x_at = [&](int64_t t) { return at((b * p.tokens + t) * p.width() + h * c); };
      const auto b_at = [&](int64_t t) {
        return at((b * p.tokens + t) * p.width() + o.heads * c + group * n);
      };
      const auto c_at = [&](int64_t t) { return b_at(t) + at(o.groups * n); };
      const auto y_at = [&](int64_t t) { return at(((b * p.tokens + t) * o.heads + h) * c); };
      const auto step_of = [&](int64_t t) {
        const double plain =
            softplus_of(p.dt[at((b * p.tokens + t) * o.heads + h)] + p.dt_bias[at(h)]);
        return std::min(std::max(plain, o.step_min), o.step_max);
      };
      const size_t state_at = at((b * o.heads + h) * c * n);
      std::vector<Values> states(at(p.tokens + 1), Values(at(c * n)));
      std::copy_n(p.initial.begin() + static_cast<std::ptrdiff_t>(state_at), c * n,
                  states[0].begin());
      for (int64_t t = 0; t < p.tokens; ++t) {
        const double step = step_of(t);
        const double decay = resets(t) ? 0 : std::exp(a * step);
        for (int64_t i = 0; i < c; ++i) {
          double y = p.d[at(h)] * p.xbc[x_at(t) + at(i)];
          for (int64_t j = 0; j < n; ++j) {
            double& s = states[at(t + 1)][at(i * n + j)];
            s = decay * states[at(t)][at(i * n + j)] +
                step * p.xbc[x_at(t) + at(i)] * p.xbc[b_at(t) + at(j)];
            y += s * p.xbc[c_at(t) + at(j)];
          }
          out.y[y_at(t) + at(i)] = y;
        }
      }
      std::copy(states.back().begin(), states.back().end(),
                out.final_state.begin() + static_cast<std::ptrdiff_t>(state_at));
      Values ds(dfinal.begin() + static_cast<std::ptrdiff_t>(state_at),
                dfinal.begin() + static_cast<std::ptrdiff_t>(state_at) + c * n);
      std::array<double, 3> magnitudes = {};
      for (int64_t t = p.tokens - 1; t >= 0; --t) {
        const double step = step_of(t);
        const double decay = resets(t) ? 0 : std::exp(a * step);
        double dstep = 0;
        double ddecay = 0;
        for (int64_t i = 0; i < c; ++i) {
          const double g = dy[y_at(t) + at(i)];
          const double x = p.xbc[x_at(t) + at(i)];
          double& dx = out.dxbc[x_at(t) + at(i)];
          dx += p.d[at(h)] * g;
          out.dd[at(h)] += g * x;
          magnitudes[0] += std::abs(g * x);
          for (int64_t j = 0; j < n; ++j) {
            double& gradient = ds[at(i * n + j)];
            gradient += g * p.xbc[c_at(t) + at(j)];
            out.dxbc[c_at(t) + at(j)] += states[at(t + 1)][at(i * n + j)] * g;
            const double bj = p.xbc[b_at(t) + at(j)];
            dstep += gradient * x * bj;
            dx += gradient * step * bj;
            out.dxbc[b_at(t) + at(j)] += gradient * step * x;
            ddecay += gradient * states[at(t)][at(i * n + j)];
            gradient *= decay;
          }
        }
        dstep += ddecay * decay * a;
        out.da_log[at(h)] += ddecay * decay * step * a;
        magnitudes[1] += std::abs(ddecay * decay * step * a);
        const double raw = p.dt[at((b * p.tokens + t) * o.heads + h)] + p.dt_bias[at(h)];
        const double plain = softplus_of(raw);
        const bool clamped = plain < o.step_min || plain > o.step_max;
        const double draw = clamped ? 0 : dstep / (1 + std::exp(-raw));
        out.ddt[at((b * p.tokens + t) * o.heads + h)] = draw;
        out.ddt_bias[at(h)] += draw;
        magnitudes[2] += std::abs(draw);
      }
      out.sum_scale = std::max({out.sum_scale, magnitudes[0], magnitudes[1], magnitudes[2]});
      std::copy(ds.begin(), ds.end(), out.dinitial.begin() + static_cast<std::ptrdiff_t>(state_at));
    }
  }
  return out;
}

// Leaves of the given dtype; states and parameters in the wide one.
TensorList leaves_of(const Problem& p, DType dtype) {
  const DType wide = dtype == kFloat64 ? kFloat64 : kFloat32;
  const StateSpaceOptions& o = p.options;
  TensorList out = {tensor(p.xbc, {p.batch, p.tokens, p.width()}).to(dtype),
                    tensor(p.dt, {p.batch, p.tokens, o.heads}).to(wide),
                    tensor(p.a_log, {o.heads}).to(wide),
                    tensor(p.d, {o.heads}).to(wide),
                    tensor(p.dt_bias, {o.heads}).to(wide),
                    tensor(p.initial, p.state_shape()).to(wide)};
  for (Tensor& t : out) {
    t.set_requires_grad();
  }
  return out;
}

StateSpaceOptions options_of(const Problem& p, const Tensor& initial) {
  StateSpaceOptions o = p.options;
  o.initial_state = initial;
  if (!p.starts.empty()) {
    o.document_starts = document_starts(p.starts, p.tokens);
  }
  return o;
}

// The problem with the numbers that the dtype has.
Problem rounded(Problem p, DType dtype) {
  const DType wide = dtype == kFloat64 ? kFloat64 : kFloat32;
  const auto round = [](Values& values, DType to) {
    values = tensor(values, {static_cast<int64_t>(values.size())}).to(to).to_vector<double>();
  };
  round(p.xbc, dtype);
  for (Values* values : {&p.dt, &p.a_log, &p.d, &p.dt_bias, &p.initial}) {
    round(*values, wide);
  }
  return p;
}

void expect_near(const Tensor& actual, const Values& expected, double bound, const char* what) {
  SCOPED_TRACE(what);
  ASSERT_TRUE(actual.defined());
  expect_close(actual, tensor(expected, actual.shape()), bound);
}

// Values, final state and all gradients, no further off than `bound`, those that are rounded to
// 16 bits than `rounding`, of the largest.
void check_problem(const Problem& given, DType dtype, double bound, double rounding = 0) {
  const Problem p = rounded(given, dtype);
  const TensorList in = leaves_of(p, dtype);
  const StateSpaceResult result =
      state_space(in[0], in[1], in[2], in[3], in[4], options_of(p, in[5]));
  EXPECT_EQ(result.y.dtype(), dtype);
  const Tensor dy =
      tensor(numbers(static_cast<size_t>(result.y.numel()), 7, 0, 1), result.y.shape()).to(dtype);
  const Tensor dfinal =
      tensor(numbers(p.initial.size(), 8, 0, 1), p.state_shape()).to(in[5].dtype());
  const Outcome expected = reference(p, dy.to_vector<double>(), dfinal.to_vector<double>());
  const std::array<Tensor, 2> roots = {result.y, result.final_state};
  const std::array<Tensor, 2> weights = {dy, dfinal};
  const TensorList g = grad(roots, in, weights);
  expect_near(result.y, expected.y, bound + rounding, "y");
  expect_near(result.final_state, expected.final_state, bound, "final state");
  expect_near(g[0], expected.dxbc, bound + rounding, "dxbc");
  expect_near(g[1], expected.ddt, bound, "ddt");
  const auto expect_sums = [&](const Tensor& actual, Values values, const char* what) {
    for (double& value : values) {
      value /= expected.sum_scale;
    }
    expect_near(actual / expected.sum_scale, values, bound, what);
  };
  expect_sums(g[2], expected.da_log, "da_log");
  expect_sums(g[3], expected.dd, "dd");
  expect_sums(g[4], expected.ddt_bias, "ddt_bias");
  expect_near(g[5], expected.dinitial, bound, "dinitial_state");
}

// Sums of at most some hundred products in float32, of numbers like 1.
constexpr double kBound32 = 3e-6;
constexpr double kBound64 = 1e-13;

const std::vector<StateSpaceOptions>& sizes() {
  static const std::vector<StateSpaceOptions> all = {
      {.heads = 1, .head_dim = 16, .state_size = 16, .chunk_size = 64},
      {.heads = 4, .head_dim = 24, .groups = 2, .state_size = 40, .chunk_size = 64},
      {.heads = 3, .head_dim = 5, .groups = 3, .state_size = 7, .chunk_size = 128},
      {.heads = 2, .head_dim = 64, .state_size = 16, .chunk_size = 50},
      {.heads = 6, .head_dim = 3, .groups = 2, .state_size = 33, .chunk_size = 256},
  };
  return all;
}

TEST(StateSpace, IsTheRecurrence) {
  for (const StateSpaceOptions& o : sizes()) {
    for (const int64_t tokens : {1, 2, 63, 64, 65, 300}) {
      SCOPED_TRACE(concat(o.heads, " heads of ", o.head_dim, ", ", o.groups, " groups of ",
                          o.state_size, ", ", tokens, " tokens"));
      const Problem p = problem_of(o, 2, tokens);
      check_problem(p, kFloat64, kBound64);
      check_problem(p, kFloat32, kBound32);
    }
  }
}

TEST(StateSpace, SixteenBitsAreRoundedOnce) {
  for (const StateSpaceOptions& o : sizes()) {
    const Problem p = problem_of(o, 2, 130);
    check_problem(p, kBFloat16, kBound32, 0x1p-8);
    check_problem(p, kFloat16, kBound32, 0x1p-11);
  }
}

TEST(StateSpace, DocumentsBeginAnywhere) {
  const std::vector<std::vector<std::vector<int64_t>>> all = {
      {{1}},
      {{0, 20, 21, 22, 63, 64, 65, 100}, {64}},
      {{128}, {127, 129}},
      {{}, {5, 6, 7, 199}},
      {{16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192}},
  };
  for (const StateSpaceOptions& o : sizes()) {
    for (const auto& starts : all) {
      SCOPED_TRACE(concat(o.chunk_size, " tokens a chunk"));
      Problem p = problem_of(o, 2, 200);
      p.starts = starts;
      check_problem(p, kFloat64, kBound64);
      check_problem(p, kFloat32, kBound32);
    }
  }
}

TEST(StateSpace, DocumentsKnowNothingOfEachOther) {
  // The second document has the bits that it has alone, whatever the first one is.
  for (const int64_t begin : {1, 17, 64, 100}) {
    const StateSpaceOptions o = {.heads = 2, .head_dim = 8, .state_size = 16, .chunk_size = 64};
    Problem p = problem_of(o, 1, 128);
    p.starts = {{begin}};
    const auto run = [&](double fill) {
      Problem own = p;
      std::fill_n(own.xbc.begin(), begin * own.width(), fill);
      std::fill_n(own.dt.begin(), begin * o.heads, fill);
      const TensorList in = leaves_of(own, kFloat32);
      const StateSpaceResult r =
          state_space(in[0], in[1], in[2], in[3], in[4], options_of(own, in[5]));
      const Tensor y = slice(r.y, 1, begin, 128);
      const TensorList g = grad(y, {in[0], in[1]}, ones(y.shape()));
      EXPECT_EQ(amax(abs(slice(g[0], 1, 0, begin))).item(), 0);
      EXPECT_EQ(amax(abs(slice(g[1], 1, 0, begin))).item(), 0);
      return TensorList{y.detach(), slice(g[0], 1, begin, 128), slice(g[1], 1, begin, 128)};
    };
    const TensorList one = run(1);
    const TensorList other = run(30);
    for (size_t i = 0; i < one.size(); ++i) {
      EXPECT_EQ(one[i].to_vector<float>(), other[i].to_vector<float>()) << begin << ", " << i;
    }
  }
}

TEST(StateSpace, StepsAreHeldWithinBounds) {
  StateSpaceOptions o = {.heads = 3, .head_dim = 8, .state_size = 16, .chunk_size = 64};
  o.step_min = 0.2;
  o.step_max = 0.5;
  const Problem p = problem_of(o, 1, 150);
  check_problem(p, kFloat64, kBound64);
  check_problem(p, kFloat32, kBound32);
}

TEST(StateSpace, StrongDecayIsExact) {
  // Exponents of a hundred thousand within a chunk, then small ones again, whose differences must
  // not drown in the sums.
  const StateSpaceOptions o = {.heads = 2, .head_dim = 8, .state_size = 16, .chunk_size = 64};
  Problem p = problem_of(o, 1, 130);
  p.a_log = {6, 9};
  for (size_t i = 0; i < p.dt.size(); ++i) {
    p.dt[i] = i % 64 < 12 ? 10 : -12;
  }
  p.dt_bias = {0, 0};
  check_problem(p, kFloat64, kBound64);
  check_problem(p, kFloat32, kBound32);
  p.dt.assign(p.dt.size(), 60);
  p.a_log = {12, -30};
  check_problem(p, kFloat64, 1e-12);
  const TensorList in = leaves_of(p, kFloat32);
  const StateSpaceResult r = state_space(in[0], in[1], in[2], in[3], in[4], options_of(p, in[5]));
  const TensorList g = grad(r.y, in, ones(r.y.shape()));
  for (const Tensor& t : {r.y, r.final_state, g[0], g[1], g[2], g[3], g[4], g[5]}) {
    EXPECT_TRUE(std::isfinite(sum(t).item()));
  }
}

TEST(StateSpace, TinyStepsKeepTheirDigits) {
  const StateSpaceOptions o = {.heads = 1, .head_dim = 4, .state_size = 4, .chunk_size = 64};
  Problem p = problem_of(o, 1, 40);
  for (double& dt : p.dt) {
    dt -= 12;
  }
  p.initial.assign(p.initial.size(), 0);
  p.d = {0};
  p = rounded(p, kFloat32);
  const TensorList in = leaves_of(p, kFloat32);
  const StateSpaceResult r = state_space(in[0], in[1], in[2], in[3], in[4], options_of(p, in[5]));
  const Outcome expected = reference(p, Values(r.y.shape().numel()), Values(p.initial.size()));
  const Values y = r.y.to_vector<double>();
  double largest = 0;
  double error = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    largest = std::max(largest, std::abs(expected.y[i]));
    error = std::max(error, std::abs(y[i] - expected.y[i]));
  }
  EXPECT_LT(largest, 1e-2);
  EXPECT_LE(error, kBound32 * largest);
}

TEST(StateSpace, AnyChunksAndStepsAreOnePass) {
  StateSpaceOptions o = {.heads = 4, .head_dim = 12, .groups = 2, .state_size = 20};
  Problem p = problem_of(o, 2, 100);
  p.starts = {{30, 70}, {64}};
  const TensorList in = leaves_of(p, kFloat32);
  const NoGradGuard guard;
  const StateSpaceInputs inputs = {in[0], in[1], in[2], in[3], in[4]};
  const StateSpaceOptions whole = options_of(p, in[5]);
  const StateSpacePass once = state_space_forward(inputs, whole);
  for (const int64_t size : {1, 7, 16, 64, 99, 100, 256}) {
    StateSpaceOptions own = whole;
    own.chunk_size = size;
    const StateSpacePass chunked = state_space_forward(inputs, own);
    expect_close(chunked.y, once.y, 1e-5);
    expect_close(chunked.final_state, once.final_state, 1e-5);
    // Calls of so many tokens, which hand the state on.
    StateSpaceOptions part = whole;
    TensorList pieces;
    for (int64_t begin = 0; begin < p.tokens; begin += size) {
      const int64_t end = std::min(begin + size, p.tokens);
      part.position_offset = begin;
      const StateSpacePass piece = state_space_forward(
          {slice(in[0], 1, begin, end), slice(in[1], 1, begin, end), in[2], in[3], in[4]}, part);
      pieces.push_back(piece.y);
      part.initial_state = piece.final_state;
    }
    expect_close(cat(pieces, 1), once.y, 1e-5);
    expect_close(part.initial_state, once.final_state, 1e-5);
  }
  // Token by token, in slots of a larger memory. Where a document begins the caller resets.
  const Tensor states = full({5, o.heads, o.head_dim, o.state_size}, 7);
  const std::vector<int64_t> slots = {3, 1};
  for (size_t b = 0; b < 2; ++b) {
    copy_(states.select(0, slots[b]), in[5].select(0, static_cast<int64_t>(b)));
  }
  TensorList tokens;
  for (int64_t t = 0; t < p.tokens; ++t) {
    for (size_t b = 0; b < 2; ++b) {
      if (std::find(p.starts[b].begin(), p.starts[b].end(), t) != p.starts[b].end()) {
        fill_(states.select(0, slots[b]), 0);
      }
    }
    tokens.push_back(state_space_step(in[0].select(1, t), in[1].select(1, t), in[2], in[3], in[4],
                                      o, states, slots));
  }
  expect_close(stack(tokens, 1), once.y, 1e-5);
  for (size_t b = 0; b < 2; ++b) {
    expect_close(states.select(0, slots[b]), once.final_state.select(0, static_cast<int64_t>(b)),
                 1e-5);
  }
  for (const int64_t other : {0, 2, 4}) {
    expect_close(states.select(0, other), full({o.heads, o.head_dim, o.state_size}, 7), 0);
  }
}

TEST(StateSpace, PassesApartGiveTheSameBits) {
  StateSpaceOptions o = {.heads = 4, .head_dim = 12, .groups = 2, .state_size = 20};
  o.chunk_size = 32;
  Problem p = problem_of(o, 2, 100);
  const TensorList in = leaves_of(p, kFloat32);
  const StateSpaceInputs inputs = {in[0], in[1], in[2], in[3], in[4]};
  const StateSpaceOptions options = options_of(p, in[5]);
  const StateSpaceResult result = state_space(in[0], in[1], in[2], in[3], in[4], options);
  const Tensor dy =
      tensor(numbers(static_cast<size_t>(result.y.numel()), 7, 0, 1), result.y.shape())
          .to(kFloat32);
  const Tensor dfinal = tensor(numbers(p.initial.size(), 8, 0, 1), p.state_shape()).to(kFloat32);
  const std::array<Tensor, 2> roots = {result.y, result.final_state};
  const std::array<Tensor, 2> weights = {dy, dfinal};
  const TensorList g = grad(roots, in, weights);
  const auto same = [](const Tensor& a, const Tensor& b) {
    EXPECT_EQ(a.to_vector<float>(), b.to_vector<float>());
  };
  const StateSpacePass all = state_space_forward(inputs, options);
  const StateSpacePass states = state_space_states(inputs, options);
  EXPECT_FALSE(states.y.defined());
  same(all.y, result.y);
  same(all.final_state, result.final_state);
  same(states.final_state, result.final_state);
  same(states.borders, all.borders);
  same(state_space_output(inputs, options, states.borders), result.y);
  const StateSpaceGradientTensors b =
      state_space_backward(inputs, options, all.borders, dy, dfinal);
  same(b.xbc, g[0]);
  same(b.dt, g[1]);
  same(b.a_log, g[2]);
  same(b.d, g[3]);
  same(b.dt_bias, g[4]);
  same(b.initial_state, g[5]);
  same(state_space_initial_gradient(inputs, options, dy, dfinal), g[5]);
  // The initial state is in the final one by the decay.
  StateSpaceOptions from_zero = options;
  from_zero.initial_state = {};
  const Tensor decay = state_space_decay(inputs, options).to(kFloat32).view({2, o.heads, 1, 1});
  expect_close(state_space_states(inputs, from_zero).final_state + decay * in[5].detach(),
               result.final_state, 1e-6);
  expect_close(state_space_initial_gradient(inputs, options, {}, dfinal), decay * dfinal, 1e-6);
  p.starts = {{99}, {}};
  const Tensor reset = state_space_decay(inputs, options_of(p, in[5]));
  EXPECT_EQ(amax(abs(reset.select(0, 0))).item(), 0);
  EXPECT_GT(amax(reset.select(0, 1)).item(), 0);
  EXPECT_THROW(state_space_output(inputs, options, zeros({1})), ValueError);
  EXPECT_THROW(state_space_backward(inputs, options, zeros({1}), dy, dfinal), ValueError);
  EXPECT_THROW(state_space_backward(inputs, options, all.borders, dfinal, dfinal), ValueError);
  EXPECT_THROW(state_space_backward(inputs, options, all.borders, dy, dy), ValueError);
}

TEST(StateSpace, ReadsColumnsOfAWiderMatrix) {
  StateSpaceOptions o = {.heads = 2, .head_dim = 8, .state_size = 16};
  const Problem p = problem_of(o, 2, 70);
  const TensorList in = leaves_of(p, kFloat32);
  const Tensor wide = cat({full({2, 70, 3}, NAN), in[0].detach(), in[1].detach()}, 2);
  const Tensor y = state_space(slice(wide, 2, 3, 3 + p.width()),
                               slice(wide, 2, 3 + p.width(), 5 + p.width()), in[2], in[3], in[4], o)
                       .y;
  EXPECT_EQ(y.to_vector<float>(),
            state_space(in[0], in[1], in[2], in[3], in[4], o).y.to_vector<float>());
}

TEST(StateSpace, TeamsGiveTheSameBits) {
  StateSpaceOptions o = {.heads = 6, .head_dim = 20, .groups = 2, .state_size = 24};
  o.chunk_size = 32;
  Problem p = problem_of(o, 2, 333);
  p.starts = {{100, 101, 250}, {}};
  const auto run = [&](int threads) {
    const int before = num_threads();
    set_num_threads(threads);
    const TensorList in = leaves_of(p, kFloat32);
    const StateSpaceResult r = state_space(in[0], in[1], in[2], in[3], in[4], options_of(p, in[5]));
    TensorList out = grad(r.y, in, ones(r.y.shape()));
    out.push_back(r.y.detach());
    out.push_back(r.final_state.detach());
    set_num_threads(before);
    return out;
  };
  const TensorList one = run(1);
  for (const int threads : {2, 3, 5}) {
    const TensorList more = run(threads);
    for (size_t i = 0; i < one.size(); ++i) {
      EXPECT_EQ(one[i].to_vector<float>(), more[i].to_vector<float>()) << threads << ", " << i;
    }
  }
}

TEST(StateSpace, TwinIsTheSameFunction) {
  StateSpaceOptions o = {.heads = 4, .head_dim = 3, .groups = 2, .state_size = 5};
  o.want_final_state = true;
  Problem p = problem_of(o, 2, 40);
  p.starts = {{10, 30}, {}};
  const TensorList in = leaves_of(p, kFloat64);
  const StateSpaceOptions options = options_of(p, in[5]);
  const StateSpaceResult fused = state_space(in[0], in[1], in[2], in[3], in[4], options);
  const StateSpaceResult twin = composed_state_space(in[0], in[1], in[2], in[3], in[4], options);
  expect_close(fused.y, twin.y, 1e-13);
  expect_close(fused.final_state, twin.final_state, 1e-13);
}

TEST(StateSpace, ADroppedResultComesFromTheStatesThatAreKept) {
  StateSpaceOptions o = {.heads = 4, .head_dim = 16, .state_size = 32, .chunk_size = 32};
  const Problem p = problem_of(o, 1, 200);
  RankContext context;
  const RankContextGuard guard(context);
  const TensorList in = leaves_of(p, kFloat32);
  double flops = 0;  // of the backward pass
  const auto outcome = [&](bool drops) {
    RecomputedValues values;
    Tensor z;
    StateSpaceResult result;
    {
      const RecomputeScope scope(drops ? &values : nullptr);
      const Tensor xbc = in[0] * 1.5;
      result = state_space(xbc, in[1], in[2], in[3], in[4], options_of(p, in[5]));
      z = square(result.y) + sum(result.final_state);  // backward of square reads y
    }
    values.keep(z);
    const int64_t before = memory_stats().current_bytes;
    const int64_t dropped = values.drop();
    // xbc, y and the final state go.
    EXPECT_EQ(dropped > 0, drops);
    EXPECT_LE(memory_stats().current_bytes, before - dropped);
    if (drops) {
      EXPECT_GE(dropped, 4 * (200 * (64 + 64 + 64) + 4 * 16 * 32));
    }
    const double work = kernels::work_counter().flops;
    TensorList out = grad(z, in, ones(z.shape()));
    flops = kernels::work_counter().flops - work;
    out.push_back(result.y.detach());
    out.push_back(result.final_state.detach());
    return out;
  };
  const TensorList plain = outcome(false);
  const double plain_flops = flops;
  const TensorList again = outcome(true);
  for (size_t i = 0; i < plain.size(); ++i) {
    EXPECT_EQ(plain[i].to_vector<float>(), again[i].to_vector<float>()) << i;
  }
  // Twice what forward takes, and once more what gives y from the states, but not what makes these.
  const double states = 2.0 * 4 * 16 * 32 * 200;
  const double pairs = 6 * (32 * 33 / 2) + 8 * 9 / 2;
  const double output = states + 2.0 * (4 * 16 + 32) * pairs;
  EXPECT_EQ(plain_flops, 2 * (states + output));
  EXPECT_EQ(flops, plain_flops + output);
}

}  // namespace
}  // namespace state_space_test
}  // namespace tapestry
