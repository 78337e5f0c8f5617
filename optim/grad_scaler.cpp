#include "optim/grad_scaler.h"

#include <algorithm>
#include <cmath>

#include "autograd/tensor/error.h"

namespace tapestry::optim {

namespace {

bool usable(float scale) { return scale > 0 && std::isfinite(scale); }

}  // namespace

GradScaler::GradScaler(double scale) : scale_(static_cast<float>(scale)) {
  check<ValueError>(usable(scale_), "loss_scale must be above 0 and finite in float32, got ",
                    scale);
}

GradScaler::GradScaler(double initial, double factor, int64_t window)
    : scale_(static_cast<float>(initial)), factor_(static_cast<float>(factor)), window_(window) {
  check<ValueError>(initial >= 1 && usable(scale_),
                    "loss_scale_value must be at least 1 and finite in float32, got ", initial);
  check<ValueError>(factor > 1 && usable(*factor_),
                    "loss_scale_factor must be above 1 and finite in float32, got ", factor);
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
  check<ValueError>(usable(state.scale) && state.good_steps >= 0,
                    "loss scaler: a state needs a finite scale above 0 and good_steps of at least "
                    "0, got ",
                    state.scale, " and ", state.good_steps);
  scale_ = state.scale;
  good_steps_ = state.good_steps;
}

}  // namespace tapestry::optim
