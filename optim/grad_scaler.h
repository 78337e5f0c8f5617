// Loss scaling: keeps small float16 gradients above zero.
#pragma once

#include <cstdint>
#include <optional>

namespace tapestry::optim {

/// The scale by which a step's loss is multiplied. Static, or dynamic: after `window` finite steps
/// in a row times `factor` (if that is still finite in float32), after an overflow divided by it,
/// but never below 1. A step that is not finite must not be applied. The rule is that of the
/// original's dynamic scaler.
class GradScaler {
 public:
  /// Static; 1 means no scaling. ValueError unless scale > 0 and finite in float32.
  explicit GradScaler(double scale = 1);
  /// Dynamic. ValueError unless initial >= 1, factor > 1 (both finite in float32) and window > 0.
  GradScaler(double initial, double factor, int64_t window);

  float scale() const { return scale_; }
  bool is_dynamic() const { return factor_.has_value(); }
  /// Finite steps since the scale last changed; 0 for a static scale.
  int64_t good_steps() const { return good_steps_; }
  /// Tells whether the step that used scale() had only finite gradients.
  void update(bool finite);

  struct State {
    float scale = 1;
    int64_t good_steps = 0;
  };
  State state() const { return {scale_, good_steps_}; }
  /// ValueError unless the scale is above 0 and finite, and good_steps not negative.
  void set_state(State state);

 private:
  float scale_;
  std::optional<float> factor_;
  int64_t window_ = 0;
  int64_t good_steps_ = 0;
};

}  // namespace tapestry::optim
