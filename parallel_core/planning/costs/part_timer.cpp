#include "parallel_core/planning/costs/part_timer.h"

#include <charconv>

namespace tapestry::planning {

namespace {

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace

int64_t layer_of_path(std::string_view path) {
  constexpr std::string_view kLayers = "layers.";
  const size_t at = path.find(kLayers);
  if (at == std::string_view::npos) {
    return -1;
  }
  int64_t layer = -1;
  std::from_chars(path.data() + at + kLayers.size(), path.data() + path.size(), layer);
  return layer;
}

void PartTimer::begin_step() {
  step_ = {};
  step_.layers.resize(static_cast<size_t>(layers_));
  phase_ = Phase::kOther;
  last_ = observer_clock();
}

PartTimes PartTimer::end_step() {
  step_.fixed += since_last();
  return step_;
}

double PartTimer::since_last() {
  const double now = observer_clock();
  const double passed = now - last_;
  last_ = now;
  return passed;
}

void PartTimer::add(PassTime& part, double seconds) const {
  (phase_ == Phase::kBackward ? part.backward : part.forward) += seconds;
}

// What belongs to no pass.
void PartTimer::charge_step(double seconds) {
  (phase_ == Phase::kReduce   ? step_.reduce
   : phase_ == Phase::kUpdate ? step_.update
                              : step_.fixed) += seconds;
}

void PartTimer::charge(const OpRun& run) {
  const double seconds = since_last();
  if (!is_in_pass()) {
    charge_step(seconds);
    return;
  }
  const int64_t layer = layer_of_path(run.module);
  add(layer >= 0 && layer < layers_  ? step_.layers[static_cast<size_t>(layer)]
      : has(run.module, "embedding") ? step_.before
                                     : step_.after,
      seconds);
}

void PartTimer::op_begins(const OpRun& run) { charge(run); }

void PartTimer::op_ended(const OpRun& run) { charge(run); }

void PartTimer::phase_begins(const PhaseRun& phase) {
  step_.fixed += since_last();
  phase_ = phase.name == "forward"                                      ? Phase::kForward
           : phase.name == "backward"                                   ? Phase::kBackward
           : phase.name == "reduce_gradients"                           ? Phase::kReduce
           : phase.name == "optimizer" || phase.name == "gradient_norm" ? Phase::kUpdate
                                                                        : Phase::kOther;
}

void PartTimer::phase_ended(const PhaseRun& /*phase*/) {
  const double seconds = since_last();
  if (is_in_pass()) {
    add(step_.after, seconds);
  } else {
    charge_step(seconds);
  }
  phase_ = Phase::kOther;
}

}  // namespace tapestry::planning
