// Loss curves that nobody trained: a course that all runs of a case share, as they see the same
// data, and what a run has of its own, whose noise is correlated from step to step.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "diagnosis/accuracy/curve_file.h"

namespace tapestry::accuracy {

/// Normal numbers whose bits do not depend on the standard library.
class Normal {
 public:
  explicit Normal(uint64_t seed) : bits_(seed) {}
  double operator()() {
    const double radius = std::sqrt(-2 * std::log(uniform()));
    return radius * std::cos(2 * 3.141592653589793 * uniform());
  }
  double uniform() { return (static_cast<double>(bits_() >> 11U) + 0.5) * 0x1p-53; }

 private:
  std::mt19937_64 bits_;
};

/// Noise of a run: of the standard deviation `deviation`, of which the share `correlation` goes on
/// to the next step (AR(1)); with `growth`, the deviation rises from 0 over so many steps, as that
/// of runs which begin alike.
struct Noise {
  double deviation = 0;
  double correlation = 0;
  double growth = 0;
};

struct MadeUpCase {
  const char* name;
  const char* verdict;
  int64_t steps;
  double first_loss;
  double last_loss;
  Noise noise;
  /// What ours has besides noise, of the part t of the run, its step, and the shared loss.
  std::function<double(double t, int64_t step, double loss)> fault = nullptr;
  int64_t begins = 0;     ///< the step that a verdict of difference names; 0: the first
  int64_t tolerance = 0;  ///< and how far off it may be
  size_t references = 1;
  int64_t interval = 1;    ///< steps between lines of the log
  double norm_factor = 1;  ///< ours over the reference's gradient norm
};

inline std::vector<CurveRun> make_up(const MadeUpCase& made_up, uint64_t seed) {
  constexpr double kDataNoise = 0.08;  // of the loss of other data, the same for all
  constexpr double kNormNoise = 0.02;  // of a norm, a share
  std::vector<CurveRun> runs(1 + made_up.references);
  std::vector<double> state(runs.size(), 0);
  Normal shared(seed);
  std::vector<Normal> own;
  for (size_t run = 0; run < runs.size(); ++run) {
    own.emplace_back(1000 * seed + run + 1);
    runs[run].name = run == 0 ? "ours" : "reference" + std::to_string(run);
  }
  for (int64_t step = made_up.interval; step <= made_up.steps; step += made_up.interval) {
    const double t = static_cast<double>(step) / static_cast<double>(made_up.steps);
    const double loss = made_up.last_loss +
                        (made_up.first_loss - made_up.last_loss) * std::exp(-6 * t) +
                        kDataNoise * shared();
    const double norm = (0.4 + 2 * std::exp(-20 * t)) * std::exp(0.3 * shared());
    for (size_t run = 0; run < runs.size(); ++run) {
      const Noise& noise = made_up.noise;
      const double fresh = std::sqrt(1 - noise.correlation * noise.correlation);
      state[run] = noise.correlation * state[run] + fresh * own[run]();
      const double grown =
          noise.growth > 0 ? std::min(1.0, static_cast<double>(step) / noise.growth) : 1.0;
      const bool ours = run == 0;
      runs[run].steps.push_back(step);
      runs[run].loss.push_back(loss + noise.deviation * grown * state[run] +
                               (ours && made_up.fault ? made_up.fault(t, step, loss) : 0));
      runs[run].grad_norm.push_back(norm * (1 + kNormNoise * own[run]()) *
                                    (ours ? made_up.norm_factor : 1));
    }
  }
  return runs;
}

/// From step `from` on, in a straight line to `end` at the last step.
inline auto drift(double from, double end) {
  return [=](double t, int64_t /*step*/, double /*loss*/) {
    return t <= from ? 0 : end * (t - from) / (1 - from);
  };
}

/// Thirty cases, five of each verdict, none of them easy.
inline std::vector<MadeUpCase> made_up_cases() {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto bias = [](double size) {
    return [=](double /*t*/, int64_t /*step*/, double /*loss*/) { return size; };
  };
  const auto jump = [](int64_t at, double size, double later) {
    return [=](double /*t*/, int64_t step, double /*loss*/) {
      return step < at ? 0 : size + later * static_cast<double>(step - at);
    };
  };
  return {
      {"WhiteNoise", "accepted", 1000, 10.5, 3.2, {0.0075, 0}},
      {"CorrelatedNoise", "accepted", 2000, 9, 2.5, {0.005, 0.95}},
      {"WanderingNoise", "accepted", 10000, 11, 2.8, {0.005, 0.99, 2000}},
      {"RareOutliers",
       "accepted",
       3000,
       8,
       3,
       {0.004, 0.5},
       [](double, int64_t step, double) {
         return step % 397 == 0 ? (step % 2 == 0 ? 0.3 : -0.3) : 0;
       }},
      {"LoggedEveryTenth", "accepted", 5000, 10, 3, {0.006, 0.8}, nullptr, 0, 0, 1, 10},

      {"TwoReferences", "within_references", 2000, 5, 1.2, {0.05, 0.95}, nullptr, 0, 0, 2},
      {"ThreeReferences", "within_references", 1500, 6, 2, {0.08, 0.9}, nullptr, 0, 0, 3},
      {"GrowingApart", "within_references", 4000, 4, 1.1, {0.06, 0.98, 3000}, nullptr, 0, 0, 3},
      {"FourReferences", "within_references", 1000, 3, 0.9, {0.04, 0.8}, nullptr, 0, 0, 4},
      {"SmallBiasInAWideBand",
       "within_references",
       3000,
       4,
       1.5,
       {0.06, 0.95},
       bias(0.004),
       0,
       0,
       3},

      {"LoudNoise", "close", 2000, 10, 4, {0.025, 0.3}},
      {"LoudCorrelatedNoise", "close", 5000, 11, 5, {0.02, 0.9}},
      {"SmallLateDrift", "close", 2000, 10, 4, {0.004, 0.5}, drift(0.5, 0.03)},
      {"SmallLateGap", "close", 4000, 9, 6, {0.006, 0.8}, jump(2800, 0.025, 0)},
      {"LoudAndLogged", "close", 8000, 10, 5, {0.03, 0.5}, nullptr, 0, 0, 1, 10},

      {"SmallBias", "one_sided", 2000, 10, 3, {0.01, 0.5}, bias(0.005)},
      {"BiasInCorrelatedNoise", "one_sided", 5000, 11, 2.5, {0.01, 0.95}, bias(-0.012)},
      {"ShareOfTheLoss",
       "one_sided",
       1000,
       10,
       3,
       {0.008, 0.3},
       [](double, int64_t, double loss) { return 0.004 * loss; }},
      {"LargeBias", "one_sided", 800, 6, 2, {0.02, 0.8}, bias(0.06)},
      {"NormsAlone", "one_sided", 1000, 8, 3, {0.004, 0.5}, nullptr, 0, 0, 1, 1, 1.02},

      {"StraightDrift", "late_drift", 2000, 9, 2.5, {0.01, 0.5}, drift(0.5, 0.08), 1000, 250},
      {"LongDrift", "late_drift", 4000, 9, 2.5, {0.008, 0.9}, drift(0.2, 0.1), 800, 800},
      {"DriftDownwards", "late_drift", 3000, 10, 3, {0.012, 0.8}, drift(0.7, -0.3), 2100, 250},
      {"BentDrift",
       "late_drift",
       2000,
       10,
       3,
       {0.01, 0.7},
       [](double t, int64_t, double) { return t < 0.4 ? 0 : 0.6 * (t - 0.4) * (t - 0.4); },
       1000,
       300},
      {"DriftBeyondTheReferences",
       "late_drift",
       2000,
       5,
       1.5,
       {0.01, 0.9},
       drift(0.5, 0.12),
       1000,
       300,
       2},

      {"Jump", "jump", 1000, 9, 3, {0.01, 0.5}, jump(613, 0.09, 0), 613, 4},
      {"JumpInCorrelatedNoise", "jump", 3000, 9, 3, {0.01, 0.95}, jump(1207, 0.14, 0), 1207, 12},
      {"JumpAndDivergence", "jump", 2000, 10, 3, {0.01, 0.7}, jump(1500, 0.25, 0.002), 1500, 6},
      {"JumpThatHeals",
       "jump",
       2000,
       10,
       3,
       {0.006, 0.5},
       [](double, int64_t step, double) {
         return step < 900 ? 0 : 0.5 * std::exp(-static_cast<double>(step - 900) / 60);
       },
       900,
       4},
      {"NotANumber",
       "jump",
       1000,
       10,
       3,
       {0.006, 0.5},
       [nan](double, int64_t step, double) { return step < 777 ? 0 : nan; },
       777,
       0},
  };
}

}  // namespace tapestry::accuracy
