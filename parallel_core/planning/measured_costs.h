// Times of layouts from what is measured of their ranks' shares, once each.
#pragma once

#include <optional>
#include <string>

#include "parallel_core/planning/costs/costs_file.h"
#include "parallel_core/planning/costs/measure_parts.h"
#include "parallel_core/planning/time/model_times.h"
#include "parallel_core/planning/time/step_time.h"

namespace tapestry::planning {

/// Takes what a machine's file has, and measures what it lacks while there is time.
class MeasuredCosts {
 public:
  /// `seconds`: after which nothing more is measured. `speed`: to know beforehand what would take
  /// too long.
  MeasuredCosts(MachineCosts costs, const MachineSpeed& speed, double seconds);

  /// Of a rank of the layout, with so many threads, while this machine has as many ranks as a host:
  /// all of them where they talk to each other, else those that compute at once. Empty where its
  /// share makes no model by itself, needs more memory than there is, or takes longer than what is
  /// left of the time.
  std::optional<ModelTimes> times(const Layout& layout, const Hosts& hosts, int threads);

  /// What messages cost between so many ranks of this machine, and between machines. Without
  /// measurements of such a job (--measure_network) those between threads of this process, which
  /// are measured now.
  MessageCosts messages(int64_t ranks_on_host);

  const MachineCosts& costs() const { return costs_; }
  /// How many shares and groups were measured, not read.
  int measured() const { return measured_; }

 private:
  bool has_room(const ShareModel& share, int at_once, double turns) const;
  std::optional<PartTimes> parts(const ShareModel& share, int at_once, double turns, int threads);

  MachineCosts costs_;
  MachineSpeed speed_;
  double seconds_;
  int measured_ = 0;
};

}  // namespace tapestry::planning
