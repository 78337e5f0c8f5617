#include "parallel_core/telemetry/exposition.h"

#include <array>
#include <charconv>
#include <cmath>

#include "text/util/utf8.h"

namespace tapestry::telemetry {

namespace {

std::string escaped(std::string_view text, bool quotes) {
  std::string out;
  for (const char letter : data::replace_invalid_utf8(text)) {
    if (letter == '\\') {
      out += "\\\\";
    } else if (letter == '\n') {
      out += "\\n";
    } else if (letter == '"' && quotes) {
      out += "\\\"";
    } else {
      out += letter;
    }
  }
  return out;
}

std::string label_text(const Labels& labels) {
  std::string text;
  for (const auto& [name, value] : labels) {
    text += (text.empty() ? "" : ",") + name + "=\"" + escaped(value, true) + "\"";
  }
  return text;
}

std::string number_text(double value) {
  if (std::isnan(value)) {
    return "NaN";
  }
  if (std::isinf(value)) {
    return value > 0 ? "+Inf" : "-Inf";
  }
  std::array<char, 32> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value);
  return {digits.data(), end.ptr};
}

}  // namespace

Exposition::Exposition(const Labels& common) : common_(label_text(common)) {}

void Exposition::metric(std::string_view name, MetricType type, std::string_view help) {
  name_ = name;
  text_ += "# HELP " + name_ + " " + escaped(help, false) + "\n# TYPE " + name_ +
           (type == MetricType::kCounter ? " counter\n" : " gauge\n");
}

void Exposition::sample(double value, const Labels& labels) {
  const std::string own = label_text(labels);
  const std::string all = common_ + (common_.empty() || own.empty() ? "" : ",") + own;
  text_ += name_ + (all.empty() ? "" : "{" + all + "}") + " " + number_text(value) + "\n";
}

void Exposition::single(std::string_view name,
                        MetricType type,
                        std::string_view help,
                        double value) {
  metric(name, type, help);
  sample(value);
}

}  // namespace tapestry::telemetry
