#include "autograd/kernels/optimizer.h"

#include "fused_testing.h"

namespace tapestry::testing {
namespace {

constexpr double kLr = 0.01;
constexpr double kScale = 0.5;

double tolerance_of(DType dtype) { return dtype == kFloat64 ? 1e-13 : 1e-6; }

/// Parameter and gradient types that go together, at every level.
template <class Body>
void for_each_pair(const Body& body) {
  for_each_level([&] {
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
          kernels::adamw(param, grad, n, p.data(), g.data(), m.data(), v.data(), kLr, 0.9, 0.95,
                         1e-8, 0.1, decoupled, step, kScale);
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
  for_each_level([] {
    Array p(kFloat32, Doubles{1.0});
    Array m(kFloat32, Doubles{0.0});
    Array v(kFloat32, Doubles{0.0});
    const Array g(kFloat32, Doubles{1e-6});
    kernels::adamw(kFloat32, kFloat32, 1, p.data(), g.data(), m.data(), v.data(), 1.0, 0.9, 0.999,
                   1e-6, 0, true, 1, 1);
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
            kernels::sgd(param, grad, n, p.data(), g.data(),
                         momentum == 0 ? nullptr : buffer.data(), kLr, momentum, dampening, 0.1,
                         nesterov, step == 1, kScale);
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

TEST(Optimizer, SameForAnyTeam) {
  for_each_level([] {
    expect_same_for_any_team([] {
      const int64_t n = 100003;
      Array p = random_array(kFloat32, n, 1);
      Array m = random_array(kFloat32, n, 2);
      Array v(kFloat32, Doubles(n, 0.25));
      const Array g = random_array(kFloat32, n, 3);
      kernels::adamw(kFloat32, kFloat32, n, p.data(), g.data(), m.data(), v.data(), kLr, 0.9, 0.95,
                     1e-8, 0.1, true, 3, 1);
      kernels::sgd(kFloat32, kFloat32, n, p.data(), g.data(), m.data(), kLr, 0.9, 0, 0.1, true,
                   false, 1);
      return std::vector<Array>{p, m, v};
    });
  });
}

}  // namespace
}  // namespace tapestry::testing
