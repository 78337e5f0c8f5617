#include "interop/architectures/rotary_scaling.h"

#include <cmath>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "autograd/tensor/error.h"
#include "parallel_core/config/rotary_keys.h"
#include "parallel_core/config/schema/schema.h"

namespace tapestry::architectures {

namespace {

using config::Value;
using hf::Fields;
using hf::Json;

constexpr double kAboveZero = std::numeric_limits<double>::min();
constexpr const char* kLength = "original_max_position_embeddings";

// Reads the members of one scaling object; the first thing that is wrong is noted.
class ScalingReader {
 public:
  ScalingReader(Fields& file, const std::string& name, const Json& object)
      : file_(file), name_(name), object_(object) {}

  bool is_sound() const { return sound_; }

  std::optional<double> number(const char* key, double least) {
    const auto found = object_.find(key);
    if (found == object_.end() || found->is_null()) {
      return std::nullopt;
    }
    if (!is_number(*found, least)) {
      wrong(key, least, *found);
      return std::nullopt;
    }
    return found->get<double>();
  }
  double needed(const char* key, double least) {
    const std::optional<double> value = number(key, least);
    if (!value && sound_) {
      finding(concat("expected a number ", key, " beside rope_type ", type(), ", got ",
                     object_.dump()));
    }
    return value.value_or(1);
  }
  void number(const char* key, double least, double& member) {
    member = number(key, least).value_or(member);
  }
  void flag(const char* key, bool& member) {
    if (const auto found = object_.find(key); found != object_.end() && !found->is_null()) {
      if (!found->is_boolean()) {
        finding(concat(key, ": expected true or false, got ", found->dump()));
        return;
      }
      member = found->get<bool>();
    }
  }
  std::optional<std::vector<double>> divisors(const char* key) {
    const auto found = object_.find(key);
    std::vector<double> out;
    const bool is_list = found != object_.end() && found->is_array() && !found->empty();
    for (const Json& one : is_list ? *found : Json::array()) {
      if (!is_number(one, kAboveZero)) {
        finding(concat(key, ": expected numbers above 0, got ", one.dump()));
        return std::nullopt;
      }
      out.push_back(one.get<double>());
    }
    if (!is_list) {
      finding(
          concat("expected a list ", key, " beside rope_type ", type(), ", got ", object_.dump()));
    }
    return out;
  }
  // The length that the model was first trained on; transformers looks for it in this order.
  int64_t length(bool needs_own) {
    std::optional<double> found = number(kLength, 1);
    if (!found && !needs_own) {
      found = static_cast<double>(file_.find(kLength) != nullptr
                                      ? file_.size(kLength, 1).value
                                      : file_.size_of("max_position_embeddings"));
    }
    const double value = found.value_or(0);
    if (sound_ &&
        (value < 1 || value > static_cast<double>(hf::kMaxSize) || value != std::floor(value))) {
      finding(concat("expected a length ", kLength, " beside rope_type ", type(), ", got ",
                     object_.dump()));
      return 1;
    }
    return static_cast<int64_t>(value);
  }
  void finding(const std::string& text) {
    sound_ = false;
    file_.finding(name_, text);
  }
  std::string type() const {
    for (const char* key : {"rope_type", "type"}) {
      if (const auto found = object_.find(key); found != object_.end()) {
        return found->is_string() ? found->get<std::string>() : found->dump();
      }
    }
    return {};
  }

 private:
  static bool is_number(const Json& json, double least) {
    return json.is_number() && std::isfinite(json.get<double>()) && json.get<double>() >= least;
  }
  void wrong(const char* key, double least, const Json& got) {
    finding(concat(key, ": expected a number ",
                   least == kAboveZero ? std::string("above 0") : concat("of ", least, " or more"),
                   ", got ", got.dump()));
  }

  Fields& file_;
  const std::string& name_;
  const Json& object_;
  bool sound_ = true;
};

void read_llama3(ScalingReader& reader, RotaryConfig& out) {
  out.rope_scaling_factor = reader.needed("factor", 1.0);
  out.low_freq_factor = reader.needed("low_freq_factor", kAboveZero);
  out.high_freq_factor = reader.needed("high_freq_factor", kAboveZero);
  out.original_max_position_embeddings = reader.length(/*needs_own=*/true);
  if (reader.is_sound() && out.high_freq_factor <= out.low_freq_factor) {
    reader.finding(concat("high_freq_factor ", out.high_freq_factor,
                          ": expected a number above low_freq_factor ", out.low_freq_factor));
  }
}

// Without a factor the longest texts are as long as max_position_embeddings.
double factor_of_lengths(ScalingReader& reader, const Fields& file, int64_t original) {
  const std::optional<double> factor = reader.number("factor", 1.0);
  const auto longest = static_cast<double>(file.size_of("max_position_embeddings"));
  return factor.value_or(std::max(1.0, longest / static_cast<double>(original)));
}

void read_yarn(ScalingReader& reader, const Fields& file, RotaryConfig& out) {
  out.original_max_position_embeddings = reader.length(/*needs_own=*/false);
  out.rope_scaling_factor = factor_of_lengths(reader, file, out.original_max_position_embeddings);
  reader.number("beta_fast", kAboveZero, out.beta_fast);
  reader.number("beta_slow", kAboveZero, out.beta_slow);
  reader.flag("truncate", out.truncate);
  out.attention_factor = reader.number("attention_factor", kAboveZero);
  const std::optional<double> mscale = reader.number("mscale", 0);
  const std::optional<double> all = reader.number("mscale_all_dim", 0);
  if (mscale.value_or(0) != 0 && all.value_or(0) != 0) {  // else neither counts
    out.mscale = mscale;
    out.mscale_all_dim = all;
  }
  if (reader.is_sound() && out.beta_fast <= out.beta_slow) {
    reader.finding(
        concat("beta_fast ", out.beta_fast, ": expected a number above beta_slow ", out.beta_slow));
  }
}

void read_longrope(ScalingReader& reader, const Fields& file, RotaryConfig& out) {
  out.original_max_position_embeddings = reader.length(/*needs_own=*/false);
  out.rope_scaling_factor = factor_of_lengths(reader, file, out.original_max_position_embeddings);
  out.short_factor = reader.divisors("short_factor");
  out.long_factor = reader.divisors("long_factor");
  out.attention_factor = reader.number("attention_factor", kAboveZero);
}

}  // namespace

void read_rotary_scaling(Fields& file,
                         const std::string& name,
                         const Json& object,
                         RotaryScaling& scaling) {
  ScalingReader reader(file, name, object);
  std::string type = reader.type();
  RotaryConfig read;
  if (type.empty() || type == "default") {
    if (type.empty() && name == "rope_scaling") {
      reader.finding(concat("expected a rope_type, got ", object.dump()));
    }
    for (const auto& [key, value] : object.items()) {
      if (value.is_object()) {
        reader.finding(concat("models of type ", file.out.model_type,
                              " have one rotation for all layers, not "
                              "one of their own for those of the kind ",
                              key));
      }
    }
    return;
  }
  if (type == "proportional") {
    if (const auto factor = reader.number("factor", kAboveZero); factor && *factor != 1) {
      read.seq_len_interpolation_factor = factor;
    }
  } else if (type == "linear") {
    read.seq_len_interpolation_factor = reader.needed("factor", kAboveZero);
  } else if (type == "llama3") {
    read_llama3(reader, read);
  } else if (type == "yarn") {
    read_yarn(reader, file, read);
  } else if (type == "longrope" || type == "su") {
    type = "longrope";
    read_longrope(reader, file, read);
  } else if (type == "dynamic" && reader.number("alpha", kAboveZero)) {
    type = "default";
    scaling.alpha = reader.needed("alpha", kAboveZero);
  } else if (type == "dynamic") {
    read.rope_scaling_factor = reader.needed("factor", 1.0);
    read.original_max_position_embeddings = file.size_of("max_position_embeddings");
  } else {
    reader.finding(concat("the rotation's scaling \"", type,
                          "\" is not built; what is: default, linear, llama3, yarn, longrope, "
                          "dynamic, proportional"));
  }
  if (reader.is_sound()) {
    read.rope_type = type == "linear" ? "default" : type;
    scaling = {.name = name,
               .text = object.dump(),
               .written = true,
               .rotary = std::move(read),
               .temperature = reader.number("llama_4_scaling_beta", 0).value_or(0),
               .alpha = scaling.alpha};
  }
}

void set_rotary_scaling(Fields& file, const RotaryScaling& scaling) {
  AllConfig all;
  all.model_config.rotary_config = scaling.rotary;
  const auto set_key = [&](const config::Key& key) {
    file.set_value(std::string(key.name), key.field.get(all), scaling.name, scaling.text,
                   scaling.written);
  };
  for (const config::Key& key : config::find_section("model_config")->keys) {
    const std::string_view name = config::last_name(key);
    const bool says_type = name == "rope_type" || name == "seq_len_interpolation_factor";
    if (key.name.starts_with("rotary_config.") &&
        (says_type || (!config::rope_types_with(name).empty() &&
                       config::rope_type_reads(scaling.rotary.rope_type, name)))) {
      set_key(key);
    }
  }
}

Json rotary_scaling_json(const TransformerConfig& config) {
  const RotaryConfig& rotary = config.rotary_config;
  const double linear = rotary.seq_len_interpolation_factor.value_or(1.0);
  if (rotary.rope_type == "default") {
    return linear == 1.0 ? Json() : Json{{"rope_type", "linear"}, {"factor", linear}};
  }
  if (rotary.rope_type == "proportional") {
    Json json = {{"rope_type", rotary.rope_type}};
    if (linear != 1.0) {
      json["factor"] = linear;
    }
    return json;
  }
  Json json = {{"rope_type", rotary.rope_type}, {"factor", rotary.rope_scaling_factor}};
  const auto add = [&](const char* key, const auto& value) {
    if (value) {
      json[key] = *value;
    }
  };
  if (rotary.rope_type == "llama3") {
    json["low_freq_factor"] = rotary.low_freq_factor;
    json["high_freq_factor"] = rotary.high_freq_factor;
  } else if (rotary.rope_type == "yarn") {
    json["beta_fast"] = rotary.beta_fast;
    json["beta_slow"] = rotary.beta_slow;
    if (!rotary.truncate) {  // older readers do not know the member
      json["truncate"] = false;
    }
    add("mscale", rotary.mscale);
    add("mscale_all_dim", rotary.mscale_all_dim);
    add("attention_factor", rotary.attention_factor);
  } else if (rotary.rope_type == "longrope") {
    add("short_factor", rotary.short_factor);
    add("long_factor", rotary.long_factor);
    add("attention_factor", rotary.attention_factor);
  }
  if (rotary.rope_type != "dynamic") {  // whose original length is max_position_embeddings
    json[kLength] = rotary.original_max_position_embeddings;
  }
  return json;
}

}  // namespace tapestry::architectures
