#include "parallel_core/training/watch/step_monitor.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <utility>

#include "autograd/kernels/reduce.h"
#include "autograd/ops/map.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"
#include "parallel_core/comm/sum_over.h"
#include "parallel_core/config/yaml/value.h"
#include "parallel_core/dist_checkpointing/agreement.h"
#include "parallel_core/distributed/finalize_model_grads.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/parameter_ranks.h"
#include "parallel_core/pipeline_parallel/collect.h"
#include "parallel_core/training/log/logging.h"
#include "parallel_core/training/watch/token_tables.h"
#include "text/util/numbers.h"
#include "text/util/regular_expression.h"

namespace tapestry {

namespace {

bool contains(const MonitorConfig::Formats& formats, std::string_view format) {
  return formats && std::find(formats->begin(), formats->end(), format) != formats->end();
}

double squares_of(const Tensor& values) {
  const Tensor all = dense(values.detach());
  return kernels::sum_of_squares(all.dtype(), all.numel(), all.raw());
}

// What this rank adds to the sum of squares of a whole tensor of which it has elements from number
// `first` on.
double own_squares(const nn::Parameter& parameter, const Tensor& part, int64_t first) {
  return squares_of(part) - repeated_squares(parameter, part.detach(), first);
}

bool is_sharded(const nn::Parameter& parameter) {
  return parameter.flags().tp == nn::TensorParallel::kSharded;
}

// One number of each rank of the world, in the order of the ranks.
std::vector<double> of_all_ranks(double own) {
  ProcessGroup& world = get_world_group();
  const Tensor all = empty({world.size()}, kFloat64);
  world.all_gather(all, full({1}, own, kFloat64));
  return {all.data<double>(), all.data<double>() + world.size()};
}

std::string formatted(const std::string& format, double value) {
  char text[60];
  const double shown = without_nan_sign(value);
  if (format == "scientific") {
    std::snprintf(text, sizeof(text), "%.6e", shown);
  } else if (format == "general") {
    std::snprintf(text, sizeof(text), "%g", shown);
  } else {
    std::snprintf(text, sizeof(text), "%.4f", shown);
  }
  return text;
}

}  // namespace

std::string monitor_log_line(const StaticLogPlace& place,
                             const std::string& tag,
                             double value,
                             const std::string& format) {
  return concat(place_text(place), " ", tag, ": ", formatted(format, value));
}

StepMonitor::StepMonitor(TrainOneStepCell& cell, const AllConfig& config, RunLength length)
    : cell_(cell), config_(config), monitor_(config.monitor_config), length_(std::move(length)) {
  std::vector<RegularExpression> patterns;
  for (const std::string& pattern : monitor_.target) {
    patterns.emplace_back(pattern, "monitor_config.target");
  }
  double chosen = 0;
  for (const nn::Module::NamedParameter& entry : cell.network().trained_parameters()) {
    if (entry.parameter->flags().shared) {
      continue;  // the stage that owns it speaks of it
    }
    const bool matches = std::any_of(patterns.begin(), patterns.end(), [&](const auto& pattern) {
      return pattern.is_found_in(entry.name);
    });
    parameters_.push_back({entry.name, entry.parameter, matches != monitor_.invert});
    all_.insert(entry.name);
    chosen += parameters_.back().chosen ? 1 : 0;
  }
  const std::vector<std::string> tables = token_tables(cell.network());
  token_tables_ = {tables.begin(), tables.end()};
  if (monitor_.monitor_on && (monitor_.local_norm_format || monitor_.optimizer_state_format) &&
      sum_over(get_world_group(), chosen) == 0) {
    log_warning("monitor_config.target chooses no parameter: nothing is measured for it");
  }
}

bool StepMonitor::is_due(int64_t step) const {
  return monitor_.monitor_on && step % monitor_.step_interval == 0;
}

void StepMonitor::before(int64_t step) {
  if (config_.optimizer_config.optimizer_in_backward) {
    return;  // the configuration refuses what would need them
  }
  const bool wants_all =
      monitor_.local_norm || monitor_.check_for_nan_in_loss_and_grad ||
      config_.training_config.check_for_nan_in_grad ||
      (is_due(step) && (monitor_.local_norm_format || monitor_.device_local_norm_format));
  cell_.measure_local(wants_all                                ? all_
                      : monitor_.use_checkpoint_health_monitor ? token_tables_
                                                               : std::set<std::string>());
}

void StepMonitor::show(FinishedStep& step,
                       const Formats& formats,
                       const std::string& tag,
                       double value) const {
  if (contains(formats, "log")) {
    step.lines.push_back(monitor_log_line(place_of_step(step.record.step, length_), tag, value,
                                          monitor_.value_format));
  }
  if (contains(formats, "tensorboard")) {
    step.record.scalars[tag] = value;
  }
}

void StepMonitor::show_of_parameter(FinishedStep& step,
                                    const Formats& formats,
                                    const std::string& kind,
                                    const Parameter& parameter,
                                    double value) const {
  const std::string tag = concat(kind, "/", parameter.name);
  show(step, formats, tag, value);
  step.record.parameter_values[tag] = value;
}

void StepMonitor::take_local_losses(FinishedStep& step) const {
  const std::vector<double>& losses = step.result.local_losses;
  if (losses.empty()) {
    return;
  }
  const double sum = std::accumulate(losses.begin(), losses.end(), 0.0);
  const double mean = sum / static_cast<double>(losses.size());
  if (contains(monitor_.local_loss_format, "log")) {
    for (const double loss : losses) {
      show(step, std::vector<std::string>{"log"}, "micro_local_loss", loss);
    }
  }
  if (contains(monitor_.local_loss_format, "tensorboard")) {
    step.record.scalars["local_loss"] = mean;
  }
  show(step, monitor_.device_local_loss_format, "device_accum_local_loss", sum);
}

void StepMonitor::take_local_norms(FinishedStep& step) const {
  double sum = 0;
  for (const Parameter& parameter : parameters_) {
    const auto found = step.result.local_squares.find(parameter.name);
    if (found == step.result.local_squares.end()) {
      continue;
    }
    sum += found->second;
    if (parameter.chosen && monitor_.local_norm_format) {
      show_of_parameter(step, monitor_.local_norm_format, "local_norm", parameter,
                        std::sqrt(found->second));
    }
  }
  if (monitor_.device_local_norm_format) {
    show(step, monitor_.device_local_norm_format, "device_local_norm", std::sqrt(sum));
    step.record.rank_values["device_local_norm"] = of_all_ranks(std::sqrt(sum));
  }
}

// The sums of squares that runner_wrapper.local_norm asks for.
void StepMonitor::list_local_norms(FinishedStep& step) const {
  for (const Parameter& parameter : parameters_) {
    const double squares = step.result.local_squares.at(parameter.name);
    char text[100];
    std::snprintf(text, sizeof(text), ", sum of squares %.9g, norm %.9g", without_nan_sign(squares),
                  without_nan_sign(std::sqrt(squares)));
    step.lines.push_back(concat("local_norm: ", parameter.name, " ", parameter.parameter->shape(),
                                ", ", parameter.parameter->numel(), " elements", text));
    step.record.parameter_values[concat("local_squares/", parameter.name)] = squares;
  }
}

void StepMonitor::take_optimizer_state(FinishedStep& step) const {
  const optim::Optimizer& optimizer = cell_.optimizer();
  // Statistics of rows and columns are no elements of anything: they have no such norm.
  const auto states_of = [&](const Parameter& parameter) {
    std::vector<std::string> keys;
    for (const auto& entry : optimizer.state_entries(parameter.name)) {
      if (entry.extent == optim::StateExtent::kElement) {
        keys.push_back(entry.key);
      }
    }
    return keys;
  };
  // By what has to be summed: of experts or not, slices or not.
  std::array<std::vector<double>, 4> sums;
  const auto sums_of = [&](const nn::Parameter& parameter) -> std::vector<double>& {
    return sums[(parameter.flags().expert ? 2 : 0) + (is_sharded(parameter) ? 1 : 0)];
  };
  for (const Parameter& parameter : parameters_) {
    if (!parameter.chosen) {
      continue;
    }
    const auto own = optimizer.own_state(parameter.name);
    const optim::Optimizer::OwnPart part = optimizer.own_part(parameter.name);
    for (const std::string& key : states_of(parameter)) {
      const auto found = own.find(key);
      const double squares =
          found == own.end() ? 0 : own_squares(*parameter.parameter, found->second, part.first);
      sums_of(*parameter.parameter).push_back(squares);
    }
  }
  for (const bool of_experts : {false, true}) {
    for (const bool slices : {false, true}) {
      std::vector<double>& values = sums[(of_experts ? 2 : 0) + (slices ? 1 : 0)];
      if (optimizer.updates_pieces()) {
        sum_over(copies_group(of_experts), values);
      }
      if (slices) {
        sum_over(slices_group(of_experts), values);
      }
      if (of_experts) {
        sum_over(experts_group(), values);
      }
    }
  }
  std::array<size_t, 4> next = {};
  for (const Parameter& parameter : parameters_) {
    if (!parameter.chosen) {
      continue;
    }
    for (const std::string& key : states_of(parameter)) {
      const std::vector<double>& values = sums_of(*parameter.parameter);
      const double squares = values[next[static_cast<size_t>(&values - sums.data())]++];
      const std::string kind = key == "exp_avg"      ? "adam_m_norm"
                               : key == "exp_avg_sq" ? "adam_v_norm"
                                                     : key + "_norm";
      show_of_parameter(step, monitor_.optimizer_state_format, kind, parameter,
                        std::sqrt(std::max(squares, 0.0)));
    }
  }
}

void StepMonitor::take_weights(FinishedStep& step) const {
  const optim::Optimizer& optimizer = cell_.optimizer();
  std::array<double, 2> parts = {};  // that of the experts last
  for (const Parameter& parameter : parameters_) {
    const bool of_expert = parameter.parameter->flags().expert;
    if (is_sharded(*parameter.parameter) || slices_group(of_expert).rank() == 0) {
      parts[of_expert ? 1 : 0] +=
          own_squares(*parameter.parameter, optimizer.own_main_param(parameter.name),
                      optimizer.own_part(parameter.name).first);
    }
  }
  for (const bool of_experts : {false, true}) {
    double& part = parts[of_experts ? 1 : 0];
    if (of_experts && !has_experts(cell_.network())) {
      continue;
    }
    part = optimizer.updates_pieces() ? sum_over(copies_group(of_experts), part) : part;
    part = sum_over(slices_group(of_experts), part);
    part = of_experts ? sum_over(experts_group(), part) : part;
  }
  double squares = parts[0] + parts[1];
  squares = sum_over(get_pipeline_model_parallel_group(), squares);
  const double norm = std::sqrt(std::max(squares, 0.0));
  step.record.values["weight_norm"] = norm;
  show(step, monitor_.weight_state_format, "weight_norm", norm);
}

void StepMonitor::take_throughput(FinishedStep& step) const {
  const double rate = static_cast<double>(step.result.sequences) / get_world_group().size() /
                      std::max(step.record.step_time_ms / 1000, 1e-9);
  const double linearity = rate / *monitor_.throughput_baseline;
  step.record.values["throughput_linearity"] = linearity;
  show(step, std::vector<std::string>{"log", "tensorboard"}, "throughput_linearity", linearity);
}

void StepMonitor::take_times(FinishedStep& step) {
  const std::vector<double> times = of_all_ranks(compute_ms_ / static_cast<double>(timed_steps_));
  step.record.rank_values["compute_ms"] = times;
  std::vector<double> sorted = times;
  std::sort(sorted.begin(), sorted.end());
  const size_t middle = sorted.size() / 2;
  const double median =
      sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
  for (size_t rank = 0; monitor_.slow_rank_factor && rank < times.size(); ++rank) {
    if (times[rank] >= *monitor_.slow_rank_factor * median) {
      char text[160];
      std::snprintf(text, sizeof(text),
                    "slow rank %zu: its passes took %.2f ms a step, %.2f times the median of all "
                    "ranks, over %lld steps",
                    rank, times[rank], times[rank] / std::max(median, 1e-9),
                    static_cast<long long>(timed_steps_));
      step.warnings.emplace_back(text);
    }
  }
  timed_steps_ = 0;
  compute_ms_ = 0;
}

// All stages' parameters, in the order of the stages.
void StepMonitor::print_structure(FinishedStep& step) const {
  std::string own;
  for (const Parameter& parameter : parameters_) {
    own += concat(parameter.name, " ", parameter.parameter->shape(), "\n");
  }
  for (const std::string& stage : all_gather_text(get_pipeline_model_parallel_group(), own)) {
    for (size_t at = 0; at < stage.size();) {
      const size_t end = stage.find('\n', at);
      step.lines.push_back(concat("parameter: ", stage.substr(at, end - at)));
      at = end + 1;
    }
  }
  step.stops = true;
}

void StepMonitor::after(FinishedStep& step) {
  ++steps_;
  ++timed_steps_;
  compute_ms_ += step.result.compute_ms;
  if (monitor_.local_norm) {
    list_local_norms(step);
  }
  if (monitor_.monitor_on && monitor_.print_struct && steps_ == 1) {
    print_structure(step);
  }
  if (is_due(step.record.step)) {
    take_local_losses(step);
    if (monitor_.local_norm_format || monitor_.device_local_norm_format) {
      take_local_norms(step);
    }
    if (monitor_.optimizer_state_format) {
      take_optimizer_state(step);
    }
    if (monitor_.weight_state_format) {
      take_weights(step);
    }
    if (monitor_.throughput_baseline) {
      take_throughput(step);
    }
    take_times(step);
  }
  const bool any_of_parameters =
      monitor_.local_norm ||
      (is_due(step.record.step) && (monitor_.local_norm_format || monitor_.optimizer_state_format));
  if (any_of_parameters) {
    step.record.parameter_values = gather_over_pipeline(step.record.parameter_values);
  }
}

}  // namespace tapestry
