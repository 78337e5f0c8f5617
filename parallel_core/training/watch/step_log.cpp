#include "parallel_core/training/watch/step_log.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "autograd/tensor/error.h"
#include "parallel_core/comm/communicator_group.h"
#include "parallel_core/estimates/time_estimate.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/training/log/logging.h"
#include "parallel_core/training/watch/evaluation.h"
#include "text/util/numbers.h"

namespace tapestry {

std::string train_log_line(const StepRecord& record, const StepResult& result) {
  char text[160];
  std::snprintf(text, sizeof(text), "train: Epoch:%lld, Step:%lld, Loss: %.6f, ",
                static_cast<long long>(record.epoch), static_cast<long long>(record.step),
                without_nan_sign(result.loss));
  std::string line = concat(text, ahead_losses_text(result),
                            "Finite_grads: ", result.finite ? "True" : "False", ", ");
  // The scale is a power of two or a small number: shown as Python shows a float.
  std::snprintf(text, sizeof(text),
                result.loss_scale == std::floor(result.loss_scale) ? "%.1f" : "%.9g",
                result.loss_scale);
  line += "Loss_scale: " + std::string(text) + ", Learning_rate: (";
  for (const double lr : result.lr) {
    std::snprintf(text, sizeof(text), "%e,", lr);
    line += text;
  }
  std::snprintf(text, sizeof(text), "), Time: %.2f ms", record.step_time_ms);
  return line + text;
}

std::string train_log_line(const StepRecord& record, const StepResult& result, const Pace& pace) {
  char text[80];
  std::snprintf(text, sizeof(text), ", Tokens/s: %.0f, Mean_loss: %.6f", pace.tokens_per_second,
                without_nan_sign(pace.mean_loss));
  return concat(train_log_line(record, result), text, pace.seconds_left ? ", Remaining: " : "",
                pace.seconds_left ? format_duration(*pace.seconds_left) : std::string());
}

std::string terminal_step_line(const StepRecord& record,
                               const StepResult& result,
                               const Pace& pace,
                               int64_t total) {
  constexpr size_t kMost = 70;
  char text[80];
  std::string line = concat("step ", record.step, total > 0 ? concat("/", total) : std::string());
  // The most important first; what does not fit any more is left to the log.
  const auto add = [&](const std::string& piece) {
    if (line.size() + 3 + piece.size() <= kMost) {
      line += " | " + piece;
    }
  };
  std::snprintf(text, sizeof(text), "loss %.4f", without_nan_sign(result.loss));
  add(text);
  if (!result.lr.empty()) {
    std::snprintf(text, sizeof(text), "lr %.3g", result.lr.front());
    add(text);
  }
  std::snprintf(text, sizeof(text), record.step_time_ms < 10 ? "%.1f ms" : "%.0f ms",
                record.step_time_ms);
  add(text);
  if (pace.seconds_left) {
    add(format_duration(*pace.seconds_left) + " left");
  }
  std::snprintf(text, sizeof(text), "%.0f tok/s", pace.tokens_per_second);
  add(text);
  return line;
}

std::string task_log_line(const NamedValues& values) {
  std::string line = "task: ";
  for (const auto& [name, value] : values) {
    char text[40];
    std::snprintf(text, sizeof(text), "%.6g", without_nan_sign(value));
    line += concat(line.size() > 6 ? ", " : "", name, ": ", text);
  }
  return line;
}

std::string bubble_line(const PipelineBubble& bubble) {
  char text[120];
  std::snprintf(text, sizeof(text),
                "pipeline: stages waited for %.2f %% of the passes, theory %.2f %%",
                100 * bubble.measured, 100 * bubble.theoretical);
  return text;
}

void StepLog::time_first_steps(const FinishedStep& step) {
  constexpr double kLong = 10'000;  // milliseconds
  if (steps_ > kFirstSteps || time_is_known_) {
    return;
  }
  mean_ms_ = steps_ == 1 ? step.record.step_time_ms
                         : (mean_ms_ * static_cast<double>(steps_ - 2) + step.record.step_time_ms) /
                               static_cast<double>(steps_ - 1);
  time_is_known_ = steps_ == kFirstSteps || step.is_last || step.record.step_time_ms > kLong;
  if (time_is_known_) {
    const std::string which = steps_ == kFirstSteps ? "s 2 and 3" : concat(" ", steps_);
    log_info(summary_row("time", concat(format_pace(mean_ms_ / 1000, length_.total),
                                        ", as measured on step", which)));
  }
}

namespace {

// What logs as JSON have beside the line. Evaluations have lines of their own.
LogFields fields_of_line(const FinishedStep& step, const Pace& pace) {
  StepRecord record = {.step = step.record.step,
                       .epoch = step.record.epoch,
                       .step_time_ms = step.record.step_time_ms,
                       .memory = step.record.memory,
                       .embedding_local_norm = step.record.embedding_local_norm};
  LogFields fields = step_fields(record, step.result);
  fields.push_back({"tokens_per_second", pace.tokens_per_second});
  fields.push_back({"mean_loss", pace.mean_loss});
  if (pace.seconds_left) {
    fields.push_back({"seconds_left", *pace.seconds_left});
  }
  return fields;
}

}  // namespace

void StepLog::log_evaluations(const StepRecord& record) const {
  const auto log = [&](const std::string& line, StepRecord part) {
    part.step = record.step;
    LogFields fields = {{"step", record.step}};
    const LogFields values = evaluation_fields(part);
    fields.insert(fields.end(), values.begin(), values.end());
    log_info(line, line, fields);
  };
  if (record.eval_loss || !record.eval_values.empty()) {
    log(eval_log_line("eval", record.step, record.eval_loss, record.eval_values),
        {.eval_loss = record.eval_loss, .eval_values = record.eval_values});
  }
  if (record.test_loss || !record.test_values.empty()) {
    log(eval_log_line("test", record.step, record.test_loss, record.test_values),
        {.test_loss = record.test_loss, .test_values = record.test_values});
  }
}

void StepLog::log_step(const FinishedStep& step) {
  const Pace pace = progress_.take_pace();
  const bool json = config_.training_config.log_format == "json";
  const LogFields fields = json ? fields_of_line(step, pace) : LogFields();
  if (config_.training_config.log_style == "dynamic") {
    log_info(train_log_line(step.record, step.result, pace),
             terminal_step_line(step.record, step.result, pace, length_.total), fields);
    return;
  }
  StaticLogPlace place = place_of_step(step.record.step, length_);
  const double seconds = std::max(step.record.step_time_ms / 1000, 1e-9);
  const auto batch = static_cast<double>(step.result.sequences);
  place.samples_per_second = batch / get_world_group().size() / seconds;
  if (flops_ > 0) {
    const auto whole =
        static_cast<double>(global_batch_size(config_, get_data_parallel_world_size()));
    place.teraflops = flops_ * batch / whole / seconds / 1e12;
  }
  place.seconds_left = pace.seconds_left;
  const std::string line = static_step_line(place, step.record, step.result);
  log_info(line, line, fields);
  log_info(static_progress_line(place, step.record));
}

void StepLog::after(FinishedStep& step) {
  const StepRecord& record = step.record;
  ++steps_;
  progress_.update(record, step.result);
  time_first_steps(step);
  const auto& interval = config_.training_config.log_interval;
  if (interval && (record.step % *interval == 0 || step.is_last || step.result.skipped ||
                   step.result.set_aside)) {
    log_step(step);
    if (!step.result.task.empty()) {
      log_info(task_log_line(step.result.task));
    }
    if (step.result.bubble) {
      log_info(bubble_line(*step.result.bubble));
    }
  }
  for (const std::string& line : step.lines) {
    log_info(line);
  }
  for (const std::string& line : step.warnings) {
    log_warning(line);
  }
  if (const std::string straggler = tell_waits(get_world_group()); !straggler.empty()) {
    log_warning(straggler);
  }
  if (steps_ == 1) {
    log_detail(memory_line(record.memory, record.process));
  }
  if (!step.result.finite && !step.result.skipped && !step.result.set_aside) {
    log_warning(
        concat("step ", record.step, ": the gradients are not finite, the update was skipped"));
  }
  log_evaluations(record);
}

}  // namespace tapestry
