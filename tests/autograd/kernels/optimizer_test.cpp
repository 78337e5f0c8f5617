#include "autograd/kernels/optimizer.h"

#include <bit>
#include <cmath>
#include <limits>

#include "autograd/kernels/philox.h"
#include "fused_testing.h"

namespace tapestry::testing {
namespace {

constexpr double kLr = 0.01;
const std::vector<kernels::RandomRows> kNumbers(1);  // element i takes number i of stream 0
constexpr double kScale = 0.5;

double tolerance_of(DType dtype) { return dtype == kFloat64 ? 1e-13 : 1e-6; }

kernels::AdamTensor adam_tensor(Array& p, const Array& g, Array& m, Array& v, int64_t step) {
  return {.n = p.size(),
          .param_dtype = p.dtype(),
          .p = p.data(),
          .grad_dtype = g.dtype(),
          .g = g.data(),
          .exp_avg_dtype = m.dtype(),
          .exp_avg = m.data(),
          .exp_avg_sq_dtype = v.dtype(),
          .exp_avg_sq = v.data(),
          .rounding = kNumbers,
          .lr = kLr,
          .weight_decay = 0.1,
          .step = step};
}

kernels::SgdTensor sgd_tensor(Array& p, const Array& g, Array& buffer, bool first_step) {
  return {.n = p.size(),
          .param_dtype = p.dtype(),
          .p = p.data(),
          .grad_dtype = g.dtype(),
          .g = g.data(),
          .momentum_buffer = buffer.data(),
          .first_step = first_step,
          .lr = kLr,
          .weight_decay = 0.1};
}

/// Parameter and gradient types that go together, at every level.
template <class Body>
void for_each_pair(const Body& body) {
  at_every_cpu_level([&] {
    for (const DType param : {kFloat32, kFloat64}) {
      for (const DType grad : {kFloat32, kFloat64, kBFloat16, kFloat16}) {
        SCOPED_TRACE(std::string(name_of(param)) + " " + std::string(name_of(grad)));
        body(param, grad);
      }
    }
  });
}

TEST(AdamW, MatchesFormulaOverSteps) {
  for_each_pair([](DType param, DType grad) {
    for (const int64_t n : {0, 1, 515}) {
      for (const bool decoupled : {true, false}) {
        Array p = random_array(param, n, 1);
        Array m(param, Doubles(n, 0.0));
        Array v(param, Doubles(n, 0.0));
        Doubles pe = p.values();
        Doubles me(n);
        Doubles ve(n);
        for (int64_t step = 1; step <= 5; ++step) {
          const Array g = random_array(grad, n, 10 + step);
          kernels::adamw(std::vector{adam_tensor(p, g, m, v, step)},
                         {.beta2 = 0.95, .decoupled = decoupled, .grad_scale = kScale});
          for (int64_t i = 0; i < n; ++i) {
            double gi = g[i] * kScale;
            if (decoupled) {
              pe[i] *= 1 - kLr * 0.1;
            } else {
              gi += 0.1 * pe[i];
            }
            me[i] = 0.9 * me[i] + 0.1 * gi;
            ve[i] = 0.95 * ve[i] + 0.05 * gi * gi;
            pe[i] -= kLr * (me[i] / (1 - std::pow(0.9, step))) /
                     (std::sqrt(ve[i] / (1 - std::pow(0.95, step))) + 1e-8);
          }
        }
        expect_close(p, pe, "p", tolerance_of(param));
        expect_close(m, me, "exp_avg", tolerance_of(param));
        expect_close(v, ve, "exp_avg_sq", tolerance_of(param));
      }
    }
  });
}

TEST(AdamW, EpsilonIsOutsideTheRoot) {
  at_every_cpu_level([] {
    Array p(kFloat32, Doubles{1.0});
    Array m(kFloat32, Doubles{0.0});
    Array v(kFloat32, Doubles{0.0});
    const Array g(kFloat32, Doubles{1e-6});
    kernels::AdamTensor tensor = adam_tensor(p, g, m, v, 1);
    tensor.lr = 1;
    tensor.weight_decay = 0;
    kernels::adamw(std::vector{tensor}, {.eps = 1e-6});
    EXPECT_NEAR(p[0], 0.5, 1e-6);  // 1 - 1e-6 / (1e-6 + 1e-6)
  });
}

TEST(Sgd, MatchesFormulaOverSteps) {
  for_each_pair([](DType param, DType grad) {
    for (const int64_t n : {0, 1, 515}) {
      for (const double momentum : {0.0, 0.9}) {
        for (const bool nesterov : {false, true}) {
          if (nesterov && momentum == 0) {
            continue;
          }
          const double dampening = nesterov ? 0.0 : 0.2;
          Array p = random_array(param, n, 1);
          Array buffer(param, n);  // holds NaN: the first step must not read it
          Doubles pe = p.values();
          Doubles be(n);
          for (int64_t step = 1; step <= 4; ++step) {
            const Array g = random_array(grad, n, 10 + step);
            kernels::SgdTensor tensor = sgd_tensor(p, g, buffer, step == 1);
            tensor.momentum_buffer = momentum == 0 ? nullptr : buffer.data();
            kernels::sgd(std::vector{tensor}, {.momentum = momentum,
                                               .dampening = dampening,
                                               .nesterov = nesterov,
                                               .grad_scale = kScale});
            for (int64_t i = 0; i < n; ++i) {
              const double gi = g[i] * kScale + 0.1 * pe[i];
              be[i] = step == 1 ? gi : momentum * be[i] + (1 - dampening) * gi;
              const double update = momentum == 0 ? gi : (nesterov ? gi + momentum * be[i] : be[i]);
              pe[i] -= kLr * update;
            }
          }
          expect_close(p, pe, "p", tolerance_of(param));
          if (momentum != 0) {
            expect_close(buffer, be, "momentum_buffer", tolerance_of(param));
          }
        }
      }
    }
  });
}

TEST(Optimizer, GradientsAreLimitedAfterScaling) {
  at_every_cpu_level([] {
    const Array g(kFloat32, Doubles{8, -8, 1, -1});
    Array p(kFloat32, Doubles(4, 0.0));
    Array m(kFloat32, Doubles(4, 0.0));
    Array v(kFloat32, Doubles(4, 0.0));
    kernels::adamw(std::vector{adam_tensor(p, g, m, v, 1)},
                   {.beta1 = 0, .grad_scale = 0.5, .grad_limit = 2});
    expect_close(m, {2, -2, 0.5, -0.5}, "exp_avg", 1e-6);
    Array q(kFloat32, Doubles(4, 0.0));
    kernels::SgdTensor tensor = sgd_tensor(q, g, m, true);
    tensor.momentum_buffer = nullptr;
    tensor.lr = 1;
    kernels::sgd(std::vector{tensor}, {.grad_scale = 0.5, .grad_limit = 2});
    expect_close(q, {-2, 2, -0.5, 0.5}, "p", 1e-6);
  });
}

TEST(Optimizer, ManyTensorsAtOnceAreEachAsAlone) {
  at_every_cpu_level([] {
    const std::vector<int64_t> sizes = {1, 40000, 0, 513, 7, 70001};
    std::vector<std::vector<Array>> together;
    std::vector<std::vector<Array>> alone;
    together.reserve(sizes.size());
    for (const int64_t n : sizes) {
      const auto seed = static_cast<int>(n % 97);
      together.push_back({random_array(kFloat32, n, seed), random_array(kBFloat16, n, seed + 1),
                          Array(kFloat32, Doubles(n, 0.0)), Array(kFloat32, Doubles(n, 0.5))});
    }
    alone = together;
    std::vector<kernels::AdamTensor> tensors;
    tensors.reserve(sizes.size());
    int64_t step = 0;
    for (auto& arrays : together) {
      tensors.push_back(adam_tensor(arrays[0], arrays[1], arrays[2], arrays[3], ++step));
    }
    kernels::adamw(tensors, {});
    step = 0;
    for (auto& arrays : alone) {
      kernels::adamw(std::vector{adam_tensor(arrays[0], arrays[1], arrays[2], arrays[3], ++step)},
                     {});
    }
    for (size_t i = 0; i < sizes.size(); ++i) {
      for (const size_t a : {0, 2, 3}) {
        EXPECT_TRUE(together[i][a].same_bits(alone[i][a])) << "tensor " << i << " array " << a;
      }
    }
  });
}

TEST(Optimizer, TheCopyIsTheNewValueRounded) {
  at_every_cpu_level([] {
    for (const DType dtype : {kBFloat16, kFloat16}) {
      for (const bool adam : {true, false}) {
        const int64_t n = 1031;
        Array p = random_array(kFloat32, n, 1);
        Array m(kFloat32, Doubles(n, 0.0));
        Array v(kFloat32, Doubles(n, 0.0));
        Array copy(dtype, n);
        const Array g = random_array(kFloat32, n, 2);
        if (adam) {
          kernels::AdamTensor tensor = adam_tensor(p, g, m, v, 1);
          tensor.copy_dtype = dtype;
          tensor.copy = copy.data();
          kernels::adamw(std::vector{tensor}, {});
        } else {
          kernels::SgdTensor tensor = sgd_tensor(p, g, m, true);
          tensor.copy_dtype = dtype;
          tensor.copy = copy.data();
          kernels::sgd(std::vector{tensor}, {.momentum = 0.9});
        }
        EXPECT_TRUE(copy.same_bits(Array(dtype, p.values())));
      }
    }
  });
}

// Every upper half, with the lower halves where rounding changes its mind.
std::vector<float> all_exponents() {
  std::vector<float> out;
  for (uint32_t upper = 0; upper < 0x10000U; ++upper) {
    for (const uint32_t lower : {0x0000U, 0x0001U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
      out.push_back(std::bit_cast<float>((upper << 16U) | lower));
    }
  }
  return out;
}

TEST(SplitFloat32, GivesBackEveryValueAndRoundsToNearestEven) {
  at_every_cpu_level([] {
    const std::vector<float> x = all_exponents();
    const auto n = static_cast<int64_t>(x.size());
    for (const DType dtype : {kFloat32, kBFloat16}) {
      Doubles magnitudes(x.size());
      for (size_t i = 0; i < x.size(); ++i) {
        magnitudes[i] = static_cast<double>(i % 5) * 0.25;  // zeros among them: -0 is a mark too
      }
      Array v(dtype, magnitudes);
      std::vector<BFloat16> high(x.size());
      std::vector<uint16_t> low(x.size());
      std::vector<float> back(x.size());
      for (int round = 0; round < 2; ++round) {  // marks left from before do no harm
        kernels::split_float32(n, x.data(), high.data(), low.data(), dtype, v.data());
        kernels::join_float32(n, high.data(), low.data(), dtype, v.data(), back.data());
      }
      int64_t wrong = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        const BFloat16 expected(x[i]);
        const bool same = std::isnan(x[i])
                              ? std::isnan(back[i])
                              : std::bit_cast<uint32_t>(back[i]) == std::bit_cast<uint32_t>(x[i]);
        if (!same || high[i].bits != expected.bits ||
            std::abs(v[static_cast<int64_t>(i)]) != magnitudes[i]) {
          wrong += 1;
          ADD_FAILURE() << "value " << std::hex << std::bit_cast<uint32_t>(x[i]) << " came back as "
                        << std::bit_cast<uint32_t>(back[i]) << ", half " << high[i].bits;
        }
        ASSERT_LT(wrong, 5);
      }
    }
  });
}

void expect_split_trains_as_whole(DType moments, DType grad) {
  const int64_t n = 200003;  // enough for ties to occur
  Array whole = random_array(kFloat32, n, 1);
  Array m1(moments, Doubles(n, 0.0));
  Array v1(moments, Doubles(n, 0.0));
  Array m2 = m1;
  Array v2 = v1;
  Array copy(kBFloat16, n);
  std::vector<BFloat16> high(n);
  std::vector<uint16_t> low(n);
  kernels::split_float32(n, whole.as<float>(), high.data(), low.data(), moments, v2.data());
  for (int64_t step = 1; step <= 4; ++step) {
    const Array g = random_array(grad, n, 10 + static_cast<int>(step));
    kernels::AdamTensor tensor = adam_tensor(whole, g, m1, v1, step);
    tensor.copy = copy.data();
    const std::vector<kernels::RandomRows> rounding = {{.stream = static_cast<uint64_t>(step)}};
    tensor.rounding = rounding;
    kernels::AdamTensor split = adam_tensor(whole, g, m2, v2, step);
    split.param_dtype = kBFloat16;
    split.p = high.data();
    split.low_bits = low.data();
    split.rounding = rounding;
    kernels::adamw(std::vector{tensor}, {.seed = 3});
    kernels::adamw(std::vector{split}, {.seed = 3});
    Array joined(kFloat32, n);
    kernels::join_float32(n, high.data(), low.data(), moments, v2.data(), joined.as<float>());
    EXPECT_TRUE(joined.same_bits(whole));
    EXPECT_EQ(std::memcmp(high.data(), copy.data(), n * sizeof(BFloat16)), 0);
    EXPECT_TRUE(m1.same_bits(m2));
  }
}

TEST(SplitFloat32, TrainsExactlyAsTheWholeFloat32) {
  at_every_cpu_level([] {
    for (const DType moments : {kFloat32, kBFloat16}) {
      for (const DType grad : {kFloat32, kBFloat16, kFloat16}) {
        SCOPED_TRACE(std::string(name_of(moments)) + " " + std::string(name_of(grad)));
        expect_split_trains_as_whole(moments, grad);
      }
    }
  });
}

// The loops that update 16-bit values alone must treat what is not finite as the others do.
TEST(SplitFloat32, TrainsExactlyAsTheWholeFloat32WithWhatIsNotFinite) {
  at_every_cpu_level([] {
    constexpr double kInf = std::numeric_limits<double>::infinity();
    const Doubles special = {NAN, kInf, -kInf, 3e38, -3e38, 0.0, -0.0, 1e-40, 1.0};
    const int64_t n = 1031;
    Doubles values(n);
    Doubles gradients(n);
    for (int64_t i = 0; i < n; ++i) {
      values[i] = special[i % 9];
      gradients[i] = special[i / 9 % 9];
    }
    for (const DType grad : {kFloat32, kBFloat16}) {
      Array whole(kFloat32, values);
      Array m1(kBFloat16, Doubles(n, 0.0));
      Array v1 = m1;
      Array m2 = m1;
      Array v2 = m1;
      std::vector<BFloat16> high(n);
      std::vector<uint16_t> low(n);
      kernels::split_float32(n, whole.as<float>(), high.data(), low.data(), kBFloat16, v2.data());
      kernels::join_float32(n, high.data(), low.data(), kBFloat16, v2.data(), whole.as<float>());
      const Array g(grad, gradients);
      kernels::AdamTensor tensor = adam_tensor(whole, g, m1, v1, 1);
      kernels::AdamTensor split = adam_tensor(whole, g, m2, v2, 1);
      split.param_dtype = kBFloat16;
      split.p = high.data();
      split.low_bits = low.data();
      for (const double limit : {kernels::kNoGradLimit, 0.5}) {
        const kernels::AdamSettings settings = {.grad_scale = 0.7, .grad_limit = limit, .seed = 3};
        kernels::adamw(std::vector{tensor}, settings);
        kernels::adamw(std::vector{split}, settings);
        Array joined(kFloat32, n);
        kernels::join_float32(n, high.data(), low.data(), kBFloat16, v2.data(), joined.as<float>());
        for (int64_t i = 0; i < n; ++i) {
          ASSERT_EQ(std::isnan(joined[i]), std::isnan(whole[i])) << i;
          ASSERT_TRUE(std::isnan(whole[i]) || joined[i] == whole[i]) << i;
          ASSERT_EQ(std::isnan(m2[i]), std::isnan(m1[i])) << i;
          ASSERT_TRUE(std::isnan(m1[i]) || m2[i] == m1[i]) << i;
          ASSERT_TRUE(std::isnan(v1[i]) || std::abs(v2[i]) == std::abs(v1[i])) << i;
        }
      }
    }
  });
}

TEST(StochasticRounding, IsRightOnAverageAndKeepsWhatFits) {
  at_every_cpu_level([] {
    const int64_t n = 1 << 16;
    const BFloat16 below(1.0F);
    const float step = 0.0078125F;  // to the next bfloat16 above 1
    for (const double part : {0.0, 0.25, 0.75}) {
      std::vector<BFloat16> sum(n, below);
      const Array x(kFloat32, Doubles(n, part * step));
      kernels::add_stochastic(kFloat32, n, x.data(), 5, kNumbers, sum.data());
      int64_t up = 0;
      for (const BFloat16 s : sum) {
        const auto value = static_cast<float>(s);
        ASSERT_TRUE(value == 1.0F || value == 1.0F + step) << value;
        up += value > 1 ? 1 : 0;
      }
      // Six standard deviations of a binomial.
      EXPECT_NEAR(static_cast<double>(up) / n, part, 6 * std::sqrt(part * (1 - part) / n));
    }
  });
}

TEST(StochasticRounding, NeverMakesInfinitiesAndKeepsThem) {
  at_every_cpu_level([] {
    const float largest = std::numeric_limits<float>::max();
    const float inf = std::numeric_limits<float>::infinity();
    const std::vector<float> x = {largest, -largest, inf, -inf, std::nanf("")};
    std::vector<BFloat16> sum(x.size(), BFloat16(0.0F));
    for (uint64_t stream = 0; stream < 8; ++stream) {
      std::fill(sum.begin(), sum.end(), BFloat16(0.0F));
      kernels::add_stochastic(kFloat32, 5, x.data(), 1,
                              std::vector<kernels::RandomRows>{{.stream = stream}}, sum.data());
      EXPECT_TRUE(std::isfinite(static_cast<float>(sum[0])));
      EXPECT_TRUE(std::isfinite(static_cast<float>(sum[1])));
      EXPECT_EQ(static_cast<float>(sum[2]), inf);
      EXPECT_EQ(static_cast<float>(sum[3]), -inf);
      EXPECT_TRUE(std::isnan(static_cast<float>(sum[4])));
    }
  });
}

// What the words of Philox say, element by element.
TEST(StochasticRounding, UsesTheWordOfTheElement) {
  at_every_cpu_level([] {
    const int64_t n = 1029;
    const Array x = random_array(kFloat32, n, 4);
    std::vector<BFloat16> sum(n, BFloat16(0.0F));
    kernels::add_stochastic(kFloat32, n, x.data(), 11,
                            std::vector<kernels::RandomRows>{{.stream = 12}}, sum.data());
    for (int64_t i = 0; i < n; ++i) {
      const auto words = kernels::philox(11, static_cast<uint64_t>(i) / 4, 12);
      const auto bits = std::bit_cast<uint32_t>(static_cast<float>(x[i]));
      const uint32_t expected = (bits + (words[static_cast<size_t>(i % 4)] & 0xffffU)) >> 16U;
      ASSERT_EQ(sum[static_cast<size_t>(i)].bits, expected) << i;
    }
  });
}

TEST(AdamW, MomentsInBFloat16FollowTheExactOnes) {
  at_every_cpu_level([] {
    const int64_t n = 4096;
    const int64_t steps = 400;
    Array p(kFloat32, Doubles(n, 0.0));
    Array m(kBFloat16, Doubles(n, 0.0));
    Array v(kBFloat16, Doubles(n, 0.0));
    double me = 0;
    double ve = 0;
    for (int64_t step = 1; step <= steps; ++step) {
      const double gradient = step % 2 == 0 ? 1.5 : 0.5;
      const Array g(kFloat32, Doubles(n, gradient));
      kernels::AdamTensor tensor = adam_tensor(p, g, m, v, step);
      const std::vector<kernels::RandomRows> rounding = {{.stream = static_cast<uint64_t>(step)}};
      tensor.rounding = rounding;
      kernels::adamw(std::vector{tensor}, {.seed = 9});
      me = 0.9 * me + 0.1 * gradient;
      ve = 0.999 * ve + 0.001 * gradient * gradient;
    }
    double mean_m = 0;
    double mean_v = 0;
    for (int64_t i = 0; i < n; ++i) {
      mean_m += m[i] / n;
      mean_v += v[i] / n;
    }
    EXPECT_NEAR(mean_m, me, 2e-3 * me);
    // To nearest, v would stop growing once 0.001 v is below half a unit, far from here.
    EXPECT_NEAR(mean_v, ve, 2e-3 * ve);
  });
}

// Ranks that share an update must make of a piece what the whole would make of it.
TEST(Optimizer, PiecesFromMultiplesOf64HaveTheBitsOfTheWhole) {
  at_every_cpu_level([] {
    const int64_t n = 2011;
    for (const DType moments : {kFloat32, kBFloat16}) {
      const auto updated = [&](const std::vector<int64_t>& ends) {
        Array p = random_array(kFloat32, n, 1);
        Array m(moments, random_array(kFloat32, n, 2).values());
        Array v(moments, Doubles(n, 0.25));
        Array q = random_array(kFloat32, n, 1);
        const Array g = random_array(kFloat32, n, 3);
        int64_t begin = 0;
        for (const int64_t end : ends) {
          const auto at = [begin](const Array& a) {
            return static_cast<std::byte*>(const_cast<void*>(static_cast<const void*>(a.data()))) +
                   begin * size_of(a.dtype());
          };
          kernels::AdamTensor piece = adam_tensor(p, g, m, v, 3);
          piece.n = end - begin;
          piece.p = at(p);
          piece.g = at(g);
          piece.exp_avg = at(m);
          piece.exp_avg_sq = at(v);
          const std::vector<kernels::RandomRows> rounding = {{.stream = 5, .first = begin}};
          piece.rounding = rounding;
          kernels::adamw(std::vector{piece}, {.seed = 1});
          kernels::SgdTensor step = sgd_tensor(q, g, m, false);
          step.momentum_buffer = nullptr;
          step.n = end - begin;
          step.p = at(q);
          step.g = at(g);
          kernels::sgd(std::vector{step}, {});
          begin = end;
        }
        return std::vector<Doubles>{p.values(), m.values(), v.values(), q.values()};
      };
      EXPECT_EQ(updated({64, 64, 704, 1984, n}), updated({n}));
    }
  });
}

// A list as layouts make it: fused parts, columns that begin anywhere, pieces that begin within a
// row, and a gap's numbers behind them.
std::vector<kernels::RandomRows> all_kinds_of_rows() {
  return {{.begin = 0, .stream = 3, .first = 7},
          {.begin = 5, .stream = 4, .first = 1001, .within = 3, .width = 10, .stride = 33},
          {.begin = 700, .stream = 5, .first = 2, .within = 0, .width = 701, .stride = 1402},
          {.begin = 2500, .stream = 4, .first = 0, .within = 1, .width = 2, .stride = 5},
          {.begin = 2600, .stream = 6, .first = 2600}};
}

// What the list says of one element, and so its word.
uint32_t word_of(const std::vector<kernels::RandomRows>& rows, uint64_t seed, int64_t element) {
  size_t i = rows.size() - 1;
  while (rows[i].begin > element) {
    --i;
  }
  const int64_t position = element - rows[i].begin + rows[i].within;
  const int64_t number =
      rows[i].first + position / rows[i].width * rows[i].stride + position % rows[i].width;
  const auto block = static_cast<uint64_t>(number) / 4;
  return kernels::philox(seed, block, rows[i].stream)[static_cast<size_t>(number % 4)];
}

uint16_t rounded_with(float value, uint32_t random) {
  return static_cast<uint16_t>((std::bit_cast<uint32_t>(value) + (random & 0xffffU)) >> 16U);
}

TEST(StochasticRounding, ElementsTakeTheNumbersOfTheirRows) {
  at_every_cpu_level([] {
    const int64_t n = 3001;
    const std::vector<kernels::RandomRows> rows = all_kinds_of_rows();
    const Array x = random_array(kFloat32, n, 4);
    std::vector<BFloat16> sum(n, BFloat16(0.0F));
    kernels::add_stochastic(kFloat32, n, x.data(), 11, rows, sum.data());
    for (int64_t i = 0; i < n; ++i) {
      ASSERT_EQ(sum[static_cast<size_t>(i)].bits,
                rounded_with(static_cast<float>(x[i]), word_of(rows, 11, i)))
          << i;
    }
  });
}

// The rounded moments are the exact ones with each element's own word, its lower half for exp_avg
// and its upper half for exp_avg_sq.
TEST(Optimizer, MomentsTakeTheNumbersOfTheirRows) {
  at_every_cpu_level([] {
    const int64_t n = 3001;
    const std::vector<kernels::RandomRows> rows = all_kinds_of_rows();
    const Array g = random_array(kFloat32, n, 3);
    const Array start_m(kBFloat16, random_array(kFloat32, n, 2).values());
    const Array start_v(kBFloat16, Doubles(n, 0.25));
    const auto adamw = [&](DType moments) {
      Array p = random_array(kFloat32, n, 1);
      Array m(moments, start_m.values());
      Array v(moments, start_v.values());
      kernels::AdamTensor tensor = adam_tensor(p, g, m, v, 3);
      tensor.rounding = rows;
      kernels::adamw(std::vector{tensor}, {.seed = 9});
      return std::pair(m, v);
    };
    const auto lion = [&](DType moments) {
      Array p = random_array(kFloat32, n, 1);
      Array m(moments, start_m.values());
      kernels::lion(std::vector{kernels::LionTensor{.n = n,
                                                    .p = p.data(),
                                                    .g = g.data(),
                                                    .exp_avg_dtype = moments,
                                                    .exp_avg = m.data(),
                                                    .rounding = rows,
                                                    .lr = kLr}},
                    {.seed = 9});
      return m;
    };
    const auto [exact_m, exact_v] = adamw(kFloat32);
    const auto [m, v] = adamw(kBFloat16);
    const Array exact_lion = lion(kFloat32);
    const Array narrow_lion = lion(kBFloat16);
    const auto bits = [](const Array& a, int64_t i) {
      return BFloat16(static_cast<float>(a[i])).bits;
    };
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t word = word_of(rows, 9, i);
      ASSERT_EQ(bits(m, i), rounded_with(static_cast<float>(exact_m[i]), word)) << i;
      ASSERT_EQ(bits(v, i), rounded_with(static_cast<float>(exact_v[i]), word >> 16U)) << i;
      ASSERT_EQ(bits(narrow_lion, i), rounded_with(static_cast<float>(exact_lion[i]), word)) << i;
    }
  });
}

TEST(Optimizer, SameForAnyTeam) {
  at_every_cpu_level([] {
    expect_same_for_any_team([] {
      const int64_t n = 100003;
      Array p = random_array(kFloat32, n, 1);
      Array m = random_array(kFloat32, n, 2);
      Array v(kFloat32, Doubles(n, 0.25));
      const Array g = random_array(kFloat32, n, 3);
      kernels::adamw(std::vector{adam_tensor(p, g, m, v, 3)}, {});
      kernels::sgd(std::vector{sgd_tensor(p, g, m, false)}, {.momentum = 0.9, .nesterov = true});
      Array q = random_array(kFloat32, n, 1);
      Array narrow_m(kBFloat16, m.values());
      Array narrow_v(kBFloat16, v.values());
      kernels::adamw(std::vector{adam_tensor(q, g, narrow_m, narrow_v, 3)}, {.seed = 1});
      Array sum(kBFloat16, p.values());
      kernels::add_stochastic(kFloat32, n, g.data(), 1, kNumbers, sum.as<BFloat16>());
      return std::vector<Array>{p, m, v, q, narrow_m, narrow_v, sum};
    });
  });
}

}  // namespace
}  // namespace tapestry::testing
