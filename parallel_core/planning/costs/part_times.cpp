#include "parallel_core/planning/costs/part_times.h"

#include <cstddef>

namespace tapestry::planning {

double PartTimes::step(double micro_batches) const {
  double passes = before.both() + after.both();
  for (const PassTime& layer : layers) {
    passes += layer.both();
  }
  return micro_batches * passes + reduce + update + fixed;
}

PartTimes& PartTimes::operator+=(const PartTimes& other) {
  layers.resize(other.layers.size());
  for (size_t i = 0; i < layers.size(); ++i) {
    layers[i] += other.layers[i];
  }
  before += other.before;
  after += other.after;
  reduce += other.reduce;
  update += other.update;
  fixed += other.fixed;
  parameters = other.parameters;
  return *this;
}

PartTimes& PartTimes::operator*=(double factor) {
  for (PassTime& layer : layers) {
    layer = layer * factor;
  }
  before = before * factor;
  after = after * factor;
  reduce *= factor;
  update *= factor;
  fixed *= factor;
  return *this;
}

}  // namespace tapestry::planning
