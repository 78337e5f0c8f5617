#include "diagnosis/report/plot/metrics_file.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>

#include "autograd/io/file_lines.h"
#include "autograd/io/json.h"
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

std::vector<std::string> path_parts(const std::string& path) {
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

int64_t step_of(const Json& line, const std::string& place) {
  check<IoError>(line.is_object(), place,
                 ": is no JSON object; expected a line of metrics.jsonl, {\"step\":1,...}");
  const auto step = line.find("step");
  check<IoError>(step != line.end() && step->is_number_integer() && step->get<int64_t>() > 0, place,
                 ": 'step' is ", step == line.end() ? "missing" : step->dump(),
                 "; expected a number from 1 on, as metrics.jsonl has it");
  return step->get<int64_t>();
}

}  // namespace

std::string metrics_file(const std::string& path) {
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
  return (fs::path(path) / kFileName).string();
}

bool read_metrics_lines(const std::string& file_name,
                        const std::function<void(const MetricsLine& line)>& on_line) {
  FileLines lines(file_name);
  bool any = false;
  bool incomplete = false;
  for (std::string text; lines.next(text);) {
    const bool ended = take_newline(text);
    if (text.empty()) {
      continue;
    }
    const std::string place = concat(file_name, ":", lines.number());
    const Json line = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    incomplete = line.is_discarded() && !ended && text.front() == '{';
    if (incomplete) {
      break;
    }
    check<IoError>(!line.is_discarded(), place,
                   ": is not JSON; expected a line of metrics.jsonl, {\"step\":1,...}");
    any = true;
    on_line({.step = step_of(line, place), .json = line, .place = place});
  }
  check<IoError>(any, file_name, lines.number() == 0 ? ": is empty" : ": has no complete line",
                 "; the run has not finished a step");
  return !incomplete;
}

std::optional<double> metrics_number(const Json& value) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (value.is_number()) {
    return value.get<double>();
  }
  const std::string text = value.is_string() ? value.get<std::string>() : "";
  if (text == "nan") {
    return std::nan("");
  }
  return text == "inf"    ? std::optional(kInfinity)
         : text == "-inf" ? std::optional(-kInfinity)
                          : std::nullopt;
}

std::vector<std::string> run_names(const std::vector<std::string>& paths) {
  std::vector<std::vector<std::string>> parts;
  parts.reserve(paths.size());
  for (const std::string& path : paths) {
    parts.push_back(path_parts(path));
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
    check<ValueError>(std::find(names.begin(), names.end(), name) == names.end(),
                      paths[names.size()], ": is given twice");
    names.push_back(name);
  }
  return names;
}

}  // namespace tapestry::plot
