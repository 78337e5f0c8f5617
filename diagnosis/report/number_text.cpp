#include "diagnosis/report/number_text.h"

#include <array>
#include <cmath>
#include <cstdio>

#include "autograd/tensor/error.h"

namespace tapestry::report {
namespace {

template <class... Args>
std::string formatted(const char* format, Args... args) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), format, args...);
  return text.data();
}

}  // namespace

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
  const auto whole = std::llround(value);
  return formatted("%lld,%03lld", whole / 1000, std::abs(whole % 1000));
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
    return formatted("%lld:%02lld min", static_cast<long long>(whole / kMinute),
                     static_cast<long long>(whole % kMinute));
  }
  if (whole < kDay) {
    return formatted("%lld:%02lld:%02lld h", static_cast<long long>(whole / kHour),
                     static_cast<long long>(whole % kHour / kMinute),
                     static_cast<long long>(whole % kMinute));
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

}  // namespace tapestry::report
