#include "parallel_core/training/progress.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "parallel_core/training/logging.h"

namespace tapestry {

namespace {

constexpr double kWeightOfNew = 0.1;
constexpr int kBarWidth = 30;

}  // namespace

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

void Progress::update(const StepRecord& record, const StepResult& result) {
  average_ms_ = average_ms_ == 0
                    ? record.step_time_ms
                    : (1 - kWeightOfNew) * average_ms_ + kWeightOfNew * record.step_time_ms;
  step_ = record.step;
  loss_ = result.loss;
  tokens_per_second_ =
      average_ms_ > 0 ? 1000.0 * static_cast<double>(result.tokens) / average_ms_ : 0;
  show_progress(line());
}

std::string Progress::line() const {
  char text[160];
  if (total_ == 0) {
    std::snprintf(text, sizeof(text), "step %lld  loss %.4f  %.0f tokens/s",
                  static_cast<long long>(step_), loss_, tokens_per_second_);
    return text;
  }
  const auto filled = static_cast<int>(kBarWidth * step_ / total_);
  const double left = static_cast<double>(total_ - step_) * average_ms_ / 1000.0;
  std::snprintf(text, sizeof(text), "[%s%s] %lld/%lld  loss %.4f  %.0f tokens/s  ETA %s",
                std::string(static_cast<size_t>(filled), '#').c_str(),
                std::string(static_cast<size_t>(kBarWidth - filled), '.').c_str(),
                static_cast<long long>(step_), static_cast<long long>(total_), loss_,
                tokens_per_second_, format_duration(left).c_str());
  return text;
}

}  // namespace tapestry
