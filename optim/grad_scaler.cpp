#include "optim/grad_scaler.h"

#include <algorithm>
#include <cmath>

#include "autograd/tensor/error.h"

namespace tapestry::optim {

GradScaler::GradScaler(double scale) : scale_(static_cast<float>(scale)) {
  check<ValueError>(scale > 0, "loss_scale must be above 0, got ", scale);
}

GradScaler::GradScaler(double initial, double factor, int64_t window)
    : scale_(static_cast<float>(initial)), factor_(static_cast<float>(factor)), window_(window) {
  check<ValueError>(initial >= 1, "loss_scale_value must be at least 1, got ", initial);
  check<ValueError>(factor > 1, "loss_scale_factor must be above 1, got ", factor);
  check<ValueError>(window > 0, "loss_scale_window must be above 0, got ", window);
}

void GradScaler::update(bool finite) {
  if (!factor_) {
    return;  // a static scale never changes
  }
  if (!finite) {
    good_steps_ = 0;
    scale_ = std::max(1.0F, scale_ / *factor_);
    return;
  }
  ++good_steps_;
  if (good_steps_ >= window_) {
    const float grown = scale_ * *factor_;
    scale_ = std::isfinite(grown) ? grown : scale_;
    good_steps_ = 0;
  }
}

void GradScaler::set_state(State state) {
  scale_ = state.scale;
  good_steps_ = state.good_steps;
}

}  // namespace tapestry::optim
