#include "parallel_core/plot/run_metrics.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "autograd/tensor/error.h"

namespace tapestry::plot {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kFileName = "metrics.jsonl";

// The folders in a folder, and in its "old", that have the file.
std::vector<std::string> runs_below(const fs::path& folder) {
  std::vector<std::string> found;
  std::error_code error;
  for (const fs::path& parent : {folder, folder / "old"}) {
    for (fs::directory_iterator entry(parent, error), end; !error && entry != end;
         entry.increment(error)) {
      if (fs::exists(entry->path() / kFileName, error)) {
        found.push_back(entry->path().string());
      }
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

[[noreturn]] void refuse_folder(const fs::path& folder) {
  constexpr size_t kNamed = 3;
  const std::vector<std::string> below = runs_below(folder);
  std::string text = concat(folder.string(), ": has no ", kFileName);
  if (below.empty()) {
    text += "; expected the output folder of a run";
  }
  for (size_t i = 0; i < std::min(below.size(), kNamed); ++i) {
    text += concat(i == 0 ? "; did you mean " : ", ", below[i]);
  }
  throw IoError(text + (below.size() > kNamed ? ", ...?" : below.empty() ? "" : "?"));
}

fs::path metrics_file(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  check<IoError>(fs::exists(status), path,
                 ": there is no such file or folder; expected the output folder of a run, or its ",
                 kFileName);
  if (!fs::is_directory(status)) {
    return path;
  }
  if (!fs::exists(fs::path(path) / kFileName, error)) {
    refuse_folder(path);
  }
  return fs::path(path) / kFileName;
}

// Numbers, and "nan", "inf", "-inf", as which JSON has the rest of them.
double number(const Json& line, const char* key, const std::string& place) {
  const auto found = line.find(key);
  check<IoError>(found != line.end(), place, ": '", key,
                 "' is missing; expected a line of metrics.jsonl");
  if (found->is_number()) {
    return found->get<double>();
  }
  const std::string text = found->is_string() ? found->get<std::string>() : "";
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  check<IoError>(text == "nan" || text == "inf" || text == "-inf", place, ": '", key, "' is ",
                 found->dump(-1, ' ', false, Json::error_handler_t::replace),
                 "; expected a number");
  return text == "nan" ? std::nan("") : text == "inf" ? kInfinity : -kInfinity;
}

double amount(const Json& line, const char* key, const std::string& place) {
  const double value = number(line, key, place);
  check<IoError>(std::isfinite(value) && value >= 0, place, ": '", key, "' is ", value,
                 "; expected a finite number, not below 0");
  return value;
}

StepLosses parse_step(const Json& line, const std::string& place) {
  constexpr double kMillisecond = 1e-3;
  check<IoError>(line.is_object(), place,
                 ": is no JSON object; expected a line of metrics.jsonl, {\"step\":1,...}");
  const auto step = line.find("step");
  check<IoError>(step != line.end() && step->is_number_integer() && step->get<int64_t>() > 0, place,
                 ": 'step' is ", step == line.end() ? "missing" : step->dump(),
                 "; expected a number from 1 on, as metrics.jsonl has it");
  StepLosses losses{.step = step->get<int64_t>(),
                    .loss = number(line, "loss", place),
                    .tokens = amount(line, "tokens", place),
                    .seconds = kMillisecond * amount(line, "step_time_ms", place)};
  if (line.contains("eval_loss")) {
    losses.eval_loss = number(line, "eval_loss", place);
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

std::vector<std::string> parts_of(const std::string& path) {
  fs::path given = fs::absolute(path).lexically_normal();
  if (given.filename() == kFileName) {
    given = given.parent_path();
  }
  std::vector<std::string> parts;
  for (const fs::path& part : given) {
    if (!part.empty()) {
      parts.push_back(part.string());
    }
  }
  return parts;
}

// The paths without what they have in common, each with at least its last part.
std::vector<std::string> names_of(const std::vector<std::string>& paths) {
  std::vector<std::vector<std::string>> parts;
  parts.reserve(paths.size());
  for (const std::string& path : paths) {
    parts.push_back(parts_of(path));
  }
  size_t common = 0;
  while (std::all_of(parts.begin(), parts.end(), [&](const auto& other) {
    return other.size() > common + 1 && other[common] == parts.front()[common];
  })) {
    ++common;
  }
  std::vector<std::string> names;
  for (const auto& own : parts) {
    std::string name = own[common];
    for (size_t i = common + 1; i < own.size(); ++i) {
      name += (name.ends_with('/') ? "" : "/") + own[i];
    }
    names.push_back(name);
  }
  return names;
}

}  // namespace

std::vector<RunMetrics> read_metrics(const std::string& path) {
  const std::string file_name = metrics_file(path).string();
  std::ifstream file(file_name, std::ios::binary);
  check<IoError>(file.is_open(), file_name, ": cannot be read");
  std::vector<RunMetrics> runs;
  int64_t row = 0;
  bool incomplete = false;
  for (std::string text; std::getline(file, text);) {
    ++row;
    if (text.empty()) {
      continue;
    }
    const std::string place = concat(file_name, ":", row);
    const Json line = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    incomplete = line.is_discarded() && file.eof() && text.front() == '{';
    if (incomplete) {
      break;
    }
    check<IoError>(!line.is_discarded(), place,
                   ": is not JSON; expected a line of metrics.jsonl, {\"step\":1,...}");
    append(runs, parse_step(line, place));
  }
  check<IoError>(!file.bad(), file_name, ": cannot be read");
  check<IoError>(!runs.empty(), file_name, row == 0 ? ": is empty" : ": has no complete line",
                 "; the run has not finished a step");
  if (incomplete) {
    runs.back().notes.emplace_back("the last line of the file is incomplete and left out");
  }
  return runs;
}

std::vector<RunMetrics> read_runs(const std::vector<std::string>& paths) {
  const std::vector<std::string> names = names_of(paths);
  std::vector<RunMetrics> all;
  for (size_t i = 0; i < paths.size(); ++i) {
    check<ValueError>(std::find(names.begin(), names.begin() + static_cast<ptrdiff_t>(i),
                                names[i]) == names.begin() + static_cast<ptrdiff_t>(i),
                      paths[i], ": is given twice");
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
