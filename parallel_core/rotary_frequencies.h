// How fast each pair of channels turns.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel_core/config/config.h"

namespace tapestry {

struct RotaryFrequencies {
  std::vector<double> of_pairs;  ///< radians a position
  double factor = 1;             ///< of cosines and sines
};

/// Frequencies of the pairs j = 0 .. d/2-1 of `rotary_dim` = d channels, in a text of `length`
/// tokens: f_j = base^(-2j/d), divided by seq_len_interpolation_factor. Below, F is the
/// rope_scaling_factor, O the original length and t_j = O f_j / 2 pi the turns of a pair in it.
///
/// llama3: f_j / F where t_j < low_freq_factor, f_j where t_j > high_freq_factor, and between them
/// (1 - s) f_j / F + s f_j with s = (t_j - low) / (high - low). Source: Llama Team 2024,
/// arXiv:2407.21783, section 3.4.2, with the constants of the models' config.json.
///
/// yarn: f_j (1 - r_j) + f_j r_j / F with the ramp r_j = clamp((j - lo) / (hi - lo), 0, 1) between
/// the pairs that make beta_fast and beta_slow turns, c(b) = d ln(O / 2 pi b) / (2 ln base): lo =
/// max(c(beta_fast), 0), hi = min(c(beta_slow), d - 1), rounded to whole pairs if `truncate`. The
/// factor is attention_factor, else m(mscale) / m(mscale_all_dim), else m(1), with m(a) = 0.1 a
/// ln F + 1. With mscale_on_angles the quotient multiplies the frequencies instead, and the factor
/// is 1, as MindFormers 2.0 computes it. Source: Peng et al. 2023, arXiv:2309.00071, with the
/// conventions of transformers.
///
/// longrope: f_j / e_j, where e is long_factor in texts of more than O tokens, else short_factor.
/// The factor is attention_factor, else sqrt(1 + ln F / ln O), 1 for F = 1. Source: Ding et al.
/// 2024, arXiv:2402.13753.
///
/// proportional: f_j of the first floor(rotary_percent d / 2) pairs, 0 of the others, which stand
/// still. Source: Gemma 4, with the conventions of transformers.
///
/// dynamic: the base is multiplied by (F S / O - F + 1)^(d / (d - 2)), S = max(length, O). Source:
/// the NTK-aware scaling that Peng et al. describe in their section 3.3.
RotaryFrequencies rotary_frequencies(const RotaryConfig& config,
                                     int64_t rotary_dim,
                                     int64_t length);

/// Whether the frequencies of a text change while it grows.
bool frequencies_depend_on_length(const RotaryConfig& config);

}  // namespace tapestry
