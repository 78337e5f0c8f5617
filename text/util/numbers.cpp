#include "text/util/numbers.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "autograd/tensor/error.h"

namespace tapestry {
namespace {

template <class... Args>
std::string formatted(const char* format, Args... args) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), format, args...);
  return text.data();
}

}  // namespace

std::string format_duration(double seconds) {
  const long long whole = std::llround(std::max(seconds, 0.0));
  return whole >= 3600 ? formatted("%lld:%02lld:%02lld", whole / 3600, whole / 60 % 60, whole % 60)
                       : formatted("%lld:%02lld", whole / 60, whole % 60);
}

std::string format_pace(double seconds_a_step, int64_t steps) {
  const bool in_ms = seconds_a_step < 10;
  const double number = in_ms ? seconds_a_step * 1000 : seconds_a_step;
  const std::string step =
      formatted(number < 999.5 ? "%.3g %s a step" : "%.0f %s a step", number, in_ms ? "ms" : "s");
  return concat(
      step, steps > 0 ? concat(", ", format_duration(seconds_a_step * static_cast<double>(steps)),
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

std::string number_text(double value, int digits) {
  if (std::isnan(value)) {
    return "NaN";
  }
  if (std::isinf(value)) {
    return value > 0 ? "inf" : "-inf";
  }
  return formatted("%.*g", digits, value == 0 ? 0.0 : value);
}

std::string amount_text(double value) {
  struct Unit {
    double size;
    const char* name;
  };
  constexpr double kFrom = 1e4;
  constexpr std::array<Unit, 4> kUnits = {Unit{1e12, "T"}, Unit{1e9, "B"}, Unit{1e6, "M"},
                                          Unit{1e3, "k"}};
  constexpr int kDigits = 3;
  if (std::abs(value) >= kFrom) {
    for (const Unit& unit : kUnits) {
      // 999,999 is 1 M in three digits, not 1e+03 k.
      if (std::abs(value) >= 0.9995 * unit.size) {
        return concat(number_text(value / unit.size, kDigits), " ", unit.name);
      }
    }
  }
  if (std::abs(value) < 999.5) {
    return number_text(value, 4);
  }
  return with_thousands(std::llround(value));
}

std::string bytes_text(double bytes) {
  constexpr double kStep = 1024;
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (bytes >= kStep && unit + 1 < kUnits.size()) {
    bytes /= kStep;
    ++unit;
  }
  return concat(formatted(bytes >= 100 || unit == 0 ? "%.0f" : "%.1f", bytes), " ", kUnits[unit]);
}

std::string duration_text(double seconds) {
  constexpr int64_t kMinute = 60;
  constexpr int64_t kHour = 60 * kMinute;
  constexpr int64_t kDay = 24 * kHour;
  if (seconds < kMinute) {
    return concat(number_text(seconds, 3), " s");
  }
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole < kHour) {
    return concat(format_duration(seconds), " min");
  }
  if (whole < kDay) {
    return concat(format_duration(seconds), " h");
  }
  return concat(whole / kDay, " d ", whole % kDay / kHour, " h");
}

std::string ranges_text(const std::vector<int64_t>& numbers, size_t most) {
  std::string text;
  size_t pieces = 0;
  for (size_t begin = 0; begin < numbers.size(); ++pieces) {
    if (pieces == most) {
      return concat(text, " and ", numbers.size() - begin, " more");
    }
    size_t end = begin + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) {
      ++end;
    }
    text += concat(text.empty() ? "" : ", ", numbers[begin]);
    if (end - begin > 1) {
      text += concat("-", numbers[end - 1]);
    }
    begin = end;
  }
  return text;
}

double without_nan_sign(double value) { return std::isnan(value) ? std::abs(value) : value; }

}  // namespace tapestry
