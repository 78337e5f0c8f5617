#include "nn/init.h"

#include <cmath>
#include <limits>

#include "tests/nn/nn_test_util.h"

namespace tapestry::nn::init {
namespace {

using ::testing::Each;
using ::testing::Eq;

struct Moments {
  double mean = 0;
  double std = 0;
  double min = 0;
  double max = 0;
};

Moments moments_of(const Tensor& t) {
  Moments m{.min = std::numeric_limits<double>::infinity(),
            .max = -std::numeric_limits<double>::infinity()};
  const std::vector<double> all = t.to_vector<double>();
  for (const double v : all) {
    m.mean += v / static_cast<double>(all.size());
    m.min = std::min(m.min, v);
    m.max = std::max(m.max, v);
  }
  for (const double v : all) {
    m.std += (v - m.mean) * (v - m.mean) / static_cast<double>(all.size());
  }
  m.std = std::sqrt(m.std);
  return m;
}

constexpr RandomKey kKey{.seed = 7, .stream = 3, .offset = 0};

TEST(Init, ConstantsFillAnyStridesAndDtype) {
  const Tensor base = zeros({3, 4}, kBFloat16);
  constant_(base.t().slice(0, 1, 3), 2.5);
  EXPECT_THAT(base.to_vector<float>(),
              ::testing::ElementsAre(0, 2.5, 2.5, 0, 0, 2.5, 2.5, 0, 0, 2.5, 2.5, 0));
  ones_(base);
  EXPECT_THAT(values(base), Each(1));
  zeros_(base);
  EXPECT_THAT(values(base), Each(0));
}

TEST(Init, IsNotRecordedButNoticed) {
  const Tensor t = zeros({4});
  t.set_requires_grad();
  const uint32_t version = t.version();
  normal_(t);
  EXPECT_TRUE(t.is_leaf());
  EXPECT_GT(t.version(), version);
}

TEST(Init, NormalAndUniformHaveTheirMoments) {
  const Tensor t = empty({200, 500});
  normal_(t, 3, 0.5, kKey);
  Moments m = moments_of(t);
  EXPECT_NEAR(m.mean, 3, 0.01);  // standard error 0.0016
  EXPECT_NEAR(m.std, 0.5, 0.01);
  uniform_(t, -2, 1, kKey);
  m = moments_of(t);
  EXPECT_NEAR(m.mean, -0.5, 0.02);
  EXPECT_NEAR(m.std, 3 / std::sqrt(12.0), 0.02);
  EXPECT_GE(m.min, -2);
  EXPECT_LT(m.min, -1.99);
  EXPECT_LT(m.max, 1);
  EXPECT_GT(m.max, 0.99);
}

TEST(Init, OneKeyGivesOneTensorAGeneratorMovesOn) {
  const Tensor a = empty({64});
  const Tensor b = empty({64});
  const auto same = [&](const auto& fill, const RandomSource& first, const RandomSource& second) {
    fill(a, first);
    fill(b, second);
    return values(a) == values(b);
  };
  const auto fills = {
      +[](const Tensor& t, const RandomSource& s) { normal_(t, 0, 1, s); },
      +[](const Tensor& t, const RandomSource& s) { uniform_(t, 0, 1, s); },
      +[](const Tensor& t, const RandomSource& s) { trunc_normal_(t, 0, 1, -2, 2, s); },
      +[](const Tensor& t, const RandomSource& s) {
        xavier_normal_(t.view({8, 8}), 1, s);
      },
      +[](const Tensor& t, const RandomSource& s) {
        kaiming_uniform_(t.view({8, 8}), 1, s);
      },
  };
  for (const auto& fill : fills) {
    EXPECT_TRUE(same(fill, kKey, kKey));
    EXPECT_FALSE(same(fill, kKey, RandomKey{.seed = 8, .stream = 3}));
    EXPECT_FALSE(same(fill, kKey, RandomKey{.seed = 7, .stream = 4}));
    Generator one(5);
    Generator two(5);
    EXPECT_TRUE(same(fill, one, two));
    EXPECT_FALSE(same(fill, one, one));
  }
}

TEST(Init, DoesNotDependOnStrides) {
  const Tensor a = empty({5, 7});
  const Tensor b = empty({7, 5}).t();
  normal_(a, 0, 1, kKey);
  normal_(b, 0, 1, kKey);
  EXPECT_EQ(values(a), values(b));
}

TEST(TruncNormal, StaysInsideItsCutsWithTheRightMoments) {
  const Tensor t = empty({100000}, kFloat64);
  trunc_normal_(t, 1, 0.5, -2, 2, kKey);
  Moments m = moments_of(t);
  EXPECT_GE(m.min, 1 - 2 * 0.5);
  EXPECT_LE(m.max, 1 + 2 * 0.5);
  EXPECT_LT(m.min, 0.01);  // and goes up to them
  EXPECT_GT(m.max, 1.99);
  EXPECT_NEAR(m.mean, 1, 0.01);
  EXPECT_NEAR(m.std, 0.5 * 0.879626, 0.01);  // sqrt(1 - 4 phi(2) / (2 Phi(2) - 1))
  trunc_normal_(t, 0, 1, 0, std::numeric_limits<double>::infinity(), kKey);
  m = moments_of(t);
  EXPECT_GE(m.min, 0);
  EXPECT_NEAR(m.mean, std::sqrt(2 / M_PI), 0.01);  // half normal
}

TEST(TruncNormal, IsExactFarInEitherTail) {
  // In the tail beyond a, x - a is nearly exponential with rate a: mean about a + 1/a - 2/a^3.
  const Tensor t = empty({20000}, kFloat64);
  for (const double sign : {1.0, -1.0}) {
    trunc_normal_(t, 0, 1, sign > 0 ? 10 : -12, sign > 0 ? 12 : -10, kKey);
    const Moments m = moments_of(t);
    EXPECT_GE(sign > 0 ? m.min : -m.max, 10);
    EXPECT_LE(sign > 0 ? m.max : -m.min, 12);
    EXPECT_NEAR(sign * m.mean, 10.098, 0.003);
  }
}

TEST(TruncNormal, RefusesBadArguments) {
  const Tensor t = empty({4});
  expect_throws<ValueError>([&] { trunc_normal_(t, 0, 1, 2, -2); }, {"2", "-2"});
  expect_throws<ValueError>([&] { trunc_normal_(t, 0, 1, 1, 1); }, {"cut"});
  expect_throws<ValueError>([&] { trunc_normal_(t, 0, 1, NAN, 1); }, {"cut"});
  expect_throws<ValueError>([&] { trunc_normal_(t, 0, -1); }, {"std", "-1"});
  expect_throws<ValueError>([&] { normal_(t, 0, -1); }, {"-1"});
  expect_throws<ValueError>([&] { uniform_(t, 1, 0); }, {"1"});
}

TEST(Fans, CountTheReceptiveField) {
  EXPECT_EQ(fans_of(empty({8, 4})).in, 4);
  EXPECT_EQ(fans_of(empty({8, 4})).out, 8);
  EXPECT_EQ(fans_of(empty({8, 4, 3, 5})).in, 60);
  EXPECT_EQ(fans_of(empty({8, 4, 3, 5})).out, 120);
  for (const Shape& s : {Shape{}, Shape{4}}) {
    const Tensor t = empty(s);
    expect_throws<ValueError>([&] { fans_of(t); }, {"two axes", s.str()});
    expect_throws<ValueError>([&] { xavier_uniform_(t); }, {"two axes"});
    expect_throws<ValueError>([&] { xavier_normal_(t); }, {"two axes"});
    expect_throws<ValueError>([&] { kaiming_uniform_(t); }, {"two axes"});
    expect_throws<ValueError>([&] { kaiming_normal_(t); }, {"two axes"});
  }
}

TEST(Init, XavierAndKaimingScaleByTheFans) {
  const Tensor w = empty({300, 100});
  const double gain = std::sqrt(2.0);
  xavier_uniform_(w, gain, kKey);
  const double a = gain * std::sqrt(6.0 / 400);
  EXPECT_NEAR(moments_of(w).max, a, 0.001 * a);
  EXPECT_NEAR(moments_of(w).min, -a, 0.001 * a);
  EXPECT_NEAR(moments_of(w).std, a / std::sqrt(3.0), 0.02 * a);
  xavier_normal_(w, gain, kKey);
  EXPECT_NEAR(moments_of(w).std, gain * std::sqrt(2.0 / 400), 0.002);
  kaiming_uniform_(w, gain, kKey);
  EXPECT_NEAR(moments_of(w).max, gain * std::sqrt(0.03), 0.001);
  kaiming_normal_(w, gain, kKey);
  EXPECT_NEAR(moments_of(w).std, gain / 10, 0.002);
  EXPECT_NEAR(moments_of(w).mean, 0, 0.005);
}

TEST(Init, AnEmptyWeightIsFine) {
  for (const Shape& s : {Shape{0, 4}, Shape{4, 0}, Shape{0, 0}}) {
    const Tensor w = empty(s);
    xavier_uniform_(w);
    xavier_normal_(w);
    kaiming_uniform_(w);
    kaiming_normal_(w);
    trunc_normal_(w);
    EXPECT_THAT(w.numel(), Eq(0));
  }
}

}  // namespace
}  // namespace tapestry::nn::init
