// What families say of attention: heads, rotation, windows.
#include <algorithm>
#include <cmath>
#include <utility>

#include "interop/architectures/rotary_scaling.h"
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
        default_.grouped
            ? file.size(kGroups,
                        file.has(kGroups) ? heads.value : default_.groups.value_or(heads.value))
            : heads;
    if (heads.value % groups.value != 0) {
      file.finding(kGroups,
                   concat(groups.value, " does not divide num_attention_heads ", heads.value));
    }
    file.set_value("group_query_attention", Value(groups.value != heads.value), kGroups,
                   groups.text, groups.written);
    file.set("num_query_groups", groups, kGroups);
    const bool has_size =
        !default_.fill_width && (file.find("head_dim") != nullptr || default_.head_dim);
    if (!has_size && width % heads.value != 0) {
      file.finding("num_attention_heads", concat(heads.text, " does not divide hidden_size ", width,
                                                 ", and there is no head_dim"));
    }
    const int64_t divided = std::max<int64_t>(1, width / heads.value);
    const Found<int64_t> size = file.size("head_dim", default_.head_dim.value_or(divided));
    if (default_.fill_width && size.written && size.value * heads.value != width) {
      file.finding("head_dim", concat(size.text, " times num_attention_heads ", heads.value,
                                      " is not hidden_size ", width, ", as it must be for type ",
                                      file.out.model_type));
    }
    file.set_value("kv_channels", Value(default_.fill_width ? divided : size.value), "head_dim",
                   size.text, size.written);
  }
  void object(const AllConfig& config, std::vector<Objection>& out) const override {
    const TransformerConfig& c = config.model_config;
    if (default_.fill_width && c.kv_channels.value_or(0) * c.num_attention_heads != c.hidden_size) {
      out.push_back({"model_config.kv_channels", concat(c.kv_channels.value_or(0)),
                     "leave it out: heads divide hidden_size"});
    }
    if (!default_.grouped) {
      object_unless(config, "num_query_groups", Value(c.num_attention_heads), out);
    }
  }
  void write(const AllConfig& config, Json& json) const override {
    const TransformerConfig& c = config.model_config;
    json["num_attention_heads"] = c.num_attention_heads;
    if (default_.grouped) {
      json["num_key_value_heads"] = c.num_query_groups;
      json["head_dim"] = c.kv_channels.value();
    }
  }

  RuleText text() const override {
    return {.read = default_.fill_width
                        ? "`num_attention_heads`, `num_key_value_heads`; heads divide the width"
                        : "`num_attention_heads`, `num_key_value_heads`, `head_dim`"};
  }

 private:
  Heads default_;
};

class Rotation final : public Rule {
 public:
  Rotation(double theta, const RotationForm& form) : theta_(theta), form_(form) {}

  void read(Fields& file) const override {
    Found<double> theta = file.number(form_.theta_member, theta_);
    std::string theta_name = form_.theta_member;
    RotaryScaling scaling{.written = file.has("rope_scaling")};
    if (form_.proportional && object_of(file, "rope_parameters") == nullptr) {
      scaling.rotary.rope_type = kProportional;
    }
    for (const std::string name : {"rope_scaling", "rope_parameters"}) {
      const Json* object = object_of(file, name);
      if (object == nullptr) {
        continue;
      }
      if (form_.proportional && object == file.find(name)) {
        file.finding(name, concat("expected an object for ", kFull, " and one for ", kSliding,
                                  ", got ", object->dump()));
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
      read_rotary_scaling(file, name, *object, scaling);
    }
    if (!(theta.value > 0)) {
      file.finding(theta_name, concat("expected a number above 0, got ", theta.text));
    }
    if (scaling.alpha != 1) {
      grow_base(file, scaling, theta);
    }
    read_share(file);
    file.set("rotary_config.rotary_base", theta, theta_name);
    set_rotary_scaling(file, scaling);
    if (form_.sliding_theta) {
      read_sliding_base(file);
    }
    if (form_.temperature) {
      file.set_value("query_temperature_beta", Value(scaling.temperature), scaling.name,
                     scaling.text, scaling.written);
    } else if (scaling.temperature != 0) {
      file.finding(scaling.name,
                   concat("llama_4_scaling_beta: queries of models of type ", file.out.model_type,
                          " do not grow with their position; leave it out"));
    }
  }

  void write(const AllConfig& config, Json& json) const override {
    const TransformerConfig& c = config.model_config;
    const RotaryConfig& rotary = c.rotary_config;
    if (form_.proportional) {
      write_proportional(c, json);
      return;
    }
    json[form_.theta_member] = rotary.rotary_base;
    if (form_.share) {
      json[form_.share_member] = rotary.rotary_percent;
    }
    json["rope_scaling"] = rotary_scaling_json(c);
    if (form_.temperature && json["rope_scaling"].is_object()) {
      json["rope_scaling"]["llama_4_scaling_beta"] = c.query_temperature_beta;
    }
    if (form_.sliding_theta) {
      write_by_kind(config, json);
    }
  }

  void object(const AllConfig& config, std::vector<Objection>& out) const override {
    const TransformerConfig& c = config.model_config;
    const int64_t length = c.rotary_config.original_max_position_embeddings;
    if (c.rotary_config.rope_type == "dynamic" && c.max_position_embeddings != length) {
      out.push_back({"model_config.rotary_config.original_max_position_embeddings", concat(length),
                     concat("with rope_type dynamic it is max_position_embeddings: use ",
                            c.max_position_embeddings.value_or(0))});
    }
    if (!form_.share) {
      object_unless(config, "rotary_config.rotary_percent", Value(1.0), out);
    }
    const bool turns_share = c.rotary_config.rope_type == kProportional;
    if (turns_share && !form_.proportional) {
      object_unless(config, "rotary_config.rope_type", Value(std::string("default")), out);
    } else if (form_.proportional && !turns_share && c.rotary_config.rotary_percent != 1) {
      object_unless(config, "rotary_config.rope_type", Value(std::string(kProportional)), out);
    }
    if (form_.temperature && c.query_temperature_beta > 0 && c.rotary_config.rope_type != "yarn") {
      object_unless(config, "rotary_config.rope_type", Value(std::string("yarn")), out);
    }
  }
  std::vector<std::string> keys() const override {
    std::vector<std::string> out;
    if (form_.sliding_theta) {
      out.emplace_back("rotary_config.sliding_rotary_base");
    }
    if (form_.temperature) {
      out.emplace_back("query_temperature_beta");
    }
    return out;
  }

  RuleText text() const override {
    std::string out = concat("`", form_.theta_member, "`, `rope_scaling`, `rope_parameters`");
    if (form_.share) {
      out += concat(", `", form_.share_member, "`");
    }
    if (form_.sliding_theta) {
      out += form_.sliding_member.empty() ? ", a base for each kind of layers"
                                          : concat(", `", form_.sliding_member, "`");
    }
    return {.read = out};
  }

 private:
  static constexpr const char* kFull = "full_attention";
  static constexpr const char* kSliding = "sliding_attention";
  static constexpr const char* kProportional = "proportional";

  // What a member says of layers without a window; nullptr if it is not there, or no object.
  const Json* object_of(Fields& file, const std::string& name) const {
    const Json* object = file.find(name);
    if (object == nullptr) {
      return nullptr;
    }
    if (!object->is_object()) {
      file.finding(name, concat("expected an object, got ", object->dump()));
      return nullptr;
    }
    const auto full = object->find(kFull);
    return form_.sliding_theta && full != object->end() && full->is_object() ? &*full : object;
  }

  static void grow_base(Fields& file, const RotaryScaling& scaling, Found<double>& theta) {
    const auto size = static_cast<double>(file.size_of("head_dim"));
    theta.value *= std::pow(scaling.alpha, size / (size - 2));
    theta.text = concat(theta.text, " with ", scaling.text);
  }

  void read_sliding_base(Fields& file) const {
    Found<double> base = form_.sliding_member.empty()
                             ? Found<double>{*form_.sliding_theta, "its default", true}
                             : file.number(form_.sliding_member, *form_.sliding_theta);
    std::string name = form_.sliding_member.empty() ? "model_type" : form_.sliding_member;
    const Json* object = file.find("rope_parameters");
    if (object != nullptr && object->is_object() && object->contains(kSliding)) {
      const Json& inner = object->at(kSliding);
      const Json type = inner.value("rope_type", Json("default"));
      if (type != "default") {
        file.finding("rope_parameters",
                     concat(kSliding, ": expected rope_type default, got ", type.dump()));
      }
      const Json share = inner.value("partial_rotary_factor", Json(1.0));
      if (form_.proportional && share != 1.0) {
        file.finding("rope_parameters", concat(kSliding, ": partial_rotary_factor ", share.dump(),
                                               ": these layers turn whole heads; leave it out"));
      }
      if (inner.contains("rope_theta") && inner.at("rope_theta").is_number()) {
        base = {inner.at("rope_theta").get<double>(), inner.at("rope_theta").dump(), true};
        name = concat("rope_parameters.", kSliding, ".rope_theta");
      }
    }
    if (!(base.value > 0)) {
      file.finding(name, concat("expected a number above 0, got ", base.text));
    }
    file.set("rotary_config.sliding_rotary_base", base, name);
  }

  // By kind, as all files of these models have it.
  void write_proportional(const TransformerConfig& c, Json& json) const {
    const RotaryConfig& rotary = c.rotary_config;
    Json full = rotary_scaling_json(c);
    if (!full.is_object()) {
      full = {{"rope_type", "default"}};
    }
    full["rope_theta"] = rotary.rotary_base;
    if (rotary.rope_type == kProportional) {
      full["partial_rotary_factor"] = rotary.rotary_percent;
    }
    json["rope_parameters"] = {
        {kFull, full},
        {kSliding,
         {{"rope_type", "default"},
          {"rope_theta", rotary.sliding_rotary_base.value_or(rotary.rotary_base)}}}};
  }

  // Newer files alone can say two bases; older ones say them if there is a member for the second.
  void write_by_kind(const AllConfig& config, Json& json) const {
    const RotaryConfig& rotary = config.model_config.rotary_config;
    const double sliding = rotary.sliding_rotary_base.value_or(rotary.rotary_base);
    if (!form_.sliding_member.empty()) {
      json[form_.sliding_member] = sliding;
      return;
    }
    if (sliding == *form_.sliding_theta) {
      return;
    }
    Json full = json.at("rope_scaling").is_object() ? json.at("rope_scaling")
                                                    : Json{{"rope_type", "default"}};
    full["rope_theta"] = rotary.rotary_base;
    json["rope_parameters"] = {{kFull, full},
                               {kSliding, {{"rope_type", "default"}, {"rope_theta", sliding}}}};
    json.erase("rope_scaling");
  }

  // Of the channels, from the member of its own or from that of an object.
  void read_share(Fields& file) const {
    const std::string member = form_.share_member;
    const char* const kInner = "partial_rotary_factor";
    Found<double> share = file.number(member, form_.share.value_or(1.0));
    std::string name = form_.share ? member : "model_type";
    for (const char* object_name : {"rope_scaling", "rope_parameters"}) {
      const Json* object = object_of(file, object_name);
      if (object == nullptr) {
        continue;
      }
      if (!object->contains(kInner)) {
        if (form_.proportional) {  // which has its own default for a file without the object
          share = {1.0, object->dump(), true};
          name = object_name;
        }
        continue;
      }
      const Json& inner = object->at(kInner);
      if (!inner.is_number()) {
        file.finding(object_name, concat(kInner, ": expected a number, got ", inner.dump()));
      } else if (file.find(member) != nullptr && share.value != inner.get<double>()) {
        file.finding(object_name,
                     concat(kInner, " is ", inner.dump(), ", but ", member, " is ", share.text));
      } else {
        share = {inner.get<double>(), inner.dump(), true};
        name = concat(object_name, ".", kInner);
      }
    }
    if (!form_.share && share.value != 1.0) {
      file.finding(member, concat(share.text, ": models of type ", file.out.model_type,
                                  " turn all channels of a head; leave it out"));
    } else if (!(share.value > 0 && share.value <= 1)) {
      file.finding(member, concat("expected a number above 0, at most 1, got ", share.text));
    } else {
      file.set("rotary_config.rotary_percent", share, name);
    }
  }

  double theta_;
  RotationForm form_;
};

using Mask = std::vector<bool>;  // of each layer

class WindowRule final : public Rule {
 public:
  explicit WindowRule(const Windows& form) : form_(form) {}

  void read(Fields& file) const override {
    const bool used = is_switched() && file.boolean("use_sliding_window", false).value;
    Found<int64_t> window{0, "null", file.has("sliding_window")};
    if (file.find("sliding_window") != nullptr ||
        (form_.by_default && (used || !is_switched()) && !file.has("sliding_window"))) {
      window = file.size("sliding_window", form_.by_default.value_or(1));
    }
    const bool has_window = window.value > 0 && (!is_switched() || used);
    Mask sliding = by_form(file, has_window);
    if (form_.kind == Windows::Kind::kNone && window.value > 0) {
      file.finding("sliding_window", concat(window.text, ": models of type ", file.out.model_type,
                                            " have no window"));
    }
    read_kinds(file, has_window, sliding);
    if (form_.last_is_full && !sliding.empty()) {
      sliding.back() = false;
    }
    const auto count = std::count(sliding.begin(), sliding.end(), true);
    const std::string name = is_switched() && (count == 0 || !file.has("sliding_window"))
                                 ? "use_sliding_window"
                                 : "sliding_window";
    if (count > 0) {
      file.set_value("window_size", Value(Value::List{Value(window.value - 1), Value(int64_t{0})}),
                     name, window.text, window.written);
    } else {
      file.set_value("window_size", Value(), name, is_switched() ? "false" : "null",
                     is_switched() ? file.has("use_sliding_window") : window.written);
    }
    set_kinds(file, sliding, count);
  }

  void write(const AllConfig& config, Json& json) const override {
    const TransformerConfig& c = config.model_config;
    const std::optional<std::vector<int64_t>>& window = c.window_size;
    if (form_.kind != Windows::Kind::kNone) {
      json["sliding_window"] = window ? Json(window->front() + 1) : Json();
    }
    if (is_switched()) {
      json["use_sliding_window"] = window.has_value();
    }
    if (form_.kind == Windows::Kind::kSwitched) {
      // The first so many layers have none.
      int64_t first = 0;
      while (first < c.num_layers && !has_window(c, first)) {
        ++first;
      }
      json["max_window_layers"] = first;
    }
    if (form_.kind == Windows::Kind::kByList || c.layer_types) {
      Json kinds = Json::array();
      for (int64_t layer = 0; layer < c.num_layers; ++layer) {
        kinds.push_back(has_window(c, layer) ? "sliding_attention" : "full_attention");
      }
      json["layer_types"] = std::move(kinds);
    }
    if (form_.writes_period) {
      json["sliding_window_pattern"] = form_.period;
    }
  }

  void object(const AllConfig& config, std::vector<Objection>& out) const override {
    const TransformerConfig& c = config.model_config;
    if (form_.kind == Windows::Kind::kNone) {
      object_unless(config, "window_size", Value(), out);
    }
    if (form_.kind != Windows::Kind::kByList && form_.kind != Windows::Kind::kSwitched) {
      object_unless(config, "layer_types", Value(), out);
    }
    if (form_.last_is_full && c.num_layers > 0 && has_window(c, c.num_layers - 1)) {
      out.push_back({"model_config.layer_types", to_yaml(value_of(config, "layer_types")),
                     "the last layer has no window: make it full_attention"});
    }
    for (int64_t layer = 0; form_.rotates_sliding_alone && layer < c.num_layers; ++layer) {
      if (has_rotation(c, layer) != (has_window(c, layer) || !c.window_size)) {
        out.push_back({"model_config.no_rope_layers", to_yaml(value_of(config, "no_rope_layers")),
                       "use a 1 for layers with a window and a 0 for the others"});
        break;
      }
    }
  }
  std::vector<std::string> keys() const override {
    std::vector<std::string> out = {"window_size", "layer_types"};
    if (form_.rotates_sliding_alone) {
      out.emplace_back("no_rope_layers");
    }
    return out;
  }

  RuleText text() const override {
    switch (form_.kind) {
      case Windows::Kind::kNone:
        return {.refused = "`sliding_window`: these models have no window"};
      case Windows::Kind::kAll:
        return {.read = "`sliding_window` of all layers"};
      case Windows::Kind::kByList:
        return {.read = "`sliding_window`, `layer_types` or `sliding_window_pattern`"};
      default:
        return {.read = "`use_sliding_window`, `sliding_window`, `max_window_layers`"};
    }
  }

 private:
  bool is_switched() const {
    return form_.kind == Windows::Kind::kSwitched || form_.kind == Windows::Kind::kSwitchedForAll;
  }

  // Where the file has no list.
  Mask by_form(Fields& file, bool has_window) const {
    const int64_t layers = file.size_of("num_hidden_layers");
    int64_t first = 0;
    int64_t period = 0;
    if (form_.kind == Windows::Kind::kSwitched) {
      first = std::max<int64_t>(0, file.integer("max_window_layers", 28));
    } else if (form_.kind == Windows::Kind::kByList) {
      const Json* pattern = file.find("sliding_window_pattern");
      period = pattern != nullptr && pattern->is_number_integer() ? pattern->get<int64_t>()
                                                                  : form_.period;
    }
    Mask sliding;
    for (int64_t layer = 0; layer < layers; ++layer) {
      const bool full =
          (period > 0 && (layer + 1) % period == 0) || (form_.last_is_full && layer + 1 == layers);
      sliding.push_back(has_window && layer >= first && !full);
    }
    return sliding;
  }

  // The layers by kind, where the file has the list.
  static void read_kinds(Fields& file, bool has_window, Mask& sliding) {
    const Json* kinds = file.find("layer_types");
    if (kinds == nullptr) {
      return;
    }
    if (!kinds->is_array() || kinds->size() != sliding.size()) {
      file.finding("layer_types", concat("expected a list of ", sliding.size(),
                                         " kinds, one for each layer, got ", kinds->dump()));
      return;
    }
    for (size_t layer = 0; layer < sliding.size(); ++layer) {
      const Json& kind = kinds->at(layer);
      if (kind != "sliding_attention" && kind != "full_attention") {
        file.finding("layer_types", concat("layers of the kind ", kind.dump(), " are not built"));
      }
      sliding[layer] = kind == "sliding_attention";
      if (sliding[layer] && !has_window) {
        file.finding("layer_types",
                     concat("layer ", layer, " is of the kind sliding_attention, but there is no ",
                            "sliding_window"));
        return;
      }
    }
  }

  void set_kinds(Fields& file, const Mask& sliding, int64_t count) const {
    const bool mixed = count > 0 && count < std::ssize(sliding);
    Value::List kinds;
    Value::List rotated;
    for (const bool slides : sliding) {
      kinds.emplace_back(std::string(slides ? "sliding_attention" : "full_attention"));
      rotated.emplace_back(int64_t{slides ? 1 : 0});
    }
    const std::string name = file.find("layer_types") != nullptr      ? "layer_types"
                             : form_.kind == Windows::Kind::kSwitched ? "max_window_layers"
                                                                      : "sliding_window_pattern";
    const Json* member = file.find(name);
    const std::string text = member == nullptr ? "null" : member->dump();
    file.set_value("layer_types", mixed ? Value(kinds) : Value(), name, text, member != nullptr);
    if (form_.rotates_sliding_alone) {
      file.set_value("no_rope_layers", mixed ? Value(rotated) : Value(), name, text,
                     member != nullptr);
    }
  }

  Windows form_;
};

class LatentRule final : public Rule {
 public:
  explicit LatentRule(const LatentAttention& by_default) : default_(by_default) {}

  void read(Fields& file) const override {
    const Found<int64_t> heads = file.size("num_attention_heads", default_.heads);
    file.set("num_attention_heads", heads, "num_attention_heads");
    const int64_t groups = file.integer("num_key_value_heads", heads.value);
    if (groups != heads.value) {
      file.finding("num_key_value_heads",
                   concat("expected num_attention_heads ", heads.value, ", got ", groups,
                          ": all heads are made of one vector"));
    }
    file.set_value("group_query_attention", Value(false), "model_type", heads.text, heads.written);
    file.set_value("num_query_groups", Value(heads.value), "num_attention_heads", heads.text,
                   heads.written);
    const char* const kRank = "q_lora_rank";
    if (file.has(kRank) && file.find(kRank) == nullptr) {
      file.set_value(kRank, Value(), kRank, "null");
    } else {
      file.set(kRank, file.size(kRank, default_.q_rank), kRank);
    }
    const Found<int64_t> plain = file.size("qk_nope_head_dim", 128);
    const Found<int64_t> rotated = file.size("qk_rope_head_dim", 64);
    file.set("qk_head_dim", plain, "qk_nope_head_dim");
    file.set("qk_pos_emb_head_dim", rotated, "qk_rope_head_dim");
    file.set("v_head_dim", file.size("v_head_dim", 128), "v_head_dim");
    file.set_value("kv_channels", Value(plain.value + rotated.value), "qk_nope_head_dim",
                   plain.text, plain.written);
  }
  void write(const AllConfig& config, Json& json) const override {
    const TransformerConfig& c = config.model_config;
    json["num_attention_heads"] = c.num_attention_heads;
    json["num_key_value_heads"] = c.num_attention_heads;
    json["q_lora_rank"] = c.q_lora_rank ? Json(*c.q_lora_rank) : Json();
    json["qk_nope_head_dim"] = c.qk_head_dim;
    json["qk_rope_head_dim"] = c.qk_pos_emb_head_dim;
    json["v_head_dim"] = c.v_head_dim;
  }

  RuleText text() const override {
    return {.read =
                "`num_attention_heads`, `q_lora_rank`, `qk_nope_head_dim`, "
                "`qk_rope_head_dim`, `v_head_dim`"};
  }

 private:
  LatentAttention default_;
};

class RotatedLayers final : public Rule {
 public:
  explicit RotatedLayers(int64_t interval) : interval_(interval) {}

  void read(Fields& file) const override {
    const int64_t layers = file.size_of("num_hidden_layers");
    const int64_t interval =
        std::max<int64_t>(1, file.integer("no_rope_layer_interval", interval_));
    Value::List rotated;
    for (int64_t layer = 0; layer < layers; ++layer) {
      rotated.emplace_back(int64_t{(layer + 1) % interval != 0 ? 1 : 0});
    }
    const char* const kMember = "no_rope_layers";
    const Json* list = file.find(kMember);
    if (list != nullptr) {
      rotated.clear();
      for (const Json& one : list->is_array() ? *list : Json::array()) {
        if (one == 0 || one == 1) {
          rotated.emplace_back(one.get<int64_t>());
        }
      }
      if (std::ssize(rotated) != layers) {
        file.finding(kMember, concat("expected a list of ", layers,
                                     " numbers 0 or 1, one for each layer, got ", list->dump()));
        return;
      }
    }
    const bool all = std::all_of(rotated.begin(), rotated.end(),
                                 [](const Value& one) { return one.as<int64_t>() == 1; });
    file.set_value(kMember, all ? Value() : Value(rotated), kMember,
                   list == nullptr ? "null" : list->dump(), list != nullptr);
  }
  void write(const AllConfig& config, Json& json) const override {
    const TransformerConfig& c = config.model_config;
    Json rotated = Json::array();
    for (int64_t layer = 0; layer < c.num_layers; ++layer) {
      rotated.push_back(has_rotation(c, layer) ? 1 : 0);
    }
    json["no_rope_layers"] = std::move(rotated);
    json["no_rope_layer_interval"] = interval_;
  }
  std::vector<std::string> keys() const override { return {"no_rope_layers"}; }

  RuleText text() const override { return {.read = "`no_rope_layers`"}; }

 private:
  int64_t interval_;
};

}  // namespace

RulePtr heads(const Heads& by_default) { return std::make_shared<HeadsRule>(by_default); }

Rules rotation(double theta, const RotationForm& form) {
  Rules out = {fixed("position_embedding_type", "rope"), std::make_shared<Rotation>(theta, form),
               fixed("rotary_config.rotary_backward", form.backward)};
  if (form.decides_pairs) {
    out.push_back(fixed("rotary_config.rotary_interleaved", form.pairs));
  }
  return out;
}

Rules latent_attention(const LatentAttention& by_default) {
  Rules out = {std::make_shared<LatentRule>(by_default), fixed("multi_latent_attention", true),
               size("kv_lora_rank", "kv_lora_rank", by_default.kv_rank)};
  out.push_back(by_default.has_interleave
                    ? flag("rope_interleave", {"rotary_config.rotary_interleaved"}, true)
                    : fixed("rotary_config.rotary_interleaved", true));
  return out;
}

RulePtr windows(const Windows& form) { return std::make_shared<WindowRule>(form); }
RulePtr no_window() { return windows({}); }
RulePtr window(std::optional<int64_t> by_default) {
  return windows({.kind = Windows::Kind::kAll, .by_default = by_default});
}
RulePtr switched_window(bool all_layers) {
  return windows({.kind = all_layers ? Windows::Kind::kSwitchedForAll : Windows::Kind::kSwitched,
                  .by_default = 4096});
}
RulePtr rotated_layers(int64_t interval) { return std::make_shared<RotatedLayers>(interval); }

}  // namespace tapestry::architectures
