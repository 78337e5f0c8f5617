#include "text/util/numbers.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "autograd/tensor/error.h"

namespace tapestry {

std::string format_duration(double seconds) {
  const auto whole = static_cast<int64_t>(std::llround(std::max(seconds, 0.0)));
  char text[40];
  if (whole >= 3600) {
    std::snprintf(text, sizeof(text), "%lld:%02lld:%02lld", static_cast<long long>(whole / 3600),
                  static_cast<long long>(whole / 60 % 60), static_cast<long long>(whole % 60));
  } else {
    std::snprintf(text, sizeof(text), "%lld:%02lld", static_cast<long long>(whole / 60),
                  static_cast<long long>(whole % 60));
  }
  return text;
}

std::string format_pace(double seconds_a_step, int64_t steps) {
  std::array<char, 40> step{};
  const bool in_ms = seconds_a_step < 10;
  const double number = in_ms ? seconds_a_step * 1000 : seconds_a_step;
  std::snprintf(step.data(), step.size(), number < 999.5 ? "%.3g %s a step" : "%.0f %s a step",
                number, in_ms ? "ms" : "s");
  return concat(step.data(),
                steps > 0
                    ? concat(", ", format_duration(seconds_a_step * static_cast<double>(steps)),
                             " for ", with_thousands(steps), " steps")
                    : std::string());
}

std::string with_thousands(int64_t number) {
  const std::string digits = std::to_string(number);
  const size_t first = digits.starts_with('-') ? 1 : 0;
  std::string text;
  for (size_t at = 0; at < digits.size(); ++at) {
    if (at > first && (digits.size() - at) % 3 == 0) {
      text += ',';
    }
    text += digits[at];
  }
  return text;
}

}  // namespace tapestry
