#include "interop/architectures/gguf_scaling.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "autograd/tensor/error.h"
#include "interop/architectures/rules.h"
#include "parallel_core/config/rotary_factor.h"

namespace tapestry::architectures {

namespace {

constexpr std::string_view kAttentionFactor = "rope.scaling.attn_factor";
constexpr std::string_view kBetaFast = "rope.scaling.yarn_beta_fast";

const RotaryConfig& rotary_of(const AllConfig& config) { return config.model_config.rotary_config; }
bool is_scaled_as(const AllConfig& config, std::string_view type) {
  return config.model_config.position_embedding_type == "rope" &&
         rotary_of(config).rope_type == type;
}
double linear_factor(const AllConfig& config) {
  return is_scaled_as(config, "default")
             ? rotary_of(config).seq_len_interpolation_factor.value_or(1.0)
             : 1.0;
}

Value scaling_type(const AllConfig& config) {
  if (is_scaled_as(config, "yarn") || is_scaled_as(config, "longrope")) {
    return rotary_of(config).rope_type;
  }
  return linear_factor(config) != 1.0 ? Value(std::string("linear")) : Value();
}

// longrope's divisors have it in them.
void take_type(const Value& value, AllConfig& config) {
  RotaryConfig& rotary = config.model_config.rotary_config;
  RotaryConfig plain;
  plain.rotary_percent = rotary.rotary_percent;
  plain.rotary_base = rotary.rotary_base;
  plain.rotary_interleaved = rotary.rotary_interleaved;
  plain.rotary_backward = rotary.rotary_backward;
  plain.sliding_rotary_base = rotary.sliding_rotary_base;
  rotary = plain;
  if (value == Value(std::string("yarn")) || value == Value(std::string("longrope"))) {
    rotary.rope_type = value.as<std::string>();
  } else if (value == Value(std::string("linear"))) {
    rotary.seq_len_interpolation_factor = 1.0;
  }
}

Value scaling_factor(const AllConfig& config) {
  if (is_scaled_as(config, "yarn")) {
    return rotary_of(config).rope_scaling_factor;
  }
  return linear_factor(config) != 1.0 ? Value(linear_factor(config)) : Value();
}

void take_factor(const Value& value, AllConfig& config) {
  if (is_scaled_as(config, "yarn")) {
    set_value(config, "rotary_config.rope_scaling_factor", value);
  } else if (rotary_of(config).seq_len_interpolation_factor) {
    set_value(config, "rotary_config.seq_len_interpolation_factor", value);
  }
}

Value original_length(const AllConfig& config) {
  const bool has_one = is_scaled_as(config, "yarn") || is_scaled_as(config, "longrope");
  return has_one ? Value(rotary_of(config).original_max_position_embeddings) : Value();
}

void take_original_length(const Value& value, AllConfig& config) {
  if (value.is_null()) {
    return;
  }
  set_value(config, "rotary_config.original_max_position_embeddings", value);
  if (is_scaled_as(config, "longrope")) {
    // Which has no factor of its own there.
    config.model_config.rotary_config.rope_scaling_factor =
        static_cast<double>(config.model_config.max_position_embeddings.value_or(1)) /
        static_cast<double>(
            std::max<int64_t>(1, rotary_of(config).original_max_position_embeddings));
  }
}

// What llama.cpp multiplies them by of its own accord: 1 + 0.1 ln(factor), with yarn.
double usual_growth(const AllConfig& config) {
  return 1 + 0.1 * std::log(rotary_of(config).rope_scaling_factor);
}

Value unless_1(double factor) { return std::abs(factor - 1) > 1e-9 ? Value(factor) : Value(); }

Value attention_factor(const AllConfig& config) {
  if (is_scaled_as(config, "yarn")) {
    return unless_1(rotary_factor(rotary_of(config)) / usual_growth(config));
  }
  return is_scaled_as(config, "longrope") ? unless_1(rotary_factor(rotary_of(config))) : Value();
}

// What follows from the lengths alone is not said.
void take_attention_factor(const Value& value, AllConfig& config) {
  RotaryConfig& rotary = config.model_config.rotary_config;
  const double written = value.is<double>() ? value.as<double>() : 1;
  if (is_scaled_as(config, "yarn") && !value.is_null()) {
    const double factor = written * usual_growth(config);
    const double round = std::round(factor * 1e6) / 1e6;  // as it stood in a file
    rotary.attention_factor = std::abs(factor - round) < 1e-6 ? round : factor;
  } else if (is_scaled_as(config, "longrope")) {
    rotary.attention_factor.reset();
    if (std::abs(rotary_factor(rotary) / written - 1) > 1e-6) {
      rotary.attention_factor = written;
    }
  }
}

Value beta_fast(const AllConfig& config) {
  return is_scaled_as(config, "yarn") ? Value(rotary_of(config).beta_fast) : Value();
}
Value beta_slow(const AllConfig& config) {
  return is_scaled_as(config, "yarn") ? Value(rotary_of(config).beta_slow) : Value();
}
void take_beta_fast(const Value& value, AllConfig& config) {
  if (is_scaled_as(config, "yarn") && !value.is_null()) {
    set_value(config, "rotary_config.beta_fast", value);
  }
}
void take_beta_slow(const Value& value, AllConfig& config) {
  if (is_scaled_as(config, "yarn") && !value.is_null()) {
    set_value(config, "rotary_config.beta_slow", value);
  }
}

// With latent attention llama.cpp multiplies scores by (a (1 + m ln(factor)))^2, a being the factor
// of cosines and sines, m what the key says. Nothing where that is 0.
std::optional<double> latent_growth(const AllConfig& config) {
  const double factor = rotary_of(config).rope_scaling_factor;
  if (!is_scaled_as(config, "yarn") || factor <= 1) {
    return std::nullopt;
  }
  TransformerConfig plain = config.model_config;
  plain.attention_scale.reset();
  plain.rotary_config.rope_type = "default";
  const double scores = attention_scale(config.model_config) / attention_scale(plain);
  const double growth =
      (std::sqrt(scores) / rotary_factor(rotary_of(config)) - 1) / std::log(factor);
  return std::abs(growth) > 1e-9 ? std::optional(growth) : std::nullopt;
}
Value latent_multiplier(const AllConfig& config) {
  const std::optional<double> growth = latent_growth(config);
  return growth ? Value(*growth) : Value();
}
double rounded(double value) { return std::round(value * 1e6) / 1e6; }
// With a, the factor of cosines and sines, and L = ln(factor): a (1 + m L) = 1 + 0.1 L
// mscale_all_dim and a (1 + 0.1 L mscale_all_dim) = 1 + 0.1 L mscale.
void take_latent_multiplier(const Value& value, AllConfig& config) {
  RotaryConfig& rotary = config.model_config.rotary_config;
  const double length = std::log(rotary.rope_scaling_factor);
  if (!is_scaled_as(config, "yarn") || !value.is<double>() || !(length > 0)) {
    return;
  }
  // Without the key, the usual growth is in it.
  const double a = rotary.attention_factor ? *rotary.attention_factor / usual_growth(config) : 1;
  const double all = (a * (1 + value.as<double>() * length) - 1) / (0.1 * length);
  rotary.attention_factor.reset();
  rotary.mscale_all_dim = rounded(all);
  rotary.mscale = rounded((a * (1 + 0.1 * length * all) - 1) / (0.1 * length));
}
// Where the key is there, cosines and sines grow by this alone.
Value latent_attention_factor(const AllConfig& config) {
  return latent_growth(config) ? unless_1(rotary_factor(rotary_of(config)))
                               : attention_factor(config);
}

}  // namespace

void add_scaling_keys(GgufTables& gguf) {
  for (const GgufKey& key :
       {GgufKey{.key = "rope.scaling.type", .made = scaling_type, .back = take_type},
        GgufKey{.key = "rope.scaling.factor", .made = scaling_factor, .back = take_factor},
        GgufKey{.key = "rope.scaling.original_context_length",
        .made = original_length,
        .back = take_original_length},
        GgufKey{
            .key = kAttentionFactor, .made = attention_factor, .back = take_attention_factor}}) {
    gguf.keys.push_back(key);
  }
}

void add_yarn_ends(GgufTables& gguf) {
  gguf.keys.push_back({.key = kBetaFast, .made = beta_fast, .back = take_beta_fast});
  gguf.keys.push_back(
      {.key = "rope.scaling.yarn_beta_slow", .made = beta_slow, .back = take_beta_slow});
}

void use_latent_scaling(GgufTables& gguf) {
  for (GgufKey& key : gguf.keys) {
    if (key.key == kAttentionFactor) {
      key.made = latent_attention_factor;
    }
  }
  gguf.keys.push_back({.key = "rope.scaling.yarn_log_multiplier",
                       .made = latent_multiplier,
                       .back = take_latent_multiplier});
}

void object_to_scaling(const GgufTables& gguf,
                       const AllConfig& config,
                       std::vector<Objection>& out) {
  constexpr const char* kType = "rotary_config.rope_type";
  const RotaryConfig& rotary = rotary_of(config);
  if (rotary.rope_type == "default" || config.model_config.position_embedding_type != "rope") {
    return;
  }
  std::string known = "default";
  for (const std::string_view type : gguf.scalings) {
    known += concat(" or ", type);
  }
  if (std::find(gguf.scalings.begin(), gguf.scalings.end(), rotary.rope_type) ==
      gguf.scalings.end()) {
    object_unless(config, kType, Value(std::string("default")), out, concat("use ", known));
    return;
  }
  if (rotary.rope_type != "yarn") {
    return;
  }
  if (rotary.sliding_rotary_base && !attention_factor(config).is_null()) {
    object_unless(config, "rotary_config.attention_factor", Value(), out,
                  "llama.cpp multiplies layers with a window by it too: leave it, mscale and "
                  "mscale_all_dim out");
  }
  const bool reads_ends = std::any_of(gguf.keys.begin(), gguf.keys.end(),
                                      [](const GgufKey& key) { return key.key == kBetaFast; });
  if (!reads_ends) {
    object_unless(config, "rotary_config.beta_fast", Value(32.0), out,
                  "llama.cpp has 32 in this architecture");
    object_unless(config, "rotary_config.beta_slow", Value(1.0), out,
                  "llama.cpp has 1 in this architecture");
  }
}

std::vector<std::string> departures_of_scaling(const TransformerConfig& config) {
  const RotaryConfig& rotary = config.rotary_config;
  const bool is_yarn = config.position_embedding_type == "rope" && rotary.rope_type == "yarn";
  return is_yarn && !rotary.truncate
             ? std::vector<std::string>{"rotary_config.truncate is False, and llama.cpp rounds the "
                                        "ends of yarn's ramp to whole pairs of channels: its "
                                        "numbers depart a little from this model's"}
             : std::vector<std::string>();
}

}  // namespace tapestry::architectures
