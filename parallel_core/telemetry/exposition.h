// The text format in which Prometheus reads metrics.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tapestry::telemetry {

using Labels = std::vector<std::pair<std::string, std::string>>;

enum class MetricType { kGauge, kCounter };

/// Builds a text of format version 0.0.4:
///
///   # HELP tapestry_loss Loss of the last step.
///   # TYPE tapestry_loss gauge
///   tapestry_loss{run="a",rank="0"} 2.5
///
/// Backslashes and line breaks are escaped in help texts and values of labels, quotes in the
/// latter; what is no UTF-8 there is U+FFFD. Numbers have all their digits; NaN, +Inf and -Inf are
/// written so. Names are the caller's to get right. Source:
/// prometheus.io/docs/instrumenting/exposition_formats.
class Exposition {
 public:
  /// `common`: labels of every sample, before its own.
  explicit Exposition(const Labels& common);

  /// Begins a metric, whose samples follow.
  void metric(std::string_view name, MetricType type, std::string_view help);
  /// A sample of the metric that has begun last.
  void sample(double value, const Labels& labels = {});
  /// A metric with one sample.
  void single(std::string_view name, MetricType type, std::string_view help, double value);

  const std::string& text() const { return text_; }

 private:
  std::string common_;  // escaped, without braces
  std::string name_;
  std::string text_;
};

}  // namespace tapestry::telemetry
