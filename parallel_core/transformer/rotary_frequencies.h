// How fast each pair of channels turns.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel_core/config/config.h"

namespace tapestry {

/// Radians a position of the pairs j = 0 .. d/2-1 of `rotary_dim` = d channels: f_j = base^(-2j/d),
/// divided by seq_len_interpolation_factor.
///
/// With rope_type llama3, F the rope_scaling_factor and t_j = O f_j / 2 pi the turns of a pair in
/// the original length O: f_j / F where t_j < low_freq_factor, f_j where t_j > high_freq_factor,
/// and between them (1 - s) f_j / F + s f_j with s = (t_j - low) / (high - low). Source: Llama Team
/// 2024, arXiv:2407.21783, section 3.4.2, with the constants of the models' config.json.
std::vector<double> rotary_frequencies(const RotaryConfig& config, int64_t rotary_dim);

}  // namespace tapestry
