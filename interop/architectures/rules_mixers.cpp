// Layers that have another mixer than attention.
#include <algorithm>
#include <cmath>
#include <utility>

#include "interop/architectures/rules.h"

namespace tapestry::architectures {

namespace {

using hf::Fields;
using hf::Found;
using hf::Json;

constexpr const char* kTypes = "layer_types";
constexpr const char* kAttention = "full_attention";

class MixerLayersRule final : public Rule {
 public:
  explicit MixerLayersRule(MixerLayers form) : form_(std::move(form)) {}

  void read(Fields& file) const override {
    const int64_t layers = file.size_of("num_hidden_layers");
    file.set_by_type("window_size", Value());
    Value::List kinds;
    std::string name = kTypes;
    if (file.find(name) == nullptr && !form_.older_member.empty()) {
      name = form_.older_member;
    }
    const Json* list = file.find(name);
    if (list == nullptr) {
      kinds = without_list(file, layers, name);
    } else if (!list->is_array() || std::ssize(*list) != layers) {
      file.finding(name, concat("expected a list of ", layers, " kinds, one for each layer, got ",
                                list->dump()));
      return;
    } else {
      for (const Json& word : *list) {
        kinds.emplace_back(kind_of_word(file, name, word));
      }
    }
    const Json* member = file.find(name);
    file.set_value(kTypes, Value(std::move(kinds)), name,
                   member == nullptr ? "null" : member->dump(), member != nullptr);
  }

  void write(const AllConfig& config, Json& json) const override {
    Json kinds = Json::array();
    for (int64_t layer = 0; layer < config.model_config.num_layers; ++layer) {
      const bool attends = mixer_kind(config.model_config, layer) == MixerKind::kAttention;
      kinds.push_back(attends ? form_.attention_words.front() : form_.words.front());
    }
    json[kTypes] = std::move(kinds);
  }

  void object(const AllConfig& config, std::vector<Objection>& out) const override {
    const TransformerConfig& c = config.model_config;
    object_unless(config, "window_size", Value(), out);
    bool has_attention = false;
    for (int64_t layer = 0; layer < c.num_layers; ++layer) {
      const MixerKind kind = mixer_kind(c, layer);
      has_attention = has_attention || kind == MixerKind::kAttention;
      if (kind != MixerKind::kAttention && kind != mixer_kind(form_.kind)) {
        out.push_back({concat("model_config.", kTypes), to_yaml(value_of(config, kTypes)),
                       concat("use full_attention and ", form_.kind)});
        return;
      }
    }
    if (form_.needs_both && (!has_attention || !has_recurrent_layers(c))) {
      out.push_back({concat("model_config.", kTypes), to_yaml(value_of(config, kTypes)),
                     concat("use layers of both kinds, full_attention and ", form_.kind)});
    }
  }

  std::vector<std::string> keys() const override { return {kTypes, "window_size"}; }

  RuleText text() const override {
    return {.read = concat(
                "`layer_types`",
                form_.older_member.empty() ? "" : concat(" or `", form_.older_member, "`"),
                form_.period_member.empty() ? "" : concat(" or `", form_.period_member, "`"),
                form_.attention_list.empty() ? "" : concat(" or `", form_.attention_list, "`"))};
  }

 private:
  std::string kind_of_word(Fields& file, const std::string& name, const Json& word) const {
    const auto is_in = [&](const std::vector<std::string>& words) {
      return word.is_string() &&
             std::find(words.begin(), words.end(), word.get<std::string>()) != words.end();
    };
    if (is_in(form_.words)) {
      return form_.kind;
    }
    if (!is_in(form_.attention_words)) {
      file.finding(name, concat("layers of the kind ", word.dump(), " are not built; expected ",
                                form_.words.front(), " or ", form_.attention_words.front()));
    }
    return kAttention;
  }

  // By the period, or the list of layers with attention; `name` becomes that of what says so.
  Value::List without_list(Fields& file, int64_t layers, std::string& name) const {
    std::vector<bool> attends(static_cast<size_t>(layers), form_.attends_by_default);
    int64_t period = form_.period;
    if (!form_.period_member.empty()) {
      name = form_.period_member;
      period = file.size(name, form_.period).value;
    }
    for (int64_t layer = 0; period > 0 && layer < layers; ++layer) {
      attends[static_cast<size_t>(layer)] = (layer + 1) % period == 0;
    }
    const Json* numbers = form_.attention_list.empty() ? nullptr : file.find(form_.attention_list);
    if (numbers != nullptr) {
      name = form_.attention_list;
      attends.assign(attends.size(), false);
      for (const Json& number : *numbers) {
        const bool fits = number.is_number_integer() && number >= 0 && number < layers;
        if (!fits) {
          file.finding(
              name, concat("expected a list of layers below ", layers, ", got ", numbers->dump()));
          break;
        }
        attends[number.get<size_t>()] = true;
      }
    }
    if (form_.needs_both && std::count(attends.begin(), attends.end(), true) == 0) {
      attends.back() = true;
    }
    Value::List kinds;
    for (const bool one : attends) {
      kinds.emplace_back(one ? std::string(kAttention) : form_.kind);
    }
    return kinds;
  }

  MixerLayers form_;
};

// OLMo Hybrid leaves out sizes that follow from those of attention.
class DeltaSizesByHeads final : public Rule {
 public:
  void read(Fields& file) const override {
    const int64_t heads = file.size_of("num_attention_heads");
    const auto take = [&](const char* name, int64_t by_default) {
      const Found<int64_t> found = file.size(name, std::max<int64_t>(by_default, 1));
      file.set(name, found, name);
      return found.value;
    };
    const int64_t key_heads = take("linear_num_key_heads", heads);
    take("linear_num_value_heads", heads);
    const double width = 0.75 * static_cast<double>(file.size_of("hidden_size"));
    const int64_t key_dim =
        take("linear_key_head_dim",
             static_cast<int64_t>(width / static_cast<double>(std::max<int64_t>(key_heads, 1))));
    take("linear_value_head_dim", 2 * key_dim);
    take("linear_conv_kernel_dim", 4);
  }
  void write(const AllConfig& config, Json& json) const override {
    for (const std::string& key : keys()) {
      json[key] = json_of(value_of(config, key));
    }
  }
  std::vector<std::string> keys() const override {
    return {"linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim",
            "linear_value_head_dim", "linear_conv_kernel_dim"};
  }
  RuleText text() const override {
    return {.read =
                "`linear_num_key_heads`, `linear_num_value_heads`, `linear_key_head_dim`, "
                "`linear_value_head_dim`, `linear_conv_kernel_dim`"};
  }
};

class MambaSizes final : public Rule {
 public:
  void read(Fields& file) const override {
    const int64_t hidden = file.size_of("hidden_size");
    const Found<int64_t> heads = file.size("mamba_n_heads", 128);
    const Found<int64_t> expand = file.size("mamba_expand", 2);
    file.set("mamba_num_heads", heads, "mamba_n_heads");
    const Json* dim = file.find("mamba_d_head");
    const int64_t whole = expand.value * hidden;
    if (dim == nullptr || *dim == "auto") {
      file.set_value("mamba_head_dim", Value(std::max<int64_t>(whole / heads.value, 1)),
                     "mamba_d_head", "auto", dim != nullptr);
    } else {
      const Found<int64_t> given = file.size("mamba_d_head", 1);
      file.set("mamba_head_dim", given, "mamba_d_head");
      if (given.value * heads.value != whole) {
        file.finding("mamba_d_head", concat(given.text, " times mamba_n_heads ", heads.text,
                                            " must be mamba_expand ", expand.text,
                                            " times hidden_size, which is ", whole));
      }
    }
    file.set("mamba_num_groups", file.size("mamba_n_groups", 1), "mamba_n_groups");
    file.set("mamba_state_dim", file.size("mamba_d_state", 256), "mamba_d_state");
    file.set("mamba_conv_kernel_dim", file.size("mamba_d_conv", 4), "mamba_d_conv");
    file.set("mamba_conv_has_bias", file.boolean("mamba_conv_bias", true), "mamba_conv_bias");
    file.set("mamba_proj_has_bias", file.boolean("mamba_proj_bias", false), "mamba_proj_bias");
    read_limits(file);
  }

  void write(const AllConfig& config, Json& json) const override {
    const MambaConfig& mamba = config.model_config.mamba;
    const int64_t heads = mamba.num_heads.value_or(128);
    json["mamba_n_heads"] = heads;
    json["mamba_d_head"] = mamba.head_dim;
    json["mamba_expand"] =
        heads * mamba.head_dim / std::max<int64_t>(config.model_config.hidden_size, 1);
    json["mamba_n_groups"] = mamba.num_groups;
    json["mamba_d_state"] = mamba.state_dim;
    json["mamba_d_conv"] = mamba.conv_kernel_dim;
    json["mamba_conv_bias"] = mamba.conv_has_bias;
    json["mamba_proj_bias"] = mamba.proj_has_bias;
    if (mamba.time_step_limit) {
      json["time_step_limit"] = *mamba.time_step_limit;
    }
  }

  void object(const AllConfig& config, std::vector<Objection>& out) const override {
    const TransformerConfig& c = config.model_config;
    const int64_t width = c.mamba.num_heads.value_or(0) * c.mamba.head_dim;
    if (c.hidden_size > 0 && width % c.hidden_size != 0) {
      out.push_back({"model_config.mamba_head_dim", concat(c.mamba.head_dim),
                     concat("all heads together have ", width,
                            " channels: make that a multiple of hidden_size ", c.hidden_size)});
    }
  }

  std::vector<std::string> keys() const override {
    return {"mamba_num_heads",     "mamba_head_dim",        "mamba_num_groups",
            "mamba_state_dim",     "mamba_conv_kernel_dim", "mamba_conv_has_bias",
            "mamba_proj_has_bias", "mamba_time_step_limit"};
  }
  RuleText text() const override {
    return {.read =
                "`mamba_n_heads`, `mamba_d_head`, `mamba_expand`, `mamba_n_groups`, "
                "`mamba_d_state`, `mamba_d_conv`, `mamba_conv_bias`, `mamba_proj_bias`, "
                "`time_step_limit`"};
  }

 private:
  // Newer files write infinity as an object.
  static void read_limits(Fields& file) {
    constexpr const char* kMember = "time_step_limit";
    const Json* limits = file.find(kMember);
    if (limits == nullptr) {
      file.set_value("mamba_time_step_limit", Value(), kMember, "null", false);
      return;
    }
    const auto is_infinite = [](const Json& value) {
      return value.is_object() && value.value("__float__", "") == "Infinity";
    };
    const bool is_pair = limits->is_array() && limits->size() == 2 && limits->at(0).is_number() &&
                         (limits->at(1).is_number() || is_infinite(limits->at(1)));
    if (!is_pair) {
      file.finding(kMember, concat("expected [least, most], got ", limits->dump()));
      return;
    }
    const double least = limits->at(0).get<double>();
    // Any step of a float32 lies below this.
    constexpr double kNoLimit = 3e38;
    const double most = is_infinite(limits->at(1)) ? kNoLimit : limits->at(1).get<double>();
    const bool none = least <= 0 && most >= kNoLimit;
    file.set_value("mamba_time_step_limit",
                   none ? Value() : Value(Value::List{Value(least), Value(most)}), kMember,
                   limits->dump());
  }
};

// Rotation unless a member says that there is none.
class OptionalRotation final : public Rule {
 public:
  OptionalRotation(bool by_member, Rules rotation)
      : by_member_(by_member), rotation_(std::move(rotation)) {}

  void read(Fields& file) const override {
    if (!rotates(file)) {
      file.set_value("position_embedding_type", Value(std::string("none")),
                     by_member_ ? kMember : kObject, "null");
      return;
    }
    for (const RulePtr& rule : rotation_) {
      rule->read(file);
    }
  }
  void write(const AllConfig& config, Json& json) const override {
    const bool rotated = config.model_config.position_embedding_type == "rope";
    if (by_member_) {
      json[kMember] = rotated ? Json("rope") : Json("nope");
    } else if (!rotated) {
      json[kObject] = {{"rope_type", "default"}, {"rope_theta", nullptr}};
    }
    for (const RulePtr& rule : rotation_) {
      if (rotated) {
        rule->write(config, json);
      }
    }
  }
  void object(const AllConfig& config, std::vector<Objection>& out) const override {
    if (config.model_config.position_embedding_type == "none") {
      return;
    }
    for (const RulePtr& rule : rotation_) {
      rule->object(config, out);
    }
  }
  std::vector<std::string> keys() const override {
    std::vector<std::string> out;
    for (const RulePtr& rule : rotation_) {
      for (std::string& key : rule->keys()) {
        out.push_back(std::move(key));
      }
    }
    return out;
  }
  RuleText text() const override {
    RuleText out = rotation_.front()->text();
    for (const RulePtr& rule : rotation_) {
      const RuleText one = rule->text();
      out.read = out.read.empty() ? one.read : out.read;
    }
    out.read = by_member_ ? concat("`", kMember, "`, ", out.read)
                          : concat(out.read, " (null: no rotation)");
    out.always.clear();
    return out;
  }

 private:
  static constexpr const char* kMember = "position_embedding_type";
  static constexpr const char* kObject = "rope_parameters";

  bool rotates(Fields& file) const {
    if (by_member_) {
      const Json* kind = file.find(kMember);
      return kind != nullptr && *kind == "rope";
    }
    const Json* object = file.find(kObject);
    if (object != nullptr && object->is_object() && object->contains("rope_theta")) {
      return !object->at("rope_theta").is_null();
    }
    return !file.has("rope_theta") || file.find("rope_theta") != nullptr;
  }

  bool by_member_;
  Rules rotation_;
};

}  // namespace

RulePtr mixer_layers(const MixerLayers& form) { return std::make_shared<MixerLayersRule>(form); }

Rules delta_net_sizes() {
  return {size("linear_conv_kernel_dim", "linear_conv_kernel_dim", 4),
          size("linear_key_head_dim", "linear_key_head_dim", 128),
          size("linear_value_head_dim", "linear_value_head_dim", 128),
          size("linear_num_key_heads", "linear_num_key_heads", 16),
          size("linear_num_value_heads", "linear_num_value_heads", 32)};
}
RulePtr delta_net_sizes_by_heads() { return std::make_shared<DeltaSizesByHeads>(); }
RulePtr mamba_sizes() { return std::make_shared<MambaSizes>(); }
RulePtr rotation_by_member(const Rules& rotation) {
  return std::make_shared<OptionalRotation>(true, rotation);
}
RulePtr rotation_unless_null(const Rules& rotation) {
  return std::make_shared<OptionalRotation>(false, rotation);
}

}  // namespace tapestry::architectures
