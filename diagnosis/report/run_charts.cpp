#include "diagnosis/report/run_charts.h"

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
  RunCharts make();
  LineChart loss() const;
  const std::string& x_title() const { return x_title_; }

 private:
  using Values = std::function<std::vector<double>(const RunRecord& run)>;

  void place_x();
  LineChart chart(const std::string& title, const std::string& unit) const;
  ChartCurve line(size_t run, const std::string& name, const std::vector<double>& values) const;
  /// A smoothed line and the values behind it, or the values alone.
  void add_noisy(LineChart& to, const std::string& name, const Values& values) const;
  void add_plain(LineChart& to, const std::string& name, const Values& values) const;
  void add_marks(LineChart& to) const;

  LineChart learning_rate() const;
  LineChart norm() const;
  LineChart throughput() const;
  LineChart memory() const;
  LineChart loss_scale() const;
  bool has_task() const;
  LineChart bubble() const;
  void add_others(std::vector<LineChart>& charts) const;

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

LineChart ChartMaker::chart(const std::string& title, const std::string& unit) const {
  return {.title = title,
          .unit = unit,
          .lines = {},
          .x = range_,
          .whole_x = options_.x != plot::XAxis::kTime};
}

ChartCurve ChartMaker::line(size_t run,
                            const std::string& name,
                            const std::vector<double>& values) const {
  ChartCurve made{
      .run = run, .owner = runs_.size() == 1 ? std::string() : runs_[run].name, .name = name};
  for (size_t i = 0; i < values.size(); ++i) {
    made.points.push_back({x_[run][i], values[i]});
  }
  return made;
}

void ChartMaker::add_plain(LineChart& to, const std::string& name, const Values& values) const {
  for (size_t run = 0; run < runs_.size(); ++run) {
    to.lines.push_back(line(run, name, values(runs_[run])));
  }
}

void ChartMaker::add_noisy(LineChart& to, const std::string& name, const Values& values) const {
  constexpr double kFew = 100;
  constexpr double kShare = 50;
  constexpr double kMost = 0.995;
  for (size_t run = 0; run < runs_.size(); ++run) {
    ChartCurve whole = line(run, name, values(runs_[run]));
    const auto steps = static_cast<double>(whole.points.size());
    const double smooth =
        options_.smooth.value_or(steps < kFew ? 0 : std::min(1 - kShare / steps, kMost));
    if (smooth > 0) {
      ChartCurve faint = whole;
      faint.kind = LineKind::kFaint;
      faint.name = "each step";
      whole.points = plot::smoothed(whole.points, smooth);
      whole.name += ", smoothed";
      to.lines.push_back(std::move(faint));
    }
    to.lines.push_back(std::move(whole));
  }
}

void ChartMaker::add_marks(LineChart& to) const {
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

LineChart ChartMaker::loss() const {
  LineChart made = chart("Loss", has_task() ? "" : "per token");
  made.wide = true;
  add_noisy(made, "training", [](const RunRecord& run) { return column(run, "loss"); });
  for (size_t run = 0; run < runs_.size(); ++run) {
    ChartCurve evaluated = line(run, "evaluation", column(runs_[run], "eval_loss"));
    std::erase_if(evaluated.points, [](const Point& point) { return !std::isfinite(point.y); });
    evaluated.kind = LineKind::kDots;
    if (!evaluated.points.empty()) {
      made.lines.push_back(std::move(evaluated));
    }
  }
  add_marks(made);
  return made;
}

// Whether a run minimises something else than the mean loss of its tokens.
bool ChartMaker::has_task() const {
  return std::any_of(runs_.begin(), runs_.end(), [](const RunRecord& run) {
    return std::any_of(run.config.begin(), run.config.end(), [](const ConfigEntry& entry) {
      return entry.section == "post_training_config" && entry.key == "task" &&
             entry.value != "null";
    });
  });
}

LineChart ChartMaker::learning_rate() const {
  LineChart made = chart("Learning rate", "");
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

LineChart ChartMaker::norm() const {
  LineChart made = chart("Gradient norm", "before clipping");
  add_noisy(made, "gradient norm", [](const RunRecord& run) { return column(run, "grad_norm"); });
  add_marks(made);
  return made;
}

LineChart ChartMaker::throughput() const {
  LineChart made = chart("Throughput", "tokens/s");
  made.from_zero = true;
  add_noisy(made, "throughput", tokens_per_second);
  return made;
}

LineChart ChartMaker::memory() const {
  constexpr double kMebibyte = 1 << 20;
  constexpr double kGibibyte = 1 << 30;
  double most = 0;
  for (const RunRecord& run : runs_) {
    for (const double value : column(run, "peak_bytes")) {
      most = std::isfinite(value) ? std::max(most, value) : most;
    }
  }
  const bool large = most >= kGibibyte;
  LineChart made = chart("Peak memory", large ? "GiB, rank 0" : "MiB, rank 0");
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

LineChart ChartMaker::loss_scale() const {
  LineChart made = chart("Loss scale", "");
  add_plain(made, "loss scale", [](const RunRecord& run) { return column(run, "loss_scale"); });
  return made;
}

LineChart ChartMaker::bubble() const {
  constexpr double kPercent = 100;
  LineChart made = chart("Pipeline bubble", "% of the passes");
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
void ChartMaker::add_others(std::vector<LineChart>& charts) const {
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
      } else if (const size_t slash = title.find('/'); slash != std::string::npos) {
        name = title.substr(slash + 1);  // what a task measures: rewards/chosen, rewards/rejected
        title.resize(slash);
      }
      const auto place = places.emplace(title, charts.size()).first->second;
      if (place == charts.size()) {
        charts.push_back(chart(title, ""));
      }
      ChartCurve made = line(run, name, values);
      std::erase_if(made.points, [](const Point& point) { return !std::isfinite(point.y); });
      charts[place].lines.push_back(std::move(made));
    }
  }
}

RunCharts ChartMaker::make() {
  RunCharts charts;
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

LineChart loss_chart(const std::vector<RunRecord>& runs, const ChartOptions& options) {
  return ChartMaker(runs, options).loss();
}

std::string x_title_of(const std::vector<RunRecord>& runs, const ChartOptions& options) {
  return ChartMaker(runs, options).x_title();
}

RunCharts make_charts(const std::vector<RunRecord>& runs, const ChartOptions& options) {
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
