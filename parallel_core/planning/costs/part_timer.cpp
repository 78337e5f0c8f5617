#include "parallel_core/planning/costs/part_timer.h"

#include <algorithm>
#include <charconv>

namespace tapestry::planning {

namespace {

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// Outside of the matrices, what works on each token's hidden state alone.
bool is_divided_by_sequence(const OpRun& run) {
  return has(run.module, "norm") || has(run.op, "norm") || has(run.op, "dropout");
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

void PartTimer::charge(const OpRun& run) {
  const double seconds = since_last();
  if (phase_ == Phase::kUpdate) {
    step_.update += seconds;
    return;
  }
  if (phase_ == Phase::kOther) {
    step_.fixed += seconds;
    return;
  }
  const int64_t layer = layer_of_path(run.module);
  if (layer < 0 || layer >= layers_) {
    add(has(run.module, "embedding") ? step_.before : step_.after, seconds);
    return;
  }
  PartTimes::Layer& part = step_.layers[static_cast<size_t>(layer)];
  add(part.all, seconds);
  if (has(run.op, "attention")) {
    add(part.attention, seconds);
  } else if (is_divided_by_sequence(run)) {
    add(part.norms, seconds);
  }
}

void PartTimer::op_begins(const OpRun& run) { charge(run); }

void PartTimer::op_ended(const OpRun& run) { charge(run); }

void PartTimer::phase_begins(const PhaseRun& phase) {
  step_.fixed += since_last();
  phase_ = phase.name == "forward"                                      ? Phase::kForward
           : phase.name == "backward"                                   ? Phase::kBackward
           : phase.name == "optimizer" || phase.name == "gradient_norm" ? Phase::kUpdate
                                                                        : Phase::kOther;
}

void PartTimer::phase_ended(const PhaseRun& /*phase*/) {
  const double seconds = since_last();
  if (phase_ == Phase::kUpdate) {
    step_.update += seconds;
  } else if (phase_ == Phase::kOther) {
    step_.fixed += seconds;
  } else {
    add(step_.after, seconds);
  }
  phase_ = Phase::kOther;
}

namespace {

template <class Get>
double median(const std::vector<PartTimes>& steps, const Get& get) {
  std::vector<double> values;
  values.reserve(steps.size());
  for (const PartTimes& step : steps) {
    values.push_back(get(step));
  }
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

template <class Get>
PassTime median_pass(const std::vector<PartTimes>& steps, const Get& get) {
  return {.forward = median(steps, [&](const PartTimes& step) { return get(step).forward; }),
          .backward = median(steps, [&](const PartTimes& step) { return get(step).backward; })};
}

}  // namespace

PartTimes median_of(const std::vector<PartTimes>& steps) {
  PartTimes all = steps.front();
  all.before = median_pass(steps, [](const PartTimes& s) { return s.before; });
  all.after = median_pass(steps, [](const PartTimes& s) { return s.after; });
  all.update = median(steps, [](const PartTimes& s) { return s.update; });
  all.fixed = median(steps, [](const PartTimes& s) { return s.fixed; });
  for (size_t i = 0; i < all.layers.size(); ++i) {
    PartTimes::Layer& layer = all.layers[i];
    layer.all = median_pass(steps, [i](const PartTimes& s) { return s.layers[i].all; });
    layer.attention = median_pass(steps, [i](const PartTimes& s) { return s.layers[i].attention; });
    layer.norms = median_pass(steps, [i](const PartTimes& s) { return s.layers[i].norms; });
  }
  return all;
}

}  // namespace tapestry::planning
