#include "diagnosis/report/verdict_report.h"

#include <array>
#include <cmath>
#include <ctime>
#include <filesystem>

#include "autograd/io/atomic_file.h"
#include "autograd/tensor/error.h"

namespace tapestry::accuracy {
namespace {

using Json = nlohmann::ordered_json;

template <class T>
Json value_or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

// As JSON can hold it: the rest of the numbers as texts.
Json finite(const Json& value) {
  if (value.is_number_float()) {
    const auto number = value.get<double>();
    return std::isfinite(number) ? value
           : std::isnan(number)  ? Json("nan")
                                 : Json(number > 0 ? "inf" : "-inf");
  }
  if (!value.is_structured()) {
    return value;
  }
  Json copy = value;
  for (Json& part : copy) {
    part = finite(part);
  }
  return copy;
}

Json first_json(const std::optional<FirstDifference>& first) {
  if (!first) {
    return nullptr;
  }
  Json json;
  json["step"] = value_or_null(first->step);
  json["micro_batch"] = value_or_null(first->micro_batch);
  json["sample"] = value_or_null(first->sample);
  json["rank"] = value_or_null(first->rank);
  json["pass"] = value_or_null(first->pass);
  json["module"] = value_or_null(first->module);
  json["op"] = value_or_null(first->op);
  json["tensor"] = value_or_null(first->tensor);
  json["source"] = value_or_null(first->source);
  json["distance"] = value_or_null(first->distance);
  json["bound"] = value_or_null(first->bound);
  return json;
}

std::string time_of_day() {
  const std::time_t time = std::time(nullptr);
  std::tm parts{};
  localtime_r(&time, &parts);
  std::array<char, 40> text{};
  return {text.data(), std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M", &parts)};
}

void check_report_file(const char* option, const std::string& path, const char* ending) {
  if (path.empty()) {
    return;
  }
  check<ValueError>(path.ends_with(ending), option, " is '", path,
                    "'; expected a name that ends in ", ending);
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  check<ValueError>(folder.empty() || std::filesystem::is_directory(folder), option, " is '", path,
                    "', but there is no folder ", folder.string(), "; make it first");
}

}  // namespace

std::string verdict_of(Outcome outcome) {
  return outcome == Outcome::kAgrees    ? "agree"
         : outcome == Outcome::kDiffers ? "differ"
                                        : "not_comparable";
}

std::string report_json(const VerdictReport& report) {
  Json json;
  json["command"] = report.command;
  json["verdict"] = report.verdict_name();
  json["stage"] = value_or_null(report.stage);
  json["first"] = first_json(report.first);
  json["findings"] = report.findings;
  return finite(json).dump(1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

void check_report_files(const ReportFiles& files) {
  check_report_file("--html", files.html, ".html");
  check_report_file("--json", files.json, ".json");
}

std::string write_report_files(const VerdictReport& report, const ReportFiles& files) {
  std::string text;
  if (!files.html.empty()) {
    write_file_atomically(files.html, report_html(report, concat("Made ", time_of_day(),
                                                                 " by accuracy ", report.command)));
    text += concat("wrote ", files.html, "\n");
  }
  if (!files.json.empty()) {
    write_file_atomically(files.json, report_json(report));
    text += concat("wrote ", files.json, "\n");
  }
  return text;
}

}  // namespace tapestry::accuracy
