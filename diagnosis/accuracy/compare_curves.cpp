#include "diagnosis/accuracy/compare_curves.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>

#include "autograd/tensor/error.h"
#include "text/util/numbers.h"

namespace tapestry::accuracy {
namespace {

using report::ChartCurve;
using report::LineChart;

// What has been judged, with the curves.
struct Judged {
  CurveSet curves;
  CurveBounds bounds;
  CurveJudgement judgement;
};

const std::vector<double>& values_of(const CurveRun& run, bool norms) {
  return norms ? run.grad_norm : run.loss;
}

// Places of the steps that all runs have, in each of them.
std::vector<std::vector<size_t>> common_places(const std::vector<const CurveRun*>& runs) {
  std::vector<std::vector<size_t>> places(runs.size());
  std::vector<size_t> at(runs.size(), 0);
  for (size_t first = 0; first < runs.front()->steps.size(); ++first) {
    const int64_t step = runs.front()->steps[first];
    at[0] = first;
    bool all = true;
    for (size_t run = 1; run < runs.size(); ++run) {
      const std::vector<int64_t>& steps = runs[run]->steps;
      at[run] =
          static_cast<size_t>(std::lower_bound(steps.begin(), steps.end(), step) - steps.begin());
      all = all && at[run] < steps.size() && steps[at[run]] == step;
    }
    for (size_t run = 0; all && run < runs.size(); ++run) {
      places[run].push_back(at[run]);
    }
  }
  return places;
}

CurveSet common_curves(const std::vector<const CurveRun*>& runs,
                       const std::vector<std::vector<size_t>>& places,
                       bool norms) {
  CurveSet curves{.name = norms ? "grad_norm" : "loss", .relative = norms};
  curves.references.resize(runs.size() - 1);
  for (size_t i = 0; i < places.front().size(); ++i) {
    const auto value = [&](size_t run) { return values_of(*runs[run], norms)[places[run][i]]; };
    bool finite = true;
    for (size_t run = 1; run < runs.size(); ++run) {
      finite = finite && std::isfinite(value(run));
    }
    // Norms of steps that dynamic loss scaling drops are infinite, at other steps in each run.
    if (!finite || (norms && !std::isfinite(value(0)))) {
      continue;
    }
    curves.steps.push_back(runs[0]->steps[places[0][i]]);
    curves.ours.push_back(value(0));
    for (size_t run = 1; run < runs.size(); ++run) {
      curves.references[run - 1].push_back(value(run));
    }
  }
  return curves;
}

std::string range_text(const CurveRun& run) {
  return concat(run.name, " has ", run.steps.size(), " steps from ", run.steps.front(), " to ",
                run.steps.back());
}

Finding finding_of(const Judged& judged) {
  const CurveJudgement& j = judged.judgement;
  const auto known = [](double value) {
    return std::isnan(value) ? Finding(nullptr) : Finding(value);
  };
  return {{"quantity", judged.curves.name},
          {"verdict", name_of(j.verdict)},
          {"status", is_accepted(j.verdict) ? "agree" : "differ"},
          {"step", j.step},
          {"steps", judged.curves.steps.size()},
          {"mean_relative_error", j.mean_relative_error},
          {"mean_difference", j.bias.mean},
          {"standard_error", known(j.bias.standard_error)},
          {"standard_errors", known(j.bias.significance())},
          {"sign_balance", j.bias.sign_balance},
          {"largest_difference", j.largest},
          {"largest_at_step", j.largest_step},
          {"share_below_bound", j.share_below_bound},
          {"largest_window_mean", j.largest_window},
          {"last_relative", j.last_relative},
          {"end_relative", j.end_relative},
          {"share_in_band", j.share_in_band ? Finding(*j.share_in_band) : Finding(nullptr)}};
}

FirstDifference first_of(const Judged& judged) {
  const CurveJudgement& j = judged.judgement;
  const auto at = static_cast<size_t>(
      std::lower_bound(judged.curves.steps.begin(), judged.curves.steps.end(), j.step) -
      judged.curves.steps.begin());
  FirstDifference first{.step = j.step, .tensor = judged.curves.name};
  if (at >= j.difference.size()) {  // ours is not finite there
    first.distance = std::numeric_limits<double>::infinity();
    first.bound = judged.bounds.bound;
  } else if (j.verdict == CurveVerdict::kJump) {
    first.distance = std::abs(j.difference[at]);
    first.bound = judged.bounds.jump;
  } else {
    const bool one_sided = j.verdict == CurveVerdict::kOneSided;
    first.distance = one_sided ? std::abs(j.bias.mean) : j.largest_window;
    first.bound = one_sided ? judged.bounds.bias : judged.bounds.bound;
  }
  return first;
}

// ---- Charts and table.

plot::Points points_of(const std::vector<int64_t>& steps, const std::vector<double>& values) {
  plot::Points points;
  for (size_t i = 0; i < values.size(); ++i) {
    points.push_back({static_cast<double>(steps[i]), values[i]});
  }
  return points;
}

plot::Points window_points(const Judged& judged, const std::vector<double>& values, double sign) {
  const WindowMeans& windows = judged.judgement.windows;
  plot::Points points;
  for (size_t k = 0; k < values.size(); ++k) {
    const auto first = static_cast<double>(judged.curves.steps[windows.begin(k)]);
    const auto last = static_cast<double>(judged.curves.steps[windows.end(k) - 1]);
    points.push_back({(first + last) / 2, sign * values[k]});
  }
  return points;
}

void add_charts(VerdictReport& report, const Judged& judged) {
  const CurveSet& curves = judged.curves;
  const CurveJudgement& j = judged.judgement;
  const plot::Range x = plot::range_of(
      {static_cast<double>(curves.steps.front()), static_cast<double>(curves.steps.back())}, 0);
  LineChart values{.title = curves.name, .unit = "", .lines = {}, .x = x, .wide = true};
  values.lines.push_back({.run = 0,
                          .owner = report.chart_runs[0],
                          .name = curves.name,
                          .points = points_of(curves.steps, curves.ours)});
  for (size_t i = 0; i < curves.references.size(); ++i) {
    values.lines.push_back({.run = i + 1,
                            .owner = report.chart_runs[i + 1],
                            .name = curves.name,
                            .points = points_of(curves.steps, curves.references[i])});
  }
  LineChart difference{.title = curves.name + ": difference",
                       .unit = curves.relative ? "of the reference" : "",
                       .lines = {},
                       .x = x,
                       .wide = true};
  const std::string owner = report.chart_runs[0];
  difference.lines = {{.run = 0,
                       .owner = owner,
                       .name = "difference",
                       .kind = report::LineKind::kFaint,
                       .points = points_of(curves.steps, j.difference)},
                      {.run = 0,
                       .owner = owner,
                       .name = "mean of a window",
                       .points = window_points(judged, j.windows.mean, 1)}};
  for (const double sign : {1.0, -1.0}) {
    if (!j.band.empty()) {
      difference.lines.push_back({.run = 1,
                                  .owner = "references",
                                  .name = "band",
                                  .kind = report::LineKind::kDots,
                                  .points = window_points(judged, j.band, sign)});
    }
  }
  if (!is_accepted(j.verdict)) {
    difference.marks = {static_cast<double>(j.step)};
  }
  report.charts.push_back(std::move(values));
  report.charts.push_back(std::move(difference));
}

std::string cell(double value) {
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "%.9g", value);
  return text.data();
}

std::string difference_table(const std::vector<Judged>& all) {
  std::string table = "step";
  for (const Judged& judged : all) {
    const std::string& name = judged.curves.name;
    table += concat(",", name, "_ours,", name, "_reference,", name, "_difference,", name,
                    "_window_mean,", name, "_band");
  }
  table += "\n";
  for (const int64_t step : all.front().curves.steps) {
    table += std::to_string(step);
    for (const Judged& judged : all) {
      const std::vector<int64_t>& steps = judged.curves.steps;
      const auto at =
          static_cast<size_t>(std::lower_bound(steps.begin(), steps.end(), step) - steps.begin());
      if (at >= steps.size() || steps[at] != step) {
        table += ",,,,,";
        continue;
      }
      double reference = 0;
      for (const std::vector<double>& values : judged.curves.references) {
        reference += values[at] / static_cast<double>(judged.curves.references.size());
      }
      table += "," + cell(judged.curves.ours[at]) + "," + cell(reference);
      const CurveJudgement& j = judged.judgement;
      if (at >= j.difference.size()) {
        table += ",,,";
        continue;
      }
      const size_t k = std::min(at / j.windows.window, j.windows.mean.size() - 1);
      table += concat(",", cell(j.difference[at]), ",", cell(j.windows.mean[k]), ",",
                      j.band.empty() ? std::string() : cell(j.band[k]));
    }
    table += "\n";
  }
  return table;
}

// The loss, unless it is accepted and the norm is not.
const Judged& deciding_of(const std::vector<Judged>& all) {
  const Judged* deciding = &all.front();
  for (const Judged& judged : all) {
    if (is_accepted(deciding->judgement.verdict) && !is_accepted(judged.judgement.verdict)) {
      deciding = &judged;
    }
  }
  return *deciding;
}

}  // namespace

CurveComparison compare_curves(const CurveRun& ours,
                               const std::vector<CurveRun>& references,
                               const CurveOptions& options) {
  std::vector<const CurveRun*> runs = {&ours};
  VerdictReport report{.command = "curves", .title = ours.name, .chart_runs = {ours.name}};
  for (const CurveRun& reference : references) {
    runs.push_back(&reference);
    report.chart_runs.push_back(reference.name);
    report.title += (&reference == &references.front() ? " against " : ", ") + reference.name;
  }
  check<ValueError>(runs.size() > 1, "curves: a run is compared with nothing; name a reference");
  const std::vector<std::vector<size_t>> places = common_places(runs);
  std::string ranges;
  for (const CurveRun* run : runs) {
    ranges += (ranges.empty() ? "" : ", ") + range_text(*run);
    for (const std::string& note : run->notes) {
      report.lines.push_back(concat("note: ", run->name, ": ", note));
    }
  }
  check<ValueError>(!places.front().empty(), "the runs have no step in common: ", ranges,
                    "; both have to count them alike");

  std::vector<Judged> all;
  for (const bool norms : {false, true}) {
    if (norms && std::any_of(runs.begin(), runs.end(),
                             [](const CurveRun* run) { return run->grad_norm.empty(); })) {
      report.lines.emplace_back("note: gradient norms are not compared, as not all runs have them");
      continue;
    }
    CurveSet curves = common_curves(runs, places, norms);
    check<ValueError>(norms || !curves.steps.empty(),
                      "the references' loss is finite in none of the ", places.front().size(),
                      " common steps; nothing can be said against them");
    if (curves.steps.size() < places.front().size()) {
      report.lines.push_back(
          concat("note: ", curves.name, ": ", places.front().size() - curves.steps.size(), " of ",
                 places.front().size(), " common steps have no finite reference and are left out"));
    }
    if (!curves.steps.empty()) {
      const CurveBounds& bounds = norms ? options.grad_norm : options.loss;
      CurveJudgement judgement = judge_curve(curves, bounds);
      all.push_back({std::move(curves), bounds, std::move(judgement)});
    }
  }
  for (const Judged& judged : all) {
    report.findings.push_back(finding_of(judged));
    report.lines.push_back(concat(judged.curves.name, ": ", name_of(judged.judgement.verdict), ": ",
                                  judged.judgement.reason));
    add_charts(report, judged);
    if (judged.curves.steps.size() < kFewestBlocks) {
      report.lines.push_back(concat("note: ", judged.curves.name, ": ", judged.curves.steps.size(),
                                    " steps are too few to tell whether it is one-sided"));
    }
  }
  const Judged& deciding = deciding_of(all);
  report.verdict = name_of(deciding.judgement.verdict);
  report.outcome = is_accepted(deciding.judgement.verdict) ? Outcome::kAgrees : Outcome::kDiffers;
  if (report.outcome == Outcome::kDiffers) {
    report.first = first_of(deciding);
  }
  return {.report = std::move(report), .differences = difference_table(all)};
}

}  // namespace tapestry::accuracy
