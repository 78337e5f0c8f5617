#include "parallel_core/config/rotary_factor.h"

#include <cmath>

namespace tapestry {

namespace {

// m(strength) of the yarn factor.
double yarn_growth(const RotaryConfig& config, double strength) {
  return 0.1 * strength * std::log(config.rope_scaling_factor) + 1;
}

double yarn_factor(const RotaryConfig& config) {
  const auto growth = [&](double strength) { return yarn_growth(config, strength); };
  const double mscale = config.mscale.value_or(0);
  const double all = config.mscale_all_dim.value_or(0);
  return mscale != 0 && all != 0 ? growth(mscale) / growth(all) : growth(1);
}

double longrope_factor(const RotaryConfig& config) {
  const double factor = config.rope_scaling_factor;
  const auto original = static_cast<double>(config.original_max_position_embeddings);
  return factor > 1 ? std::sqrt(1 + std::log(factor) / std::log(original)) : 1;
}

}  // namespace

double rotary_factor(const RotaryConfig& config) {
  if ((config.rope_type != "yarn" && config.rope_type != "longrope") || config.mscale_on_angles) {
    return 1;
  }
  return config.attention_factor.value_or(config.rope_type == "yarn" ? yarn_factor(config)
                                                                     : longrope_factor(config));
}

double rotary_angle_factor(const RotaryConfig& config) {
  return config.rope_type == "yarn" && config.mscale_on_angles
             ? yarn_growth(config, config.mscale.value_or(0)) /
                   yarn_growth(config, config.mscale_all_dim.value_or(0))
             : 1;
}

}  // namespace tapestry
