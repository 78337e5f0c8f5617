#include "diagnosis/report/page_charts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "autograd/tensor/error.h"

namespace tapestry::report {
namespace {

using plot::Point;
using plot::Points;

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

// Columns that have a chart of their own, or none.
const std::set<std::string> kKnown = {"epoch",
                                      "loss",
                                      "grad_norm",
                                      "lr",
                                      "loss_tokens",
                                      "tokens",
                                      "step_time_ms",
                                      "peak_bytes",
                                      "loss_scale",
                                      "bubble/measured",
                                      "eval_loss",
                                      "test_loss",
                                      "eval_perplexity",
                                      "test_perplexity",
                                      "bubble/theoretical"};

bool varies(const std::vector<double>& values) {
  const auto first =
      std::find_if(values.begin(), values.end(), [](double value) { return std::isfinite(value); });
  return std::any_of(first, values.end(),
                     [&](double value) { return std::isfinite(value) && value != *first; });
}

class ChartMaker {
 public:
  ChartMaker(const std::vector<RunRecord>& runs, const ChartOptions& options);
  PageCharts make();

 private:
  using Values = std::function<std::vector<double>(const RunRecord& run)>;

  void place_x();
  PageChart chart(const std::string& title, const std::string& unit) const;
  PageLine line(size_t run, const std::string& name, const std::vector<double>& values) const;
  /// A smoothed line and the values behind it, or the values alone.
  void add_noisy(PageChart& to, const std::string& name, const Values& values) const;
  void add_plain(PageChart& to, const std::string& name, const Values& values) const;
  void add_marks(PageChart& to) const;

  PageChart loss() const;
  PageChart learning_rate() const;
  PageChart norm() const;
  PageChart throughput() const;
  PageChart memory() const;
  PageChart loss_scale() const;
  PageChart bubble() const;
  void add_others(std::vector<PageChart>& charts) const;

  static std::vector<double> column(const RunRecord& run, const std::string& name) {
    const std::vector<double>* values = run.column(name);
    return values == nullptr ? std::vector<double>(run.steps.size(), kUnknown) : *values;
  }

  const std::vector<RunRecord>& runs_;
  ChartOptions options_;
  std::vector<std::vector<double>> x_;  // of each run's steps
  plot::Range range_;
  std::string x_title_ = "steps";
};

ChartMaker::ChartMaker(const std::vector<RunRecord>& runs, const ChartOptions& options)
    : runs_(runs), options_(options) {
  place_x();
}

void ChartMaker::place_x() {
  struct Unit {
    const char* name;
    double seconds;
  };
  constexpr std::array<Unit, 4> kUnits = {Unit{"days", 86400}, Unit{"hours", 3600},
                                          Unit{"minutes", 60}, Unit{"seconds", 1}};
  constexpr double kMillisecond = 1e-3;
  double last = 0;
  double first = std::numeric_limits<double>::infinity();
  for (const RunRecord& run : runs_) {
    std::vector<double> x(run.steps.begin(), run.steps.end());
    if (options_.x != plot::XAxis::kSteps) {
      const bool tokens = options_.x == plot::XAxis::kTokens;
      const std::vector<double> amounts = column(run, tokens ? "tokens" : "step_time_ms");
      double sum = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        sum += std::isfinite(amounts[i]) ? amounts[i] * (tokens ? 1 : kMillisecond) : 0;
        x[i] = sum;
      }
    }
    first = std::min(first, x.front());
    last = std::max(last, x.back());
    x_.push_back(std::move(x));
  }
  if (options_.x == plot::XAxis::kTokens) {
    x_title_ = "tokens";
  } else if (options_.x == plot::XAxis::kTime) {
    const auto* unit = std::find_if(kUnits.begin(), kUnits.end() - 1, [&](const Unit& candidate) {
      return last >= 2 * candidate.seconds;
    });
    x_title_ = concat(unit->name, " of steps");
    for (std::vector<double>& x : x_) {
      for (double& value : x) {
        value /= unit->seconds;
      }
    }
    first /= unit->seconds;
    last /= unit->seconds;
  }
  // A run's start is 0, unless the file begins far behind it.
  range_ = {first > last / 2 && first > 1 ? first : 0, last};
  if (range_.length() <= 0) {
    range_ = plot::range_of({last}, 0);
  }
}

PageChart ChartMaker::chart(const std::string& title, const std::string& unit) const {
  return {.title = title,
          .unit = unit,
          .lines = {},
          .x = range_,
          .whole_x = options_.x != plot::XAxis::kTime};
}

PageLine ChartMaker::line(size_t run,
                          const std::string& name,
                          const std::vector<double>& values) const {
  PageLine made{
      .run = run, .owner = runs_.size() == 1 ? std::string() : runs_[run].name, .name = name};
  for (size_t i = 0; i < values.size(); ++i) {
    made.points.push_back({x_[run][i], values[i]});
  }
  return made;
}

void ChartMaker::add_plain(PageChart& to, const std::string& name, const Values& values) const {
  for (size_t run = 0; run < runs_.size(); ++run) {
    to.lines.push_back(line(run, name, values(runs_[run])));
  }
}

void ChartMaker::add_noisy(PageChart& to, const std::string& name, const Values& values) const {
  constexpr double kFew = 100;
  constexpr double kShare = 50;
  constexpr double kMost = 0.995;
  for (size_t run = 0; run < runs_.size(); ++run) {
    PageLine whole = line(run, name, values(runs_[run]));
    const auto steps = static_cast<double>(whole.points.size());
    const double smooth =
        options_.smooth.value_or(steps < kFew ? 0 : std::min(1 - kShare / steps, kMost));
    if (smooth > 0) {
      PageLine faint = whole;
      faint.kind = LineKind::kFaint;
      faint.name = "each step";
      whole.points = plot::smoothed(whole.points, smooth);
      whole.name += ", smoothed";
      to.lines.push_back(std::move(faint));
    }
    to.lines.push_back(std::move(whole));
  }
}

void ChartMaker::add_marks(PageChart& to) const {
  for (size_t run = 0; run < runs_.size(); ++run) {
    const std::vector<int64_t>& steps = runs_[run].steps;
    for (const std::vector<int64_t>* list : {&runs_[run].not_finite, &runs_[run].skipped}) {
      for (const int64_t step : *list) {
        const auto at = std::lower_bound(steps.begin(), steps.end(), step) - steps.begin();
        to.marks.push_back(x_[run][static_cast<size_t>(at)]);
      }
    }
  }
}

PageChart ChartMaker::loss() const {
  PageChart made = chart("Loss", "per token");
  made.wide = true;
  add_noisy(made, "training", [](const RunRecord& run) { return column(run, "loss"); });
  for (size_t run = 0; run < runs_.size(); ++run) {
    PageLine evaluated = line(run, "evaluation", column(runs_[run], "eval_loss"));
    std::erase_if(evaluated.points, [](const Point& point) { return !std::isfinite(point.y); });
    evaluated.kind = LineKind::kDots;
    if (!evaluated.points.empty()) {
      made.lines.push_back(std::move(evaluated));
    }
  }
  add_marks(made);
  return made;
}

PageChart ChartMaker::learning_rate() const {
  PageChart made = chart("Learning rate", "");
  made.from_zero = true;
  add_plain(made, "learning rate", [](const RunRecord& run) { return column(run, "lr"); });
  for (size_t run = 0; run < runs_.size(); ++run) {
    for (const auto& [name, values] : runs_[run].columns) {
      if (name.starts_with("lr/")) {
        made.lines.push_back(line(run, concat("group ", name.substr(3)), values));
      }
    }
  }
  return made;
}

PageChart ChartMaker::norm() const {
  PageChart made = chart("Gradient norm", "before clipping");
  add_noisy(made, "gradient norm", [](const RunRecord& run) { return column(run, "grad_norm"); });
  add_marks(made);
  return made;
}

PageChart ChartMaker::throughput() const {
  PageChart made = chart("Throughput", "tokens/s");
  made.from_zero = true;
  add_noisy(made, "throughput", tokens_per_second);
  return made;
}

PageChart ChartMaker::memory() const {
  constexpr double kMebibyte = 1 << 20;
  constexpr double kGibibyte = 1 << 30;
  double most = 0;
  for (const RunRecord& run : runs_) {
    for (const double value : column(run, "peak_bytes")) {
      most = std::isfinite(value) ? std::max(most, value) : most;
    }
  }
  const bool large = most >= kGibibyte;
  PageChart made = chart("Peak memory", large ? "GiB, rank 0" : "MiB, rank 0");
  made.from_zero = true;
  add_plain(made, "peak memory", [&](const RunRecord& run) {
    std::vector<double> values = column(run, "peak_bytes");
    for (double& value : values) {
      value /= large ? kGibibyte : kMebibyte;
    }
    return values;
  });
  return made;
}

PageChart ChartMaker::loss_scale() const {
  PageChart made = chart("Loss scale", "");
  add_plain(made, "loss scale", [](const RunRecord& run) { return column(run, "loss_scale"); });
  return made;
}

PageChart ChartMaker::bubble() const {
  constexpr double kPercent = 100;
  PageChart made = chart("Pipeline bubble", "% of the passes");
  made.from_zero = true;
  for (const char* kind : {"measured", "theoretical"}) {
    add_plain(made, kind, [kind](const RunRecord& run) {
      std::vector<double> values = column(run, concat("bubble/", kind));
      for (double& value : values) {
        value *= kPercent;
      }
      return values;
    });
  }
  return made;
}

// A chart for each number, and one for all ranks' values of a tag. They may be measured every so
// many steps: steps without them are no gaps.
void ChartMaker::add_others(std::vector<PageChart>& charts) const {
  constexpr std::string_view kMonitor = "monitor/";
  constexpr std::string_view kRanks = "ranks/";
  std::map<std::string, size_t> places;  // by title
  for (size_t run = 0; run < runs_.size(); ++run) {
    for (const auto& [column_name, values] : runs_[run].columns) {
      if (kKnown.count(column_name) != 0 || column_name.starts_with("lr/")) {
        continue;
      }
      std::string title = column_name;
      std::string name = column_name;
      if (title.starts_with(kMonitor)) {
        title = name = title.substr(kMonitor.size());
      } else if (title.starts_with(kRanks)) {
        const size_t slash = title.rfind('/');
        name = "rank " + title.substr(slash + 1);
        title = title.substr(kRanks.size(), slash - kRanks.size()) + " of each rank";
      }
      const auto place = places.emplace(title, charts.size()).first->second;
      if (place == charts.size()) {
        charts.push_back(chart(title, ""));
      }
      PageLine made = line(run, name, values);
      std::erase_if(made.points, [](const Point& point) { return !std::isfinite(point.y); });
      charts[place].lines.push_back(std::move(made));
    }
  }
}

PageCharts ChartMaker::make() {
  PageCharts charts;
  charts.x_title = x_title_;
  charts.main = {loss(), learning_rate(), norm(), throughput(), memory()};
  const auto any = [&](const auto& condition) {
    return std::any_of(runs_.begin(), runs_.end(), condition);
  };
  if (any([](const RunRecord& run) { return varies(column(run, "loss_scale")); })) {
    charts.main.push_back(loss_scale());
  }
  if (any([](const RunRecord& run) { return run.column("bubble/measured") != nullptr; })) {
    charts.main.push_back(bubble());
  }
  add_others(charts.more);
  return charts;
}

}  // namespace

PageCharts make_charts(const std::vector<RunRecord>& runs, const ChartOptions& options) {
  return ChartMaker(runs, options).make();
}

std::vector<double> tokens_per_second(const RunRecord& run) {
  constexpr double kMillisecond = 1e-3;
  const std::vector<double>* tokens = run.column("tokens");
  const std::vector<double>* times = run.column("step_time_ms");
  std::vector<double> values(run.steps.size(), kUnknown);
  for (size_t i = 0; tokens != nullptr && times != nullptr && i < values.size(); ++i) {
    if ((*times)[i] > 0) {
      values[i] = (*tokens)[i] / ((*times)[i] * kMillisecond);
    }
  }
  return values;
}

}  // namespace tapestry::report
