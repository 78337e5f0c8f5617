#include "diagnosis/verify/layout_findings.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <tuple>

#include "autograd/tensor/error.h"
#include "diagnosis/dump/dense.h"
#include "diagnosis/dump/tensor_distance.h"

namespace tapestry {

namespace {

std::string formatted_distance(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1e", value);
  return text;
}

// How far beyond its bound a distance is, for the choice of the worst one.
double severity(const Finding& f) {
  if (std::isnan(f.distance)) {
    return std::numeric_limits<double>::infinity();
  }
  return f.bound > 0 ? f.distance / f.bound
                     : (f.distance > 0 ? std::numeric_limits<double>::infinity() : 0);
}

bool is_absolute(Compared what) {
  return what == Compared::kChoice || what == Compared::kExpertCounts;
}

std::string place_of(const Finding& f) {
  return concat(f.step > 0 ? concat("step ", f.step, ": ") : std::string(), f.name,
                f.where.empty() ? "" : " on " + f.where);
}

// The rule of dumps for what differs; `measure` says how much of it all.
template <class F>
double relative_distance(const Tensor& found, const Tensor& expected, double scale, F measure) {
  if (found.shape() != expected.shape()) {
    return std::numeric_limits<double>::infinity();
  }
  dump::DistanceSum sum(dump::DistanceUnit::kElement);
  sum.add(dump::wide(found.detach()), dump::wide(expected.detach()));
  const double difference = measure(sum);
  return difference <= 0 ? 0 : difference / scale;
}

}  // namespace

std::string_view name_of(Compared what) {
  switch (what) {
    case Compared::kInitialWeights:
      return "initial weights";
    case Compared::kTokens:
      return "tokens";
    case Compared::kChoice:
      return "expert choices";
    case Compared::kActivation:
      return "activations";
    case Compared::kExpertCounts:
      return "expert counts";
    case Compared::kLoss:
      return "loss";
    case Compared::kGradient:
      return "gradients";
    case Compared::kGradNorm:
      return "gradient norm";
    case Compared::kSchedule:
      return "schedule";
    case Compared::kWeights:
      return "updated weights";
  }
  return "";
}

// Choices are made among the activations, and have the place of what is made of them.
bool comes_before(const Finding& a, const Finding& b) {
  const auto place = [](const Finding& f) {
    const Compared kind = f.what == Compared::kChoice ? Compared::kActivation : f.what;
    return std::tuple(f.step, kind, f.order, f.what);
  };
  return place(a) < place(b);
}

double largest_element(const Tensor& x) { return dump::tensor_size(x.detach()).first; }

double euclidean_norm(const Tensor& x) { return dump::tensor_size(x.detach()).second; }

double element_distance(const Tensor& found, const Tensor& expected, double scale) {
  return relative_distance(found, expected, scale,
                           [](const auto& sum) { return sum.largest_difference(); });
}

double norm_distance(const Tensor& found, const Tensor& expected, double scale) {
  return relative_distance(found, expected, scale,
                           [](const auto& sum) { return sum.euclidean_difference(); });
}

void LayoutFindings::add(const Finding& finding) {
  const std::scoped_lock lock(mutex_);
  Worst& worst = worst_.at(static_cast<size_t>(finding.what));
  ++worst.compared;
  if (!worst.finding || severity(finding) > severity(*worst.finding)) {
    worst.finding = finding;
  }
  if (finding.agrees()) {
    return;
  }
  ++worst.above;
  const double excess = finding.distance / finding.bound;
  largest_excess_ = finding.bound_is_measured && excess > 0  // not of NaN
                        ? std::max(largest_excess_, excess)
                        : std::numeric_limits<double>::infinity();
  // Of ranks that differ in one value the one that is farther off; of equal ones the first to come,
  // by name, so that a report does not depend on which thread was faster.
  const auto goes_first = [](const Finding& a, const Finding& b) {
    if (comes_before(a, b) || comes_before(b, a)) {
      return comes_before(a, b);
    }
    return std::tuple(-severity(a), a.where) < std::tuple(-severity(b), b.where);
  };
  if (!first_ || goes_first(finding, *first_)) {
    first_ = finding;
  }
}

void LayoutFindings::add_equal(Compared what, int64_t count) {
  const std::scoped_lock lock(mutex_);
  worst_.at(static_cast<size_t>(what)).compared += count;
}

bool LayoutFindings::agree() const {
  const std::scoped_lock lock(mutex_);
  return !first_;
}

bool LayoutFindings::agree_within(double factor) const {
  const std::scoped_lock lock(mutex_);
  return largest_excess_ < factor;
}

std::optional<Finding> LayoutFindings::first() const {
  const std::scoped_lock lock(mutex_);
  return first_;
}

LayoutFindings::Worst LayoutFindings::worst(Compared what) const {
  const std::scoped_lock lock(mutex_);
  return worst_.at(static_cast<size_t>(what));
}

std::string LayoutFindings::table() const {
  std::string out = "                  compared  above  worst distance  bound    at\n";
  for (size_t kind = 0; kind < kNumCompared; ++kind) {
    const Worst w = worst(static_cast<Compared>(kind));
    if (w.compared == 0) {
      continue;
    }
    const Finding farthest = w.finding.value_or(Finding());
    char line[96];
    std::snprintf(line, sizeof(line), "%-16s %9lld %6lld  %14s  %-7s  ",
                  std::string(name_of(static_cast<Compared>(kind))).c_str(),
                  static_cast<long long>(w.compared), static_cast<long long>(w.above),
                  formatted_distance(farthest.distance).c_str(),
                  formatted_distance(farthest.bound).c_str());
    out += line + (farthest.distance == 0 ? "-" : place_of(farthest)) + "\n";
  }
  return out;
}

std::string LayoutFindings::sentence(const Finding& f) {
  std::string out = concat(f.step > 0 ? concat("step ", f.step) : "before the first step", ": ");
  if (f.what == Compared::kGradient) {
    out += "the gradient of ";
  } else if (f.what == Compared::kWeights) {
    out += "the updated ";
  } else if (f.what == Compared::kInitialWeights) {
    out += "the initial ";
  }
  out += concat(f.name, " differs", f.where.empty() ? "" : " on " + f.where, ": ",
                is_absolute(f.what) ? "" : "relative ", "distance ", formatted_distance(f.distance),
                ", bound ", formatted_distance(f.bound));
  out += f.detail.empty() ? "" : " (" + f.detail + ")";
  out += "; everything that is computed before it agrees";
  return out + (f.made_by.empty() ? "" : "; made by " + f.made_by);
}

}  // namespace tapestry
