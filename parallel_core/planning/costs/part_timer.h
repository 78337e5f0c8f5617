// Tells the parts of a training step apart by what runs when.
#pragma once

#include <string_view>
#include <vector>

#include "autograd/tape/observer.h"
#include "parallel_core/planning/costs/part_times.h"

namespace tapestry::planning {

/// Observes the steps of a model in one process: every moment belongs to the op that runs, or else
/// to the one that comes next; to its module's layer, and to the pass that the step is in.
class PartTimer final : public Observer {
 public:
  explicit PartTimer(int64_t layers) : layers_(layers) { begin_step(); }

  void begin_step();
  /// Of the step since then, all of its micro-batches together.
  PartTimes end_step();

  void op_begins(const OpRun& run) override;
  void op_ended(const OpRun& run) override;
  void phase_begins(const PhaseRun& phase) override;
  void phase_ended(const PhaseRun& phase) override;

 private:
  enum class Phase : uint8_t { kForward, kBackward, kReduce, kUpdate, kOther };

  void charge(const OpRun& run);
  void charge_step(double seconds);
  bool is_in_pass() const { return phase_ == Phase::kForward || phase_ == Phase::kBackward; }
  double since_last();
  void add(PassTime& part, double seconds) const;

  int64_t layers_;
  double last_ = 0;
  Phase phase_ = Phase::kOther;
  PartTimes step_;
};

/// The layer, from 0, that a module's path lies in; -1: none.
int64_t layer_of_path(std::string_view path);

}  // namespace tapestry::planning
