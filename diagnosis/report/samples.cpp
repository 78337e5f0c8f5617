#include "diagnosis/report/samples.h"

#include <cmath>
#include <filesystem>
#include <limits>
#include <system_error>

#include "autograd/io/file_lines.h"
#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "diagnosis/report/plot/letters.h"
#include "diagnosis/report/plot/metrics_file.h"
#include "text/util/numbers.h"

namespace tapestry::report {
namespace {

using plot::escape_markup;

constexpr size_t kMostShown = 64;

std::string text_of(const nlohmann::json& line, const char* key) {
  const auto found = line.find(key);
  return found == line.end() ? std::string()
         : found->is_string()
             ? found->get<std::string>()
             : found->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

double reward_number(const nlohmann::json& value) {
  return plot::metrics_number(value).value_or(std::numeric_limits<double>::quiet_NaN());
}

SampledCompletion completion_of(const nlohmann::json& line) {
  SampledCompletion sample{.prompt = text_of(line, "prompt"),
                           .completion = text_of(line, "completion"),
                           .rewards = {},
                           .advantage = std::numeric_limits<double>::quiet_NaN()};
  const auto rewards = line.find("rewards");
  if (rewards != line.end() && rewards->is_object()) {
    for (const auto& [name, value] : rewards->items()) {
      sample.rewards.emplace_back(name, reward_number(value));
    }
  }
  if (const auto advantage = line.find("advantage"); advantage != line.end()) {
    sample.advantage = reward_number(*advantage);
  }
  return sample;
}

std::string cell(double value) {
  constexpr int kDigits = 4;
  return concat("<td class=\"num\">", std::isfinite(value) ? number_text(value, kDigits) : "–",
                "</td>");
}

}  // namespace

LastSamples read_last_samples(const std::string& path) {
  LastSamples last;
  std::error_code none;
  if (!std::filesystem::is_regular_file(path, none)) {
    return last;
  }
  FileLines lines(path);
  for (std::string text; lines.next(text);) {
    const auto line = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!line.is_object() || !line.contains("completion") || !line.contains("step") ||
        !line["step"].is_number_integer()) {
      continue;
    }
    const auto step = line["step"].get<int64_t>();
    if (step != last.step) {
      last = {.step = step, .count = 0, .shown = {}};
    }
    ++last.count;
    if (last.shown.size() < kMostShown) {
      last.shown.push_back(completion_of(line));
    }
  }
  return last;
}

std::string samples_html(const LastSamples& samples) {
  if (samples.shown.empty()) {
    return {};
  }
  std::string html = concat("<p>Completions of step ", samples.step, ": ", samples.count,
                            std::cmp_less(samples.shown.size(), samples.count)
                                ? concat(", the first ", samples.shown.size(), " of them")
                                : std::string(),
                            ".</p>\n<div class=\"box\"><table><thead><tr><th>completion</th>");
  for (const auto& [name, value] : samples.shown.front().rewards) {
    html += concat("<th class=\"num\">", escape_markup(name), "</th>");
  }
  html += "<th class=\"num\">advantage</th></tr></thead><tbody>\n";
  const size_t columns = samples.shown.front().rewards.size();
  const std::string* prompt = nullptr;
  for (const SampledCompletion& sample : samples.shown) {
    if (prompt == nullptr || *prompt != sample.prompt) {
      html += concat("<tr class=\"section\"><th colspan=\"", columns + 2, "\" scope=\"colgroup\">",
                     escape_markup(sample.prompt), "</th></tr>\n");
      prompt = &sample.prompt;
    }
    html += concat("<tr><td class=\"mono\">", escape_markup(sample.completion), "</td>");
    for (size_t i = 0; i < columns; ++i) {
      html += cell(i < sample.rewards.size() ? sample.rewards[i].second
                                             : std::numeric_limits<double>::quiet_NaN());
    }
    html += cell(sample.advantage) + "</tr>\n";
  }
  return html + "</tbody></table></div>\n";
}

}  // namespace tapestry::report
