// Keys of rotary_config that belong together.
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "autograd/tensor/error.h"
#include "parallel_core/config/resolve/resolve.h"
#include "parallel_core/config/rotary_keys.h"
#include "parallel_core/config/schema/schema.h"
#include "parallel_core/config/yaml/value.h"

namespace tapestry::config {

namespace {

const std::string kSection = "model_config.rotary_config.";

// "yarn", "yarn or longrope", "llama3, yarn or longrope".
std::string any_of(const std::vector<std::string_view>& types) {
  std::string out;
  for (size_t i = 0; i < types.size(); ++i) {
    out += i == 0 ? "" : i + 1 == types.size() ? " or " : ", ";
    out += types[i];
  }
  return out;
}

void note_unread(Resolution& r) {
  const std::string& type = r.config().model_config.rotary_config.rope_type;
  const AllConfig usual;
  for (const Key& key : find_section("model_config")->keys) {
    if (!key.name.starts_with("rotary_config.")) {
      continue;
    }
    const std::string_view name = last_name(key);
    if (!rope_type_reads(type, name) &&
        to_yaml(key.field.get(r.config())) != to_yaml(key.field.get(usual))) {
      r.idle(kSection + std::string(name),
             concat("without rope_type: ", any_of(rope_types_with(name))));
    }
  }
}

void check_order(Resolution& r, const char* low, double low_value, const char* high, double value) {
  const std::string low_key = kSection + low;
  const std::string high_key = kSection + high;
  if (r.sound({low_key.c_str(), high_key.c_str()}) && value <= low_value) {
    r.error(r.given(high_key) ? high_key : low_key,
            concat(high, " is ", number_text(value), ", and has to be above ", low, ", which is ",
                   number_text(low_value)));
  }
}

void check_divisors(Resolution& r,
                    const char* name,
                    const std::optional<std::vector<double>>& factors,
                    int64_t pairs) {
  const std::string key = kSection + name;
  if (!r.sound({key.c_str()})) {
    return;
  }
  if (!factors) {
    r.error(key, concat("is needed by rope_type longrope: ", pairs, " numbers, one for each pair ",
                        "of rotated channels"));
    return;
  }
  if (static_cast<int64_t>(factors->size()) != pairs) {
    r.error(key, concat("has ", factors->size(), " numbers, and there are ", pairs,
                        " pairs of rotated channels"));
  }
  for (const double factor : *factors) {
    if (!(factor > 0)) {
      r.error(key, concat("has ", number_text(factor), " among its divisors, expected numbers ",
                          "above 0"));
      return;
    }
  }
}

// mscale_on_angles needs a quotient; one of 1 is that of the usual form too.
void resolve_angles(Resolution& r) {
  RotaryConfig& rotary = r.config().model_config.rotary_config;
  const std::string key = kSection + "mscale_on_angles";
  if (!rotary.mscale_on_angles || !r.sound({key.c_str()})) {
    return;
  }
  if (!rotary.mscale || !rotary.mscale_all_dim) {
    r.error(key, "is True, and needs mscale and mscale_all_dim: their quotient is the factor");
  } else if (rotary.attention_factor) {
    r.error(key, concat("is True, but attention_factor ", number_text(*rotary.attention_factor),
                        " is a factor of queries and keys; leave one of the two out"));
  } else if (*rotary.mscale == *rotary.mscale_all_dim && *rotary.mscale > 0) {
    rotary.mscale_on_angles = false;
  }
}

}  // namespace

void resolve_rotary(Resolution& r) {
  const TransformerConfig& model = r.config().model_config;
  const RotaryConfig& rotary = model.rotary_config;
  note_unread(r);
  if (rotary.rope_type == "default" || rotary.rope_type == "proportional") {
    return;  // whose frequencies may all be divided
  }
  const std::string linear = kSection + "seq_len_interpolation_factor";
  if (r.sound({linear.c_str()}) && rotary.seq_len_interpolation_factor.value_or(1.0) != 1.0) {
    r.error(linear,
            concat("is ", number_text(*rotary.seq_len_interpolation_factor), ", but rope_type ",
                   rotary.rope_type, " has its own rope_scaling_factor; leave one of the two out"));
  }
  if (rotary.rope_type == "llama3") {
    check_order(r, "low_freq_factor", rotary.low_freq_factor, "high_freq_factor",
                rotary.high_freq_factor);
  } else if (rotary.rope_type == "yarn") {
    check_order(r, "beta_slow", rotary.beta_slow, "beta_fast", rotary.beta_fast);
    for (const auto& [one, has, other] :
         {std::tuple("mscale", rotary.mscale && !rotary.mscale_all_dim, "mscale_all_dim"),
          std::tuple("mscale_all_dim", rotary.mscale_all_dim && !rotary.mscale, "mscale")}) {
      if (has) {
        r.error(kSection + one, concat("needs ", other, " beside it: the factor is a quotient"));
      }
    }
    resolve_angles(r);
  } else if (rotary.rope_type == "longrope" && model.kv_channels) {
    const int64_t pairs = rotated_channels(model) / 2;
    check_divisors(r, "short_factor", rotary.short_factor, pairs);
    check_divisors(r, "long_factor", rotary.long_factor, pairs);
  }
}

}  // namespace tapestry::config
