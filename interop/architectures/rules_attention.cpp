// What families say of attention: heads, rotation, windows.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "interop/architectures/rules.h"

namespace tapestry::architectures {

namespace {

using hf::Fields;
using hf::Found;
using hf::Json;

class HeadsRule final : public Rule {
 public:
  explicit HeadsRule(const Heads& by_default) : default_(by_default) {}

  void read(Fields& file) const override {
    const int64_t width = file.size_of("hidden_size");
    const Found<int64_t> heads = file.size("num_attention_heads", default_.heads);
    file.set("num_attention_heads", heads, "num_attention_heads");
    const char* const kGroups = "num_key_value_heads";
    const Found<int64_t> groups =
        file.size(kGroups, file.has(kGroups) ? heads.value : default_.groups.value_or(heads.value));
    if (heads.value % groups.value != 0) {
      file.finding(kGroups,
                   concat(groups.value, " does not divide num_attention_heads ", heads.value));
    }
    file.set_value("group_query_attention", Value(groups.value != heads.value), kGroups,
                   groups.text, groups.written);
    file.set("num_query_groups", groups, kGroups);
    const bool has_size = file.find("head_dim") != nullptr || default_.head_dim;
    if (!has_size && width % heads.value != 0) {
      file.finding("num_attention_heads", concat(heads.text, " does not divide hidden_size ", width,
                                                 ", and there is no head_dim"));
    }
    const int64_t divided = std::max<int64_t>(1, width / heads.value);
    file.set("kv_channels", file.size("head_dim", default_.head_dim.value_or(divided)), "head_dim");
  }
  void write(const AllConfig& config, Json& json) const override {
    const TransformerConfig& c = config.model_config;
    json["num_attention_heads"] = c.num_attention_heads;
    json["num_key_value_heads"] = c.num_query_groups;
    json["head_dim"] = c.kv_channels.value();
  }

 private:
  Heads default_;
};

// Longer texts than a model was first trained on, and which member says so.
struct Scaling {
  std::string name = "rope_scaling";
  std::string text = "null";
  bool written = false;
  double linear = 1.0;
  std::optional<RotaryConfig> llama3 = {};
};

class Rotation final : public Rule {
 public:
  explicit Rotation(double theta) : theta_(theta) {}

  void read(Fields& file) const override {
    Found<double> theta = file.number("rope_theta", theta_);
    std::string theta_name = "rope_theta";
    Scaling scaling{.written = file.has("rope_scaling")};
    for (const std::string name : {"rope_scaling", "rope_parameters"}) {
      const Json* object = file.find(name);
      if (object == nullptr) {
        continue;
      }
      if (!object->is_object()) {
        file.finding(name, concat("expected an object, got ", object->dump()));
        continue;
      }
      if (const auto base = object->find("rope_theta"); base != object->end()) {
        if (!base->is_number()) {
          file.finding(name, concat("rope_theta: expected a number, got ", base->dump()));
        } else if (theta.written && theta.value != base->get<double>()) {
          file.finding(name, concat("rope_theta is ", base->dump(), ", but ", theta_name, " is ",
                                    theta.text));
        } else {
          theta = {base->get<double>(), base->dump(), true};
          theta_name = name + ".rope_theta";
        }
      }
      read_scaling(file, name, *object, scaling);
    }
    if (!(theta.value > 0)) {
      file.finding(theta_name, concat("expected a number above 0, got ", theta.text));
    }
    if (file.number("partial_rotary_factor", 1.0).value != 1.0) {
      file.finding("partial_rotary_factor", "a rotation of some channels alone is not read");
    }
    file.set("rotary_config.rotary_base", theta, theta_name);
    set_scaling(file, scaling);
  }

  void write(const AllConfig& config, Json& json) const override {
    const RotaryConfig& rotary = config.model_config.rotary_config;
    json["rope_theta"] = rotary.rotary_base;
    const double factor = rotary.seq_len_interpolation_factor.value_or(1.0);
    if (rotary.rope_type == "llama3") {
      json["rope_scaling"] = {
          {"rope_type", "llama3"},
          {"factor", rotary.rope_scaling_factor},
          {"low_freq_factor", rotary.low_freq_factor},
          {"high_freq_factor", rotary.high_freq_factor},
          {"original_max_position_embeddings", rotary.original_max_position_embeddings}};
    } else {
      json["rope_scaling"] =
          factor == 1.0 ? Json() : Json{{"rope_type", "linear"}, {"factor", factor}};
    }
  }

 private:
  static void set_scaling(Fields& file, const Scaling& scaling) {
    const auto set_key = [&](const std::string& key, Value value) {
      file.set_value("rotary_config." + key, std::move(value), scaling.name, scaling.text,
                     scaling.written);
    };
    set_key("seq_len_interpolation_factor",
            scaling.linear == 1.0 ? Value() : Value(scaling.linear));
    set_key("rope_type", Value(std::string(scaling.llama3 ? "llama3" : "default")));
    if (scaling.llama3) {
      set_key("rope_scaling_factor", Value(scaling.llama3->rope_scaling_factor));
      set_key("low_freq_factor", Value(scaling.llama3->low_freq_factor));
      set_key("high_freq_factor", Value(scaling.llama3->high_freq_factor));
      set_key("original_max_position_embeddings",
              Value(scaling.llama3->original_max_position_embeddings));
    }
  }

  static void read_llama3(Fields& file,
                          const std::string& name,
                          const Json& object,
                          Scaling& scaling) {
    RotaryConfig read;
    bool complete = true;
    const auto number = [&](const char* key, double& value, double least) {
      const auto found = object.find(key);
      complete = complete && found != object.end() && found->is_number() &&
                 std::isfinite(found->get<double>()) && found->get<double>() >= least;
      value = complete ? found->get<double>() : value;
    };
    double length = 0;
    number("factor", read.rope_scaling_factor, 1.0);
    number("low_freq_factor", read.low_freq_factor, std::numeric_limits<double>::min());
    number("high_freq_factor", read.high_freq_factor, std::numeric_limits<double>::min());
    number("original_max_position_embeddings", length, 1.0);
    if (!complete || read.high_freq_factor <= read.low_freq_factor ||
        length > static_cast<double>(hf::kMaxSize) || length != std::floor(length)) {
      file.finding(name, concat("expected a factor of 1 or more, a low_freq_factor above 0, a "
                                "high_freq_factor above that and a length "
                                "original_max_position_embeddings beside rope_type llama3, got ",
                                object.dump()));
      return;
    }
    read.original_max_position_embeddings = static_cast<int64_t>(length);
    scaling = {.name = name, .text = object.dump(), .written = true, .llama3 = read};
  }

  static void read_scaling(Fields& file,
                           const std::string& name,
                           const Json& object,
                           Scaling& scaling) {
    std::string type;
    for (const char* key : {"type", "rope_type"}) {
      if (const auto found = object.find(key); found != object.end()) {
        type = found->is_string() ? found->get<std::string>() : found->dump();
      }
    }
    if (object.contains("partial_rotary_factor") && object.at("partial_rotary_factor") != 1.0) {
      file.finding(name, "partial_rotary_factor: a rotation of some channels alone is not read");
    }
    if (type == "linear") {
      const auto found = object.find("factor");
      if (found == object.end() || !found->is_number() || !(found->get<double>() > 0)) {
        file.finding(
            name, concat("expected a factor above 0 beside rope_type linear, got ", object.dump()));
        return;
      }
      scaling = {
          .name = name, .text = object.dump(), .written = true, .linear = found->get<double>()};
    } else if (type == "llama3") {
      read_llama3(file, name, object, scaling);
    } else if (type.empty() && name == "rope_scaling") {
      file.finding(name, concat("expected a rope_type, got ", object.dump()));
    } else if (!type.empty() && type != "default") {
      file.finding(name, concat("the rotation's scaling \"", type,
                                "\" is not built; what is: default, linear, llama3"));
    } else {
      for (const auto& [key, value] : object.items()) {
        if (value.is_object()) {
          file.finding(
              name, concat("a rotation of its own for layers of the kind ", key, " is not built"));
        }
      }
    }
  }

  double theta_;
};

enum class WindowKind { kNone, kPlain, kSwitched };

class WindowRule final : public Rule {
 public:
  WindowRule(WindowKind kind, std::optional<int64_t> by_default)
      : kind_(kind), default_(by_default) {}

  void read(Fields& file) const override {
    const int64_t layers = file.size_of("num_hidden_layers");
    const bool switched = kind_ == WindowKind::kSwitched;
    const bool used = switched && file.boolean("use_sliding_window", false).value;
    Found<int64_t> window{0, "null", file.has("sliding_window")};
    if (file.find("sliding_window") != nullptr ||
        (default_ && (used || !switched) && !file.has("sliding_window"))) {
      window = file.size("sliding_window", default_.value_or(1));
    }
    int64_t with_window = window.value > 0 ? layers : 0;
    if (switched) {
      const int64_t first = std::max<int64_t>(0, file.integer("max_window_layers", 28));
      with_window = used && window.value > 0 ? std::max<int64_t>(0, layers - first) : 0;
    } else if (kind_ == WindowKind::kNone && with_window > 0) {
      file.finding("sliding_window", concat(window.text, ": models of type ", file.out.model_type,
                                            " have no window"));
    }
    read_kinds(file, with_window);
    if (with_window > 0 && with_window < layers) {
      file.finding(file.find("layer_types") != nullptr ? "layer_types" : "max_window_layers",
                   concat(with_window, " of ", layers,
                          " layers have a window; what is built is one for all or none"));
    }
    if (with_window > 0 && window.value > 0) {
      file.set_value(
          "window_size", Value(Value::List{Value(window.value - 1), Value(int64_t{0})}),
          switched && !file.has("sliding_window") ? "use_sliding_window" : "sliding_window",
          window.text, window.written);
    } else if (switched) {
      file.set_value("window_size", Value(), "use_sliding_window", "false",
                     file.has("use_sliding_window"));
    } else {
      file.set_value("window_size", Value(), "sliding_window", "null", window.written);
    }
  }

  void write(const AllConfig& config, Json& json) const override {
    const std::optional<std::vector<int64_t>>& window = config.model_config.window_size;
    if (kind_ != WindowKind::kNone) {
      json["sliding_window"] = window ? Json(window->front() + 1) : Json();
    }
    if (kind_ == WindowKind::kSwitched) {
      json["use_sliding_window"] = window.has_value();
      // The first so many layers have none.
      json["max_window_layers"] = window ? 0 : config.model_config.num_layers;
    }
  }

  void object(const AllConfig& config, std::vector<Objection>& out) const override {
    if (kind_ == WindowKind::kNone) {
      object_unless(config, "window_size", Value(), out);
    }
  }

 private:
  // The layers by kind, where the file has the list.
  static void read_kinds(Fields& file, int64_t& with_window) {
    const Json* kinds = file.find("layer_types");
    if (kinds == nullptr) {
      return;
    }
    with_window = 0;
    for (const Json& kind : *kinds) {
      if (kind == "sliding_attention") {
        ++with_window;
      } else if (kind != "full_attention") {
        file.finding("layer_types", concat("layers of the kind ", kind.dump(), " are not built"));
      }
    }
  }

  WindowKind kind_;
  std::optional<int64_t> default_;
};

}  // namespace

RulePtr heads(const Heads& by_default) { return std::make_shared<HeadsRule>(by_default); }

Rules rotation(double theta) {
  return {fixed("position_embedding_type", "rope"), std::make_shared<Rotation>(theta),
          fixed("rotary_config.rotary_percent", 1.0),
          fixed("rotary_config.rotary_interleaved", false)};
}

RulePtr no_window() { return std::make_shared<WindowRule>(WindowKind::kNone, std::nullopt); }
RulePtr window(std::optional<int64_t> by_default) {
  return std::make_shared<WindowRule>(WindowKind::kPlain, by_default);
}
RulePtr switched_window() {
  constexpr int64_t kDefault = 4096;
  return std::make_shared<WindowRule>(WindowKind::kSwitched, kDefault);
}

}  // namespace tapestry::architectures
