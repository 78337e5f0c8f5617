// What the cosines and sines of a scaled rotation are multiplied by.
#pragma once

#include "parallel_core/config/config.h"

namespace tapestry {

/// F is the rope_scaling_factor, O the original length. yarn: attention_factor, else m(mscale) /
/// m(mscale_all_dim), else m(1), with m(a) = 0.1 a ln F + 1. longrope: attention_factor, else
/// sqrt(1 + ln F / ln O), 1 for F = 1. Others: 1. Sources: rotary_frequencies.h.
double rotary_factor(const RotaryConfig& config);

/// Factor of the angles: m(mscale) / m(mscale_all_dim) of yarn with mscale_on_angles, whose
/// rotary_factor() is then 1; else 1.
double rotary_angle_factor(const RotaryConfig& config);

}  // namespace tapestry
