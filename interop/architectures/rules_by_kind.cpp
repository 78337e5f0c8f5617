// What Gemma 4's files say of layers that differ: heads by kind, keys of other layers, per-layer
// embeddings, experts beside the dense MLP.
#include <algorithm>
#include <charconv>
#include <utility>

#include "interop/architectures/rules.h"

namespace tapestry::architectures {

namespace {

using hf::Fields;
using hf::Found;
using hf::Json;

// An integer from 0.
Found<int64_t> count(Fields& file, const char* member, int64_t most) {
  Found<int64_t> found =
      file.take<int64_t>(member, 0, &Json::is_number_integer, "an integer from 0");
  if (found.value < 0 || found.value > most) {
    file.finding(member, concat("expected an integer from 0 to ", most, ", got ", found.text));
    found.value = 0;
  }
  return found;
}

// head_dim and num_key_value_heads of layers without a window. Newer files list them by layer,
// per_layer_config {"05": {"head_dim": 512}}, in place of the two global_ members.
class HeadsByKind final : public Rule {
 public:
  explicit HeadsByKind(int64_t head_dim) : default_(head_dim) {}

  void read(Fields& file) const override {
    const Found<bool> is_key = file.boolean("attention_k_eq_v", false);
    Found<int64_t> size{file.size_of("head_dim"), "", true};
    Found<int64_t> groups{file.size_of("num_key_value_heads"), "", true};
    std::string size_name = kByLayer;
    std::string groups_name = kByLayer;
    if (const Json* by_layer = file.find(kByLayer)) {
      size.text = groups.text = by_layer->dump();
      read_by_layer(file, *by_layer, size.value, groups.value);
    } else {
      size = file.size(kSize, default_);
      size_name = kSize;
      groups_name = kGroups;
      if (is_key.value && file.find(kGroups) != nullptr) {
        groups = file.size(kGroups, groups.value);
      } else {
        groups = {groups.value, "null", file.has(kGroups)};
      }
    }
    const int64_t heads = file.size_of("num_attention_heads");
    if (heads % groups.value != 0) {
      file.finding(groups_name, concat("layers of the kind full_attention have ", groups.value,
                                       " key/value heads, which do not divide "
                                       "num_attention_heads ",
                                       heads));
    }
    // Without such layers none of it says anything.
    const bool has_kinds =
        std::any_of(file.out.settings.begin(), file.out.settings.end(), [](const auto& setting) {
          return setting.key == "layer_types" && !setting.value.is_null();
        });
    const auto set = [&](const char* key, const Found<int64_t>& found, const std::string& name,
                         int64_t usual) {
      const bool other = has_kinds && found.value != usual;
      file.set_value(key, other ? Value(found.value) : Value(), name, found.text, found.written);
    };
    if (!has_kinds) {  // all layers are of the kind full_attention
      for (HfSetting& setting : file.out.settings) {
        if (setting.key == "kv_channels") {
          setting.value = Value(size.value);
        } else if (setting.key == "num_query_groups") {
          setting.value = Value(groups.value);
        } else if (setting.key == "group_query_attention") {
          setting.value = Value(groups.value != heads);
        }
      }
      if (is_key.value) {
        file.finding("attention_k_eq_v",
                     "true, of a model without layers that have a window, is not built");
      }
    }
    set("full_attention_kv_channels", size, size_name, file.size_of("head_dim"));
    set("full_attention_num_query_groups", groups, groups_name,
        file.size_of("num_key_value_heads"));
    file.set("full_attention_value_is_key", is_key, "attention_k_eq_v");
  }

  // In the spelling that all versions read, and llama.cpp's converter too.
  void write(const AllConfig& config, Json& json) const override {
    const TransformerConfig& c = config.model_config;
    json[kSize] = c.full_attention_kv_channels.value_or(c.kv_channels.value());
    json[kGroups] =
        c.full_attention_num_query_groups ? Json(*c.full_attention_num_query_groups) : Json();
    json["attention_k_eq_v"] = c.full_attention_value_is_key;
  }
  void object(const AllConfig& config, std::vector<Objection>& out) const override {
    const TransformerConfig& c = config.model_config;
    if (c.full_attention_num_query_groups &&
        *c.full_attention_num_query_groups != c.num_query_groups &&
        !c.full_attention_value_is_key) {
      object_unless(config, "full_attention_num_query_groups", Value(), out,
                    "leave it out, or use full_attention_value_is_key: True");
    }
  }
  std::vector<std::string> keys() const override {
    return {"full_attention_kv_channels", "full_attention_num_query_groups",
            "full_attention_value_is_key"};
  }
  RuleText text() const override {
    return {.read =
                "`global_head_dim`, `num_global_key_value_heads`, `attention_k_eq_v`, or "
                "`per_layer_config` in place of the first two"};
  }

 private:
  static constexpr const char* kSize = "global_head_dim";
  static constexpr const char* kGroups = "num_global_key_value_heads";
  static constexpr const char* kByLayer = "per_layer_config";

  // The layers without a window, as the rule of windows has read them.
  static std::vector<bool> full_layers(const Fields& file) {
    std::vector<bool> out(static_cast<size_t>(file.size_of("num_hidden_layers")), true);
    for (const HfSetting& setting : file.out.settings) {
      if (setting.key == "window_size" && !setting.value.is_null()) {
        std::fill(out.begin(), out.end(), false);
      }
    }
    for (const HfSetting& setting : file.out.settings) {
      if (setting.key == "layer_types" && setting.value.is<Value::List>()) {
        const auto& kinds = setting.value.as<Value::List>();
        for (size_t i = 0; i < kinds.size() && i < out.size(); ++i) {
          out[i] = kinds[i].as<std::string>() == "full_attention";
        }
      }
    }
    return out;
  }

  static void read_by_layer(Fields& file, const Json& by_layer, int64_t& size, int64_t& groups) {
    if (!by_layer.is_object()) {
      file.finding(kByLayer, concat("expected an object, got ", by_layer.dump()));
      return;
    }
    const std::vector<bool> full = full_layers(file);
    const int64_t usual_size = size;
    const int64_t usual_groups = groups;
    bool found_full = false;
    for (size_t layer = 0; layer < full.size(); ++layer) {
      int64_t own_size = usual_size;
      int64_t own_groups = usual_groups;
      for (const auto& [name, values] : by_layer.items()) {
        if (number_of(name) == static_cast<int64_t>(layer)) {
          read_layer(file, name, values, own_size, own_groups);
        }
      }
      const bool first = full[layer] && !found_full;
      found_full = found_full || full[layer];
      size = first ? own_size : size;
      groups = first ? own_groups : groups;
      if (own_size != (full[layer] ? size : usual_size) ||
          own_groups != (full[layer] ? groups : usual_groups)) {
        file.finding(kByLayer, concat("layer ", layer, " has other heads than others of its kind: ",
                                      "head_dim ", own_size, ", num_key_value_heads ", own_groups,
                                      ", which is not built"));
        return;
      }
    }
    for (const auto& [name, values] : by_layer.items()) {
      if (number_of(name) < 0 || number_of(name) >= std::ssize(full)) {
        file.finding(kByLayer, concat("\"", name, "\" is the number of no layer"));
        return;
      }
    }
  }

  static int64_t number_of(const std::string& name) {
    int64_t number = -1;
    const char* end = name.data() + name.size();
    const auto parsed = std::from_chars(name.data(), end, number);
    return parsed.ec == std::errc() && parsed.ptr == end ? number : -1;
  }

  static void read_layer(
      Fields& file, const std::string& layer, const Json& values, int64_t& size, int64_t& groups) {
    if (!values.is_object()) {
      file.finding(kByLayer, concat("layer ", layer, ": expected an object, got ", values.dump()));
      return;
    }
    for (const auto& [name, value] : values.items()) {
      int64_t* const member = name == "head_dim"              ? &size
                              : name == "num_key_value_heads" ? &groups
                                                              : nullptr;
      const bool is_size = value.is_number_integer() && value > 0 && value <= hf::kMaxSize;
      if (member == nullptr || !is_size) {
        file.finding(kByLayer, concat("layer ", layer, ": expected sizes head_dim and ",
                                      "num_key_value_heads, got ", name, ": ", value.dump()));
        return;
      }
      *member = value.get<int64_t>();
    }
  }

  int64_t default_;
};

class SharedKeys final : public Rule {
 public:
  void read(Fields& file) const override {
    file.set("num_kv_shared_layers",
             count(file, kShared, std::max<int64_t>(file.size_of("num_hidden_layers") - 1, 0)),
             kShared);
    file.set("use_double_wide_mlp", file.boolean(kWide, false), kWide);
  }
  void write(const AllConfig& config, Json& json) const override {
    json[kShared] = config.model_config.num_kv_shared_layers;
    json[kWide] = config.model_config.use_double_wide_mlp;
  }
  std::vector<std::string> keys() const override {
    return {"num_kv_shared_layers", "use_double_wide_mlp"};
  }
  RuleText text() const override { return {.read = concat("`", kShared, "`, `", kWide, "`")}; }

 private:
  static constexpr const char* kShared = "num_kv_shared_layers";
  static constexpr const char* kWide = "use_double_wide_mlp";
};

class PerLayerEmbeddings final : public Rule {
 public:
  PerLayerEmbeddings(int64_t size, int64_t rows) : size_(size), rows_(rows) {}

  void read(Fields& file) const override {
    const bool has_size = file.find(kSize) != nullptr || file.has(kSize);
    const Found<int64_t> size =
        has_size ? count(file, kSize, hf::kMaxSize) : Found<int64_t>{size_, concat(size_), false};
    file.set("per_layer_embedding_size", size, kSize);
    const Found<int64_t> rows = file.size(kRows, rows_);
    const int64_t vocabulary = file.size_of("vocab_size");
    if (size.value > 0 && rows.value < vocabulary) {
      file.finding(kRows, concat(rows.text, " is less than vocab_size ", vocabulary));
    }
    const bool other = size.value > 0 && rows.value != vocabulary;
    file.set_value("per_layer_vocab_size", other ? Value(rows.value) : Value(), kRows, rows.text,
                   rows.written);
  }
  void write(const AllConfig& config, Json& json) const override {
    json[kSize] = config.model_config.per_layer_embedding_size;
    json[kRows] = per_layer_vocab_size(config.model_config);
  }
  std::vector<std::string> keys() const override {
    return {"per_layer_embedding_size", "per_layer_vocab_size"};
  }
  RuleText text() const override { return {.read = concat("`", kSize, "`, `", kRows, "`")}; }

 private:
  static constexpr const char* kSize = "hidden_size_per_layer_input";
  static constexpr const char* kRows = "vocab_size_per_layer_input";
  int64_t size_;
  int64_t rows_;
};

class ExpertsBesideDense final : public Rule {
 public:
  void read(Fields& file) const override {
    const Found<bool> enabled = file.boolean(kSwitch, false);
    file.set_moe("moe_beside_dense", Value(enabled.value), kSwitch, enabled.text, enabled.written);
    if (!enabled.value) {
      file.set_moe("num_experts", Value(int64_t{1}), kSwitch, enabled.text, enabled.written);
      return;
    }
    for (const char* name : {kNumber, kChosen, kWidth}) {
      if (file.find(name) == nullptr) {
        file.finding(name, concat("expected a number beside ", kSwitch, ": true, got null"));
        return;
      }
    }
    const Found<int64_t> number = file.size(kNumber, 1);
    const Found<int64_t> chosen = file.size(kChosen, 1);
    if (number.value < 2) {
      file.finding(kNumber,
                   concat("a mixture of ", number.text, " expert; what is read has 2 or more"));
    } else if (chosen.value > number.value) {
      file.finding(kChosen, concat(chosen.text, " of ", kNumber, " ", number.text));
    }
    file.set_moe("num_experts", number, kNumber);
    file.set_moe("moe_router_topk", chosen, kChosen);
    file.set_moe("moe_ffn_hidden_size", file.size(kWidth, 1), kWidth);
  }
  void write(const AllConfig& config, Json& json) const override {
    const MoEConfig& moe = config.moe_config;
    const bool enabled = moe.num_experts > 1;
    TransformerConfig model = config.model_config;
    model.moe = moe;
    json[kSwitch] = enabled;
    json[kNumber] = enabled ? Json(moe.num_experts) : Json();
    json[kChosen] = enabled ? Json(moe.moe_router_topk) : Json();
    json[kWidth] = enabled ? Json(moe_ffn_hidden_size(model)) : Json();
  }
  void object(const AllConfig& config, std::vector<Objection>& out) const override {
    if (config.moe_config.num_experts > 1) {
      object_unless(config, "moe_config.moe_beside_dense", Value(true), out);
    }
  }
  std::vector<std::string> keys() const override { return {"moe_config.moe_beside_dense"}; }
  RuleText text() const override {
    return {.read = concat("`", kSwitch, "`, `", kNumber, "`, `", kChosen, "`, `", kWidth, "`")};
  }

 private:
  static constexpr const char* kSwitch = "enable_moe_block";
  static constexpr const char* kNumber = "num_experts";
  static constexpr const char* kChosen = "top_k_experts";
  static constexpr const char* kWidth = "moe_intermediate_size";
};

}  // namespace

Rules heads_by_kind(int64_t head_dim) {
  return {std::make_shared<HeadsByKind>(head_dim), std::make_shared<SharedKeys>()};
}
Rules per_layer_embeddings(int64_t size, int64_t rows) {
  return {std::make_shared<PerLayerEmbeddings>(size, rows)};
}
Rules experts_beside_dense() {
  return joined(std::make_shared<ExpertsBesideDense>(), experts_everywhere(), no_shared_expert(),
                normalised_gates());
}

}  // namespace tapestry::architectures
