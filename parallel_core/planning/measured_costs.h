// Times of layouts from what is measured of their ranks' shares, once each.
#pragma once

#include <optional>
#include <string>

#include "parallel_core/planning/costs/costs_file.h"
#include "parallel_core/planning/costs/measure_parts.h"
#include "parallel_core/planning/time/model_times.h"

namespace tapestry::planning {

/// Takes what a machine's file has, and measures what it lacks while there is time.
class MeasuredCosts {
 public:
  /// `seconds`: after which nothing more is measured. `speed`: to know beforehand what would take
  /// too long.
  MeasuredCosts(MachineCosts costs, const MachineSpeed& speed, double seconds);

  /// Of a rank of the layout while `at_once` such ranks of this machine compute, with so many
  /// threads each. Empty where its share makes no model by itself, needs more memory than there
  /// is, or takes longer than what is left of the time.
  std::optional<ModelTimes> times(const Layout& layout, int at_once, int threads);

  /// What messages cost between so many ranks of this machine, and between machines. Without
  /// measurements of such a job (--measure_network) those between threads of this process, which
  /// are measured now.
  MessageCosts messages(int64_t ranks_on_host);

  const MachineCosts& costs() const { return costs_; }
  /// How many shares and groups were measured, not read.
  int measured() const { return measured_; }

 private:
  bool has_room(const AllConfig& share, int at_once) const;

  MachineCosts costs_;
  MachineSpeed speed_;
  double seconds_;
  int measured_ = 0;
};

}  // namespace tapestry::planning
