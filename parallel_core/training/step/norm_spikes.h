// Which global norms are too large to learn from.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "parallel_core/config/config.h"

namespace tapestry {

/// Of losses as of norms: tells spikes by monitor_config's absolute threshold, or by one relative
/// to the median of the last norms that were none, and counts those in a row. All ranks have the
/// same norms and so come to the same conclusions.
class NormSpikes {
 public:
  struct Options {
    double threshold = 3;
    std::optional<double> factor;  ///< of the median, in place of the threshold once it is known
    int64_t window = 32;           ///< norms that the median is of
  };
  explicit NormSpikes(const Options& options) : options_(options) {}

  /// What the next norm is held against: a norm below is none. Infinity: any finite one is none.
  double threshold() const;
  /// Also for a norm that is not finite.
  bool is_spike(double norm) const { return !(norm < threshold()); }
  /// Takes in the norm of a step.
  void observe(double norm);
  /// Spikes since the last norm that was none.
  int64_t count() const { return state_.count; }

  struct State {
    int64_t count = 0;
    std::vector<double> norms;  ///< the last ones that were no spikes, oldest first
  };
  const State& state() const { return state_; }
  /// Norms of a run that had a factor are of no use to one without.
  void set_state(State state);

 private:
  Options options_;
  State state_;
};

/// What monitor_config says; before a median is known, a threshold that was not given is infinite.
NormSpikes::Options norm_spike_options(const AllConfig& config);

}  // namespace tapestry
