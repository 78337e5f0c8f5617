#include "parallel_core/training/watch/progress.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "autograd/tensor/error.h"
#include "parallel_core/training/log/logging.h"
#include "parallel_core/training/log/terminal.h"
#include "text/util/numbers.h"

namespace tapestry {

namespace {

constexpr double kWeightOfNew = 0.1;
constexpr size_t kLeastBar = 5;
constexpr size_t kMostBar = 40;
constexpr auto kBetweenLines = std::chrono::milliseconds(100);

}  // namespace

void Progress::update(const StepRecord& record, const StepResult& result) {
  average_ms_ = average_ms_ == 0
                    ? record.step_time_ms
                    : (1 - kWeightOfNew) * average_ms_ + kWeightOfNew * record.step_time_ms;
  step_ = record.step;
  loss_ = result.loss;
  tokens_per_second_ =
      average_ms_ > 0 ? 1000.0 * static_cast<double>(result.tokens) / average_ms_ : 0;
  ++steps_;
  sum_ms_ += record.step_time_ms;
  sum_tokens_ += static_cast<double>(result.tokens);
  sum_loss_ += result.loss;
  const auto now = std::chrono::steady_clock::now();
  if (shows_progress() && (now >= next_shown_ || step_ == total_)) {
    next_shown_ = now + kBetweenLines;
    show_progress(line(terminal_columns()));
  }
}

Pace Progress::take_pace() {
  Pace pace;
  pace.tokens_per_second = sum_ms_ > 0 ? 1000 * sum_tokens_ / sum_ms_ : 0;
  pace.mean_loss = steps_ > 0 ? sum_loss_ / static_cast<double>(steps_) : loss_;
  if (total_ > 0 && steps_ > 0) {
    pace.seconds_left =
        static_cast<double>(total_ - step_) * sum_ms_ / static_cast<double>(steps_) / 1000;
  }
  steps_ = 0;
  sum_ms_ = 0;
  sum_tokens_ = 0;
  sum_loss_ = 0;
  return pace;
}

std::string Progress::line(int columns) const {
  // The last column wraps, and Ctrl-C is shown behind the line, as "^C".
  constexpr int kSpare = 3;
  const auto room = static_cast<size_t>(std::max(columns - kSpare, 0));
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "  loss %.4f", without_nan_sign(loss_));
  const std::string loss = text.data();
  std::snprintf(text.data(), text.size(), "  %.0f tokens/s", tokens_per_second_);
  const std::string rate = text.data();
  const std::string left =
      total_ == 0
          ? ""
          : concat("  ",
                   format_duration(static_cast<double>(total_ - step_) * average_ms_ / 1000.0),
                   " left");
  const std::string step = total_ == 0 ? concat("step ", step_) : concat(step_, "/", total_);
  for (const std::string& rest :
       {concat(loss, rate, left), concat(loss, left), left, std::string()}) {
    if (step.size() + rest.size() <= room) {
      return with_bar(step + rest, room);
    }
  }
  return step.substr(0, room);
}

std::string Progress::with_bar(const std::string& text, size_t room) const {
  constexpr size_t kFrame = 3;  // "[", "] "
  if (total_ == 0 || text.size() + kFrame + kLeastBar > room) {
    return text;
  }
  const size_t width = std::min(room - text.size() - kFrame, kMostBar);
  const auto filled = static_cast<size_t>(static_cast<double>(width) * static_cast<double>(step_) /
                                          static_cast<double>(total_));
  return concat("[", std::string(filled, '#'), std::string(width - filled, '.'), "] ", text);
}

}  // namespace tapestry
