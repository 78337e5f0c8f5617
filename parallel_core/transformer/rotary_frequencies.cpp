#include "parallel_core/transformer/rotary_frequencies.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tapestry {

std::vector<double> rotary_frequencies(const RotaryConfig& config, int64_t rotary_dim) {
  const auto extended = [&](double frequency) {
    const auto length = static_cast<double>(config.original_max_position_embeddings);
    const double turns = length * frequency / (2 * std::numbers::pi);
    const double kept = std::clamp(
        (turns - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor), 0.0,
        1.0);
    return (1 - kept) * frequency / config.rope_scaling_factor + kept * frequency;
  };
  const double factor = config.seq_len_interpolation_factor.value_or(1.0);
  std::vector<double> frequencies;
  for (int64_t j = 0; j < rotary_dim; j += 2) {
    const double exponent = -static_cast<double>(j) / static_cast<double>(rotary_dim);
    const double frequency = std::pow(config.rotary_base, exponent) / factor;
    frequencies.push_back(config.rope_type == "llama3" ? extended(frequency) : frequency);
  }
  return frequencies;
}

}  // namespace tapestry
