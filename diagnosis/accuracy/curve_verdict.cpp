#include "diagnosis/accuracy/curve_verdict.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "autograd/tensor/error.h"
#include "text/util/numbers.h"

namespace tapestry::accuracy {
namespace {

constexpr double kShareBelow = 0.99;
constexpr double kShareInBand = 0.9;
constexpr double kBandWidth = 2.5;  // in root mean squares of the references' mutual differences
constexpr size_t kBandReach = 10;   // windows
constexpr double kUnusualJump = 6;
constexpr double kMoreThanReferences = 1.5;
constexpr double kGrowth = 3;
constexpr size_t kQuarter = 4;

std::vector<double> mean_of_references(const CurveSet& curves) {
  std::vector<double> mean(curves.steps.size(), 0);
  for (const std::vector<double>& reference : curves.references) {
    for (size_t i = 0; i < mean.size(); ++i) {
      mean[i] += reference[i] / static_cast<double>(curves.references.size());
    }
  }
  return mean;
}

// What differences are divided by.
std::vector<double> scale_of(const CurveSet& curves,
                             const std::vector<double>& reference,
                             size_t window) {
  std::vector<double> scale(reference.size(), 1);
  if (curves.relative) {
    const WindowMeans means = window_means(reference, window);
    for (size_t k = 0; k < means.mean.size(); ++k) {
      const double level = std::abs(means.mean[k]);
      std::fill(scale.begin() + static_cast<ptrdiff_t>(means.begin(k)),
                scale.begin() + static_cast<ptrdiff_t>(means.end(k)), level > 0 ? level : 1);
    }
  }
  return scale;
}

std::vector<double> scaled_difference(const std::vector<double>& a,
                                      const std::vector<double>& b,
                                      const std::vector<double>& scale,
                                      size_t count) {
  std::vector<double> difference(count);
  for (size_t i = 0; i < count; ++i) {
    difference[i] = (a[i] - b[i]) / scale[i];
  }
  return difference;
}

// What the references say of how far apart equal things are.
struct Benchmark {
  std::vector<double> band;
  double bias = 0;
  double jump = 0;
};

Benchmark benchmark_of(const CurveSet& curves,
                       const std::vector<double>& scale,
                       const WindowMeans& windows) {
  Benchmark benchmark;
  std::vector<double> squares(windows.mean.size(), 0);
  double pairs = 0;
  for (size_t a = 0; a < curves.references.size(); ++a) {
    for (size_t b = a + 1; b < curves.references.size(); ++b) {
      const std::vector<double> difference =
          scaled_difference(curves.references[a], curves.references[b], scale, windows.values);
      const WindowMeans means = window_means(difference, windows.window);
      for (size_t k = 0; k < squares.size(); ++k) {
        squares[k] += means.mean[k] * means.mean[k];
      }
      benchmark.bias =
          std::max(benchmark.bias, std::abs(bias_of(means.mean, 0, means.mean.size()).mean));
      benchmark.jump =
          std::max(benchmark.jump, std::abs(largest_jump(difference, windows.window).size));
      ++pairs;
    }
  }
  for (size_t k = 0; pairs > 0 && k < squares.size(); ++k) {
    const size_t first = k - std::min(k, kBandReach);
    const size_t last = std::min(k + kBandReach + 1, squares.size());
    const double sum = std::accumulate(squares.begin() + static_cast<ptrdiff_t>(first),
                                       squares.begin() + static_cast<ptrdiff_t>(last), 0.0);
    benchmark.band.push_back(kBandWidth *
                             std::sqrt(sum / pairs / static_cast<double>(last - first)));
  }
  return benchmark;
}

double largest_of(const std::vector<double>& values, size_t first, size_t last) {
  double largest = 0;
  for (size_t i = first; i < last; ++i) {
    largest = std::max(largest, std::abs(values[i]));
  }
  return largest;
}

double share_below(const std::vector<double>& values, double bound) {
  return static_cast<double>(std::count_if(values.begin(), values.end(),
                                           [&](double value) { return std::abs(value) < bound; })) /
         static_cast<double>(values.size());
}

class Judge {
 public:
  Judge(const CurveSet& curves, const CurveBounds& bounds) : curves_(curves), bounds_(bounds) {
    measure();
    decide();
  }
  CurveJudgement take() && { return std::move(judgement_); }

 private:
  void measure();
  void measure_relative(const std::vector<double>& reference);
  void decide();
  bool decide_jump();
  bool is_one_sided(const Bias& bias) const;
  bool is_in_band() const;
  void set(CurveVerdict verdict, int64_t step, const std::string& reason);
  size_t windows() const { return judgement_.windows.mean.size(); }
  size_t quarter() const { return std::max<size_t>(windows() / kQuarter, 1); }
  double level(size_t first, size_t last) const;
  int64_t step_of_window(size_t k) const { return curves_.steps[judgement_.windows.begin(k)]; }

  const CurveSet& curves_;
  const CurveBounds& bounds_;
  CurveJudgement judgement_;
  Benchmark benchmark_;
  double mean_window_relative_ = 0;
};

void Judge::set(CurveVerdict verdict, int64_t step, const std::string& reason) {
  judgement_.verdict = verdict;
  judgement_.step = step;
  judgement_.reason = reason;
}

// |mean| of the means of windows [first, last).
double Judge::level(size_t first, size_t last) const {
  const auto& means = judgement_.windows.mean;
  return std::abs(std::accumulate(means.begin() + static_cast<ptrdiff_t>(first),
                                  means.begin() + static_cast<ptrdiff_t>(last), 0.0)) /
         static_cast<double>(last - first);
}

void Judge::measure() {
  const std::vector<double> reference = mean_of_references(curves_);
  const auto broken = std::find_if(curves_.ours.begin(), curves_.ours.end(),
                                   [](double value) { return !std::isfinite(value); });
  const auto finite = static_cast<size_t>(broken - curves_.ours.begin());
  const size_t window = fitting_window(finite, bounds_.window);
  const std::vector<double> scale = scale_of(curves_, reference, window);
  judgement_.difference = scaled_difference(curves_.ours, reference, scale, finite);
  judgement_.windows = window_means(judgement_.difference, window);
  if (finite == 0) {
    return;
  }
  benchmark_ = benchmark_of(curves_, scale, judgement_.windows);
  judgement_.band = benchmark_.band;
  judgement_.bias = bias_of(judgement_.windows.mean, 0, windows());
  const auto worst = std::max_element(judgement_.difference.begin(), judgement_.difference.end(),
                                      [](double a, double b) { return std::abs(a) < std::abs(b); });
  judgement_.largest = std::abs(*worst);
  judgement_.largest_step =
      curves_.steps[static_cast<size_t>(worst - judgement_.difference.begin())];
  judgement_.share_below_bound = share_below(judgement_.difference, bounds_.bound);
  judgement_.largest_window = largest_of(judgement_.windows.mean, 0, windows());
  measure_relative(reference);
  if (!judgement_.band.empty()) {
    double inside = 0;
    for (size_t k = 0; k < windows(); ++k) {
      inside += std::abs(judgement_.windows.mean[k]) <= judgement_.band[k] ? 1 : 0;
    }
    judgement_.share_in_band = inside / static_cast<double>(windows());
  }
}

void Judge::measure_relative(const std::vector<double>& reference) {
  double sum = 0;
  size_t counted = 0;
  for (size_t i = 0; i < judgement_.difference.size(); ++i) {
    if (reference[i] != 0) {
      sum += std::abs((curves_.ours[i] - reference[i]) / reference[i]);
      ++counted;
    }
  }
  judgement_.mean_relative_error = counted == 0 ? 0 : sum / static_cast<double>(counted);
  const WindowMeans levels = window_means(
      {reference.begin(), reference.begin() + static_cast<ptrdiff_t>(judgement_.difference.size())},
      judgement_.windows.window);
  std::vector<double> last;
  for (size_t k = 0; k < windows(); ++k) {
    const double divisor = curves_.relative || levels.mean[k] == 0 ? 1 : std::abs(levels.mean[k]);
    const double relative = std::abs(judgement_.windows.mean[k]) / divisor;
    mean_window_relative_ += relative / static_cast<double>(windows());
    if (k + quarter() >= windows()) {
      last.push_back(relative);
    }
  }
  judgement_.last_relative = root_mean_square(last, 0, last.size());
  const double level = curves_.relative || levels.mean.back() == 0 ? 1 : levels.mean.back();
  judgement_.end_relative = std::abs(drift_end(judgement_.windows.mean) / level);
}

bool Judge::is_one_sided(const Bias& bias) const {
  return std::abs(bias.mean) > bounds_.bias && bias.significance() >= bounds_.significance &&
         bias.sign_balance >= bounds_.sign_balance;
}

bool Judge::is_in_band() const {
  return judgement_.share_in_band && *judgement_.share_in_band >= kShareInBand;
}

bool Judge::decide_jump() {
  const size_t finite = judgement_.difference.size();
  if (finite < curves_.ours.size()) {
    set(CurveVerdict::kJump, curves_.steps[finite],
        concat(curves_.name, " is ", curves_.ours[finite], " at step ", curves_.steps[finite],
               ", where the reference is finite"));
    return true;
  }
  const Jump jump = largest_jump(judgement_.difference, judgement_.windows.window);
  const double size = std::abs(jump.size);
  if (size < bounds_.jump || size < kUnusualJump * jump.usual ||
      size < kMoreThanReferences * benchmark_.jump) {
    return false;
  }
  set(CurveVerdict::kJump, curves_.steps[jump.at],
      concat("the difference jumps by ", number_text(jump.size, 3), " at step ",
             curves_.steps[jump.at], "; elsewhere it does so by ", number_text(jump.usual, 2)));
  return true;
}

void Judge::decide() {
  if (decide_jump()) {
    return;
  }
  const Bias& bias = judgement_.bias;
  const bool whole = is_one_sided(bias);
  const bool half = is_one_sided(bias_of(judgement_.windows.mean, windows() / 2, windows()));
  const double early = level(0, quarter());
  const double late = level(windows() - quarter(), windows());
  const bool grows = late > kGrowth * early;
  const int64_t start = curves_.steps.front();
  const std::string side =
      concat("by ", number_text(bias.mean, 3), " in the mean, which is ",
             number_text(bias.significance(), 3), " standard errors, in ",
             number_text(100 * bias.sign_balance, 3), " % of the windows to that side");
  const bool drifts = judgement_.end_relative >= bounds_.close;
  if (!whole && !half && !drifts && judgement_.share_below_bound >= kShareBelow &&
      judgement_.largest_window < bounds_.bound) {
    set(CurveVerdict::kAccepted, start,
        concat("the difference oscillates around 0 and stays below ", number_text(bounds_.bound)));
  } else if (is_in_band() &&
             ((!whole && !half) || std::abs(bias.mean) <= kMoreThanReferences * benchmark_.bias)) {
    set(CurveVerdict::kWithinReferences, start,
        concat(number_text(100 * *judgement_.share_in_band, 3),
               " % of the windows lie in the band of the references' own differences"));
  } else if (whole && !grows) {
    set(CurveVerdict::kOneSided, start, concat("the curve differs ", side));
  } else if (judgement_.last_relative < bounds_.close && mean_window_relative_ < bounds_.close &&
             !drifts) {
    set(CurveVerdict::kClose, step_of_window(onset_of(judgement_.windows.mean)),
        concat("at the end the difference is ", number_text(100 * judgement_.last_relative, 2),
               " % of the reference, below ", number_text(100 * bounds_.close),
               " %: compare what the models can do"));
  } else {
    const int64_t step = step_of_window(onset_of(judgement_.windows.mean));
    set(CurveVerdict::kLateDrift, step,
        concat("the difference grows from step ", step, " on, to ",
               number_text(100 * std::max(judgement_.last_relative, judgement_.end_relative), 2),
               " % of the reference at the end"));
  }
}

}  // namespace

std::string name_of(CurveVerdict verdict) {
  switch (verdict) {
    case CurveVerdict::kAccepted:
      return "accepted";
    case CurveVerdict::kWithinReferences:
      return "within_references";
    case CurveVerdict::kClose:
      return "close";
    case CurveVerdict::kOneSided:
      return "one_sided";
    case CurveVerdict::kLateDrift:
      return "late_drift";
    case CurveVerdict::kJump:
      break;
  }
  return "jump";
}

bool is_accepted(CurveVerdict verdict) { return verdict <= CurveVerdict::kClose; }

CurveJudgement judge_curve(const CurveSet& curves, const CurveBounds& bounds) {
  check<ValueError>(!curves.steps.empty() && !curves.references.empty(),
                    "judge_curve: ", curves.name, " has ", curves.steps.size(), " steps and ",
                    curves.references.size(), " references; expected at least one of each");
  check<ValueError>(curves.ours.size() == curves.steps.size(), "judge_curve: ", curves.name,
                    " has ", curves.ours.size(), " values at ", curves.steps.size(), " steps");
  for (const std::vector<double>& reference : curves.references) {
    check<ValueError>(reference.size() == curves.steps.size(), "judge_curve: a reference's ",
                      curves.name, " has ", reference.size(), " values at ", curves.steps.size(),
                      " steps");
  }
  return Judge(curves, bounds).take();
}

}  // namespace tapestry::accuracy
