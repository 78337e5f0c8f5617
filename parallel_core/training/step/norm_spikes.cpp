#include "parallel_core/training/step/norm_spikes.h"

#include <algorithm>
#include <utility>

namespace tapestry {

double NormSpikes::threshold() const {
  const auto size = static_cast<int64_t>(state_.norms.size());
  if (!options_.factor || size < options_.window) {
    return options_.threshold;
  }
  std::vector<double> sorted(state_.norms.end() - options_.window, state_.norms.end());
  const auto middle = static_cast<size_t>(options_.window / 2);
  std::sort(sorted.begin(), sorted.end());
  const double median =
      options_.window % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
  return *options_.factor * median;
}

void NormSpikes::observe(double norm) {
  if (is_spike(norm)) {
    ++state_.count;
    return;
  }
  state_.count = 0;
  if (options_.factor) {
    state_.norms.push_back(norm);
    const auto surplus = static_cast<int64_t>(state_.norms.size()) - options_.window;
    state_.norms.erase(state_.norms.begin(), state_.norms.begin() + std::max<int64_t>(surplus, 0));
  }
}

void NormSpikes::set_state(State state) {
  state_ = std::move(state);
  if (!options_.factor) {
    state_.norms.clear();
  }
}

NormSpikes::Options norm_spike_options(const AllConfig& config) {
  const MonitorConfig& m = config.monitor_config;
  const bool is_none = m.global_norm_spike_threshold == std::numeric_limits<double>::max();
  return {.threshold =
              is_none ? std::numeric_limits<double>::infinity() : m.global_norm_spike_threshold,
          .factor = m.global_norm_spike_factor,
          .window = m.global_norm_median_window};
}

}  // namespace tapestry
