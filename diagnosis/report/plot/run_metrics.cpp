#include "diagnosis/report/plot/run_metrics.h"

#include <algorithm>
#include <cmath>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "diagnosis/report/plot/metrics_file.h"

namespace tapestry::plot {
namespace {

using Json = nlohmann::json;

double number(const Json& line, const char* key, const std::string& place) {
  const auto found = line.find(key);
  check<IoError>(found != line.end(), place, ": '", key,
                 "' is missing; expected a line of metrics.jsonl");
  const std::optional<double> value = metrics_number(*found);
  check<IoError>(value.has_value(), place, ": '", key, "' is ",
                 found->dump(-1, ' ', false, Json::error_handler_t::replace),
                 "; expected a number");
  return *value;
}

double amount(const Json& line, const char* key, const std::string& place) {
  const double value = number(line, key, place);
  check<IoError>(std::isfinite(value) && value >= 0, place, ": '", key, "' is ", value,
                 "; expected a finite number, not below 0");
  return value;
}

StepLosses parse_step(const MetricsLine& line) {
  constexpr double kMillisecond = 1e-3;
  const Json& json = line.json;
  StepLosses losses{.step = line.step,
                    .loss = number(json, "loss", line.place),
                    .tokens = amount(json, "tokens", line.place),
                    .seconds = kMillisecond * amount(json, "step_time_ms", line.place)};
  if (json.contains("eval_loss")) {
    losses.eval_loss = number(json, "eval_loss", line.place);
  }
  return losses;
}

// Adds a step to the last run, or begins another one.
void append(std::vector<RunMetrics>& runs, const StepLosses& losses) {
  if (runs.empty() || losses.step <= runs.back().steps.front().step) {
    runs.push_back({.steps = {losses}});
    return;
  }
  std::vector<StepLosses>& steps = runs.back().steps;
  if (losses.step <= steps.back().step) {
    const auto again = std::lower_bound(
        steps.begin(), steps.end(), losses.step,
        [](const StepLosses& earlier, int64_t step) { return earlier.step < step; });
    runs.back().notes.push_back(
        concat("from step ", losses.step, " on trained again; the earlier ", steps.end() - again,
               steps.end() - again == 1 ? " step is" : " steps are", " not drawn"));
    steps.erase(again, steps.end());
  }
  steps.push_back(losses);
}

}  // namespace

std::vector<RunMetrics> read_metrics(const std::string& path) {
  std::vector<RunMetrics> runs;
  const bool complete = read_metrics_lines(
      metrics_file(path), [&](const MetricsLine& line) { append(runs, parse_step(line)); });
  if (!complete) {
    runs.back().notes.emplace_back("the last line of the file is incomplete and left out");
  }
  return runs;
}

std::vector<RunMetrics> read_runs(const std::vector<std::string>& paths) {
  const std::vector<std::string> names = run_names(paths);
  std::vector<RunMetrics> all;
  for (size_t i = 0; i < paths.size(); ++i) {
    std::vector<RunMetrics> runs = read_metrics(paths[i]);
    for (size_t part = 0; part < runs.size(); ++part) {
      runs[part].name =
          runs.size() == 1 ? names[i] : concat(names[i], " part ", static_cast<int64_t>(part) + 1);
      all.push_back(std::move(runs[part]));
    }
  }
  return all;
}

}  // namespace tapestry::plot
