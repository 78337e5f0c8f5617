#include "parallel_core/rotary_frequencies.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "parallel_core/config/rotary_factor.h"

namespace tapestry {

namespace {

double original_length(const RotaryConfig& config) {
  return static_cast<double>(config.original_max_position_embeddings);
}

std::vector<double> geometric(double base, int64_t rotary_dim) {
  std::vector<double> out;
  for (int64_t j = 0; j < rotary_dim; j += 2) {
    out.push_back(std::pow(base, -static_cast<double>(j) / static_cast<double>(rotary_dim)));
  }
  return out;
}

void divide_as_llama3(const RotaryConfig& config, std::vector<double>& frequencies) {
  for (double& frequency : frequencies) {
    const double turns = original_length(config) * frequency / (2 * std::numbers::pi);
    const double kept = std::clamp(
        (turns - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor), 0.0,
        1.0);
    frequency = (1 - kept) * frequency / config.rope_scaling_factor + kept * frequency;
  }
}

void divide_as_yarn(const RotaryConfig& config,
                    int64_t rotary_dim,
                    std::vector<double>& frequencies) {
  const auto d = static_cast<double>(rotary_dim);
  const auto pair_with_turns = [&](double turns) {
    return d * std::log(original_length(config) / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(config.rotary_base));
  };
  double low = pair_with_turns(config.beta_fast);
  double high = pair_with_turns(config.beta_slow);
  if (config.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, d - 1);
  if (low == high) {
    high += 0.001;  // as transformers does: a step instead of a ramp of no width
  }
  for (size_t j = 0; j < frequencies.size(); ++j) {
    const double ramp = std::clamp((static_cast<double>(j) - low) / (high - low), 0.0, 1.0);
    frequencies[j] =
        frequencies[j] * (1 - ramp) + frequencies[j] / config.rope_scaling_factor * ramp;
  }
}

}  // namespace

RotaryFrequencies rotary_frequencies(const RotaryConfig& config,
                                     int64_t rotary_dim,
                                     int64_t length) {
  const std::string& type = config.rope_type;
  double base = config.rotary_base;
  if (type == "dynamic") {
    const auto d = static_cast<double>(rotary_dim);
    const double original = original_length(config);
    const double factor = config.rope_scaling_factor;
    const double longest = std::max(static_cast<double>(length), original);
    base *= std::pow(factor * longest / original - factor + 1, d / (d - 2));
  }
  RotaryFrequencies out{.of_pairs = geometric(base, rotary_dim), .factor = rotary_factor(config)};
  if (type == "llama3") {
    divide_as_llama3(config, out.of_pairs);
  } else if (type == "yarn") {
    divide_as_yarn(config, rotary_dim, out.of_pairs);
    for (double& frequency : out.of_pairs) {
      frequency *= rotary_angle_factor(config);
    }
  } else if (type == "longrope") {
    const auto& divisors =
        length > config.original_max_position_embeddings ? config.long_factor : config.short_factor;
    for (size_t j = 0; j < out.of_pairs.size(); ++j) {
      out.of_pairs[j] /= divisors.value().at(j);
    }
  }
  if (type == "proportional") {
    const auto turning = static_cast<size_t>(
        std::floor(config.rotary_percent * static_cast<double>(rotary_dim) / 2));
    for (size_t j = turning; j < out.of_pairs.size(); ++j) {
      out.of_pairs[j] = 0;
    }
  }
  const double interpolation =
      config.seq_len_interpolation_factor.value_or(1.0) * (config.rotary_backward ? -1 : 1);
  for (double& frequency : out.of_pairs) {
    frequency /= interpolation;
  }
  return out;
}

bool frequencies_depend_on_length(const RotaryConfig& config) {
  return config.rope_type == "longrope" || config.rope_type == "dynamic";
}

}  // namespace tapestry
