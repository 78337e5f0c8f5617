#include "parallel_core/training/watch/static_log.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "autograd/tensor/error.h"
#include "parallel_core/config/yaml/value.h"
#include "parallel_core/training/watch/norm_watch.h"
#include "text/util/numbers.h"

namespace tapestry {

std::string days_text(double seconds) {
  constexpr int64_t kDay = 24 * 60 * 60;
  const auto whole = static_cast<int64_t>(seconds);
  const int64_t days = whole / kDay;
  const int64_t rest = whole % kDay;
  char text[60];
  std::snprintf(text, sizeof(text), "%lld:%02lld:%02lld", static_cast<long long>(rest / 3600),
                static_cast<long long>(rest / 60 % 60), static_cast<long long>(rest % 60));
  return days == 0 ? std::string(text) : concat(days, days == 1 ? " day, " : " days, ", text);
}

std::string ahead_losses_text(const StepResult& result) {
  std::string text;
  for (size_t depth = 1; depth <= result.mtp_losses.size(); ++depth) {
    char number[40];
    std::snprintf(number, sizeof(number), "%.6f", without_nan_sign(result.mtp_losses[depth - 1]));
    text += concat("mtp_", depth, "_loss: ", number, ", ");
  }
  return text;
}

StaticLogPlace place_of_step(int64_t step, const RunLength& length) {
  const std::vector<int64_t>& epoch_ends = length.epoch_ends;
  StaticLogPlace place;
  place.done = step;
  place.total = std::max(step, length.total);
  if (epoch_ends.empty()) {
    place.step = step;
    place.steps_per_epoch = place.total;
    return place;
  }
  // The epoch that has the step; of steps behind the last end, which are none, the last epoch.
  const auto epoch_of = [&](int64_t of) {
    const auto end = std::lower_bound(epoch_ends.begin(), epoch_ends.end() - 1, of);
    return end - epoch_ends.begin();
  };
  const auto epoch = epoch_of(step);
  const int64_t begin = epoch == 0 ? 0 : epoch_ends[static_cast<size_t>(epoch - 1)];
  place.epoch = epoch + 1;
  place.epochs = epoch_of(place.total) + 1;
  place.step = step - begin;
  place.steps_per_epoch = epoch_ends[static_cast<size_t>(epoch)] - begin;
  return place;
}

std::string place_text(const StaticLogPlace& place) {
  char text[120];
  std::snprintf(text, sizeof(text), "Epoch:[%3lld/%3lld], step:[%5lld/%5lld]",
                static_cast<long long>(place.epoch), static_cast<long long>(place.epochs),
                static_cast<long long>(place.step), static_cast<long long>(place.steps_per_epoch));
  return text;
}

std::string static_step_line(const StaticLogPlace& place,
                             const StepRecord& record,
                             const StepResult& result) {
  char text[160];
  std::snprintf(text, sizeof(text), ", loss: %5.3f, per_step_time: %lldms, ",
                without_nan_sign(result.loss), static_cast<long long>(record.step_time_ms));
  std::string line = concat("{ ", place_text(place), text, ahead_losses_text(result));
  if (!result.lr.empty()) {
    line += concat("lr: ", config::number_text(result.lr.front()), ", ");
  }
  line += concat("overflow cond: ", result.finite ? "False" : "True",
                 ", loss_scale: ", config::number_text(result.loss_scale),
                 ", global_norm: ", norm_text(result.grad_norm));
  if (place.teraflops) {
    std::snprintf(text, sizeof(text), ", train_throughput_per_npu: %.3fT", *place.teraflops);
    line += text;
  }
  return line;
}

std::string static_progress_line(const StaticLogPlace& place, const StepRecord& record) {
  constexpr int kBar = 50;
  const double percent = 100.0 * static_cast<double>(place.done) / static_cast<double>(place.total);
  std::string bar;
  for (int i = 0; i < kBar; ++i) {
    bar += i < static_cast<int>(percent / 2) ? "\u2588" : " ";
  }
  const double left = place.seconds_left.value_or(static_cast<double>(place.total - place.done) *
                                                  record.step_time_ms / 1000);
  char text[60];
  char rate[60];
  std::snprintf(text, sizeof(text), "  %4.1f%% |", percent);
  std::snprintf(rate, sizeof(rate), "| %.5f samples/s/p  ", place.samples_per_second);
  return concat(text, bar, rate, days_text(left), " }");
}

}  // namespace tapestry
