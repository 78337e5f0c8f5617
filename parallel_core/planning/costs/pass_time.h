// Seconds of a part of the model in one micro-batch.
#pragma once

namespace tapestry::planning {

/// Seconds that one rank is busy.
struct PassTime {
  double forward = 0;
  double backward = 0;

  double both() const { return forward + backward; }
  PassTime& operator+=(const PassTime& other) {
    forward += other.forward;
    backward += other.backward;
    return *this;
  }
  PassTime operator*(double factor) const { return {forward * factor, backward * factor}; }
  bool operator==(const PassTime&) const = default;
};

}  // namespace tapestry::planning
