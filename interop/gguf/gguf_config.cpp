#include "interop/gguf/gguf_config.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>
#include <optional>
#include <set>
#include <utility>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "interop/architectures/hf_folder.h"
#include "interop/architectures/read_hf_config.h"
#include "interop/architectures/registry.h"
#include "interop/architectures/rules.h"
#include "parallel_core/config/schema/schema.h"
#include "parallel_core/rotary_frequencies.h"

namespace tapestry {
namespace {

using architectures::Architecture;
using architectures::GgufKey;
using config::Value;

constexpr const char* kRopeFreqs = "rope_freqs.weight";
constexpr const char* kLongFactors = "rope_factors_long.weight";
constexpr const char* kShortFactors = "rope_factors_short.weight";
constexpr double kRounding = 2e-6;  // of float32, and of what others computed in it

// 1e-05 for the float32 that is nearest to it.
double shortest(float number) {
  std::array<char, 32> text;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), number).ptr;
  double out = number;
  std::from_chars(text.data(), end, out);
  return out;
}

Value value_in(const GgufArray& list) {
  Value::List out;
  for (uint64_t i = 0; i < list.count; ++i) {
    if (list.type == GgufValueType::kBool) {
      out.emplace_back(list.integer(i) != 0);
    } else if (list.type == GgufValueType::kF32 || list.type == GgufValueType::kF64) {
      out.emplace_back(shortest(static_cast<float>(list.number(i))));
    } else if (list.type == GgufValueType::kString) {
      out.emplace_back(list.texts[i]);
    } else if (list.type != GgufValueType::kArray) {
      out.emplace_back(list.integer(i));
    }
  }
  return out;
}

// A value of the metadata as one of a configuration; null where there is none.
Value value_in(const GgufFile& file, const std::string& key) {
  const auto found = file.metadata().find(key);
  if (found == file.metadata().end()) {
    return {};
  }
  const GgufValue& value = found->second;
  if (value.type == GgufValueType::kBool) {
    return file.flag(key);
  }
  if (value.type == GgufValueType::kString) {
    return file.text(key);
  }
  if (value.type == GgufValueType::kF32) {
    return shortest(static_cast<float>(file.number(key)));
  }
  if (value.type == GgufValueType::kF64) {
    return file.number(key);
  }
  if (value.type == GgufValueType::kArray) {
    return value_in(file.array(key));
  }
  return file.count(key);
}

bool agrees(const Value& ours, const Value& theirs) {
  const auto* list = std::get_if<Value::List>(&ours.data);
  const auto* other = std::get_if<Value::List>(&theirs.data);
  if (list != nullptr && other != nullptr) {
    return std::equal(list->begin(), list->end(), other->begin(), other->end(), agrees);
  }
  const auto number = [](const Value& value) -> std::optional<double> {
    return value.is<double>()    ? std::optional(value.as<double>())
           : value.is<int64_t>() ? std::optional(static_cast<double>(value.as<int64_t>()))
                                 : std::nullopt;
  };
  if (ours.is<double>() && number(theirs)) {
    const double a = ours.as<double>();
    const double b = *number(theirs);
    return std::abs(a - b) <= kRounding * std::max(std::abs(a), std::abs(b));
  }
  return ours == theirs;
}

Shape without_leading_ones(Shape shape) {
  while (shape.size() > 1 && shape[0] == 1) {
    shape.erase(0);
  }
  return shape;
}

// Tries to read a file as the model of a family.
class FamilyReader {
 public:
  FamilyReader(const GgufFile& file, const Architecture& family, const TokenIds& ids)
      : file_(file), family_(family), tables_(*family.gguf), ids_(ids) {}

  // What speaks against it; nothing: reading() is the model.
  const std::vector<std::string>& read() {
    try {
      bound_counts();
      take_seed();
      take_keys();
      take_tensors();
      for (const auto& objection : architectures::gguf_objections(family_, all_.model_config)) {
        problems_.push_back(
            concat(objection.key, " would be ", objection.value, "; ", objection.advice));
      }
      if (problems_.empty()) {
        write_and_read();
        compare_keys();
        compare_tensors();
      }
    } catch (const Error& error) {
      problems_.emplace_back(error.what());
    }
    return problems_;
  }

  GgufReading&& reading() { return std::move(out_); }

 private:
  std::string full(std::string_view key) const { return concat(tables_.architecture, ".", key); }

  // Before anything is made for each layer or expert.
  void bound_counts() const {
    const int64_t layers = file_.count(full("block_count"));
    const auto tensors = static_cast<int64_t>(file_.tensors().size());
    check<ValueError>(layers >= 1 && layers <= tensors, file_.path(), ": ", full("block_count"),
                      ": is ", layers, ", but the file has ", tensors, " tensors in all");
    if (const std::string key = full("expert_count"); file_.has(key)) {
      const int64_t experts = file_.count(key);
      int64_t stacked = 0;
      for (const auto& [name, entry] : file_.tensors()) {
        if (entry.shape.size() == 3 || name.ends_with("_exps.bias")) {
          stacked += std::min(entry.shape[0], int64_t{1} << 32U);
        }
      }
      int64_t all = 0;
      check<ValueError>(!__builtin_mul_overflow(experts, layers, &all) && all <= stacked,
                        file_.path(), ": ", key, ": is ", experts, " in each of ", layers,
                        " layers, but the tensors of the file hold ", stacked, " in all");
    }
  }

  // What llama.cpp takes where a file leaves a key out; null: it has none of its own.
  Value left_out(std::string_view key) const {
    const auto length_of_head = [&]() -> Value {
      const int64_t heads = file_.count(full("attention.head_count"));
      return heads > 0 ? Value(file_.count(full("embedding_length")) / heads) : Value();
    };
    if (key == "vocab_size") {
      return static_cast<int64_t>(file_.texts("tokenizer.ggml.tokens").size());
    }
    if (key == "attention.head_count_kv") {
      return value_in(file_, full("attention.head_count"));
    }
    if (key == "attention.key_length" || key == "attention.value_length") {
      return length_of_head();
    }
    if (key == "rope.dimension_count") {
      const Value length = value_in(file_, full("attention.key_length"));
      return length.is_null() ? length_of_head() : length;
    }
    if (key == "rope.freq_base" || key == "rope.freq_base_swa") {
      return 10000.0;
    }
    if (key == "attention.sliding_window") {
      return int64_t{0};
    }
    if (key == "attn_logit_softcapping") {
      return 50.0;
    }
    if (key == "final_logit_softcapping") {
      return tables_.architecture == "gemma2" ? Value(30.0) : Value();
    }
    if (key == "expert_weights_norm") {
      return false;
    }
    if (key == "expert_weights_scale") {
      return 1.0;
    }
    if (key == "expert_group_count" || key == "expert_group_used_count") {
      return int64_t{1};
    }
    return {};
  }

  // A list that says the same of each layer says it of all.
  Value given(const GgufKey& key) const {
    Value value = value_in(file_, key.whole ? std::string(key.key) : full(key.key));
    const auto* list = std::get_if<Value::List>(&value.data);
    const bool by_layer = list != nullptr && (key.key == "attention.head_count" ||
                                              key.key == "attention.head_count_kv" ||
                                              key.key == "feed_forward_length");
    if (by_layer && !list->empty() &&
        std::all_of(list->begin(), list->end(),
                    [&](const Value& one) { return one == list->front(); })) {
      return Value(list->front());
    }
    return value.is_null() ? left_out(key.key) : value;
  }

  Value size_at(const char* key) const {
    constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
    const Value value = given({.key = key});
    const bool fits =
        value.is<int64_t>() && value.as<int64_t>() >= 1 && value.as<int64_t>() <= kMost;
    check<ValueError>(fits, file_.path(), ": ", full(key), ": is ",
                      value.is_null() ? "missing" : to_yaml(value),
                      ", expected an integer from 1 to ", kMost);
    return value;
  }

  // A config.json of the family with what all of them say of sizes, under the names that they say
  // it by; the rest of it is the family's.
  void take_seed() {
    hf::Json json = hf::Json::object();
    json["model_type"] = family_.model_type;
    json["new_decoder_architecture"] = true;  // of Falcon
    const auto say = [&](const char* key, std::initializer_list<const char*> members) {
      const Value value = size_at(key);
      for (const char* member : members) {
        json[member] = architectures::json_of(value);
      }
    };
    const bool latent = file_.has(full("attention.kv_lora_rank"));
    say("vocab_size", {"vocab_size"});
    say("block_count", {"num_hidden_layers", "n_layer"});
    say("context_length", {"max_position_embeddings", "n_positions"});
    say("embedding_length", {"hidden_size", "n_embd"});
    say("feed_forward_length", {"intermediate_size", "n_inner", "ffn_hidden_size"});
    say("attention.head_count", {"num_attention_heads", "n_head"});
    say(latent ? "attention.head_count" : "attention.head_count_kv",
        {"num_key_value_heads", "num_kv_heads"});
    if (!latent) {
      const bool divides =
          file_.count(full("embedding_length")) % size_at("attention.head_count").as<int64_t>() ==
          0;
      check<ValueError>(divides || file_.has(full("attention.key_length")), file_.path(), ": ",
                        full("attention.head_count"), ": does not divide ",
                        full("embedding_length"), ", and there is no ",
                        full("attention.key_length"));
      say("attention.key_length", {"head_dim"});
    }
    if (const std::string key = full("leading_dense_block_count"); file_.has(key)) {
      json["first_k_dense_replace"] = architectures::json_of(value_in(file_, key));
    }
    const bool has_windows =
        std::any_of(tables_.keys.begin(), tables_.keys.end(),
                    [](const GgufKey& key) { return key.key == "attention.sliding_window"; });
    const Value window =
        has_windows ? given({.key = "attention.sliding_window"}) : Value(int64_t{0});
    json["sliding_window"] =
        window == Value(int64_t{0}) ? hf::Json() : architectures::json_of(window);
    apply(json.dump());
    TransformerConfig& c = all_.model_config;
    c.attention_scale.reset();
    if (json["sliding_window"].is_null()) {
      c.window_size.reset();
    }
    // What llama.cpp computes whatever a file says; its keys come after it.
    for (const auto& rule : tables_.limits) {
      rule->settle(all_);
    }
    c.moe = all_.moe_config;
  }

  void apply(const std::string& text) {
    const HfConfig read = parse_hf_config(text, file_.path());
    all_ = AllConfig();
    for (const HfSetting& setting : read.settings) {
      config::find_key(setting.section, setting.key)->field.set(all_, setting.value);
    }
    all_.model_config.moe = all_.moe_config;
  }

  void take_keys() {
    for (const GgufKey& key : tables_.keys) {
      const Value value = given(key);
      try {
        if (key.back != nullptr) {
          key.back(value, all_);
        } else if (!key.ours.empty()) {
          take_own(std::string(key.ours), value);
        }
      } catch (const ValueError& error) {
        problems_.push_back(concat(key.whole ? "" : std::string(tables_.architecture) + ".",
                                   key.key, ", which is ", error.what()));
      }
      all_.model_config.moe = all_.moe_config;
    }
  }

  // What a file leaves out is null where the key can be; compare_keys() says what is missing.
  void take_own(const std::string& ours, const Value& value) {
    constexpr std::string_view kMoe = "moe_config.";
    const bool moe = ours.starts_with(kMoe);
    const config::Key* row = config::find_key(moe ? "moe_config" : "model_config",
                                              moe ? ours.substr(kMoe.size()) : ours);
    if (!value.is_null() || row->field.nullable) {
      architectures::set_value(all_, ours, value);
    }
  }

  bool has_in_layers(std::string_view name) const {
    const int64_t layers = all_.model_config.num_layers;
    for (int64_t layer = 0; layer < layers; ++layer) {
      if (file_.find(concat("blk.", layer, ".", name)) != nullptr) {
        return true;
      }
    }
    return false;
  }

  // The file's name of a logical row of layers; empty: the family has none.
  std::string in_file(std::string_view logical) const {
    for (const auto& row : tables_.layer) {
      if (row.logical == logical) {
        return std::string(row.file);
      }
    }
    return {};
  }

  bool has_bias(std::string_view logical) const {
    const std::string name = in_file(logical);
    return !name.empty() && has_in_layers(name + "bias");
  }

  void take_tensors() {
    TransformerConfig& c = all_.model_config;
    c.untie_embeddings_and_output_weights = file_.find("output.weight") != nullptr;
    c.qkv_has_bias = has_bias("attention.wq.");
    c.out_proj_has_bias = has_bias("attention.wo.");
    const bool stacked_bias = has_in_layers("ffn_down_exps.bias");
    c.mlp_has_bias = has_bias("feed_forward.w_down.") || stacked_bias;
    if (const std::string name = in_file("attention.q_norm."); !name.empty()) {
      c.qk_layernorm = has_in_layers(name + "weight");
    }
    MoEConfig& moe = all_.moe_config;
    if (moe.moe_router_score_function == "softmax" && moe.norm_topk_prob) {
      moe.moe_router_pre_softmax = !*moe.norm_topk_prob;  // two words for one thing
    }
    take_divisors();
    take_longrope();
    c.moe = all_.moe_config;
  }

  std::vector<double> values_of(const char* name) const {
    const GgufEntry& entry = *file_.find(name);
    constexpr uint64_t kMost = 1U << 20U;
    check<ValueError>(entry.type == GgufType::kF32 && entry.bytes <= kMost, file_.path(),
                      ": tensor ", name, ": is ", name_of(entry.type), " ", entry.shape.str(),
                      ", expected F32 of one number for each pair of channels");
    std::vector<float> values(entry.bytes / sizeof(float));
    file_.read_bytes(name, 0, entry.bytes, values.data());
    std::vector<double> out;
    for (const float value : values) {
      check<ValueError>(std::isfinite(value) && value > 0, file_.path(), ": tensor ", name,
                        ": holds ", value, ", expected numbers above 0");
      out.push_back(shortest(value));
    }
    return out;
  }

  void take_longrope() {
    RotaryConfig& rotary = all_.model_config.rotary_config;
    if (rotary.rope_type != "longrope") {
      return;
    }
    for (const char* name : {kLongFactors, kShortFactors}) {
      check<ValueError>(file_.find(name) != nullptr, file_.path(), ": the tensor ", name,
                        " is missing, of a rotation scaled as longrope");
    }
    rotary.long_factor = values_of(kLongFactors);
    rotary.short_factor = values_of(kShortFactors);
  }

  // Divisors of the frequencies are what llama3's scaling makes of them, whatever it was called.
  void take_divisors() {
    if (file_.find(kRopeFreqs) == nullptr) {
      return;
    }
    const std::vector<double> divisors = values_of(kRopeFreqs);
    if (std::all_of(divisors.begin(), divisors.end(), [](double d) { return d == 1; })) {
      passed_over_.insert(kRopeFreqs);
      return;
    }
    TransformerConfig& c = all_.model_config;
    const auto pairs = static_cast<int64_t>(divisors.size());
    check<ValueError>(rotated_channels(c) == 2 * pairs, file_.path(), ": tensor ", kRopeFreqs,
                      ": has ", pairs, " divisors, expected one for each pair of the ",
                      rotated_channels(c), " rotated channels");
    RotaryConfig& rotary = c.rotary_config;
    const std::vector<double> plain = rotary_frequencies(rotary, 2 * pairs, 1).of_pairs;
    const auto matches = [&](double factor, double low, double high, int64_t original) {
      RotaryConfig scaled = rotary;
      scaled.rope_type = "llama3";
      scaled.rope_scaling_factor = factor;
      scaled.low_freq_factor = low;
      scaled.high_freq_factor = high;
      scaled.original_max_position_embeddings = original;
      const std::vector<double> used = rotary_frequencies(scaled, 2 * pairs, 1).of_pairs;
      for (size_t j = 0; j < plain.size(); ++j) {
        if (std::abs(plain[j] / used[j] / divisors[j] - 1) > kRounding) {
          return false;
        }
      }
      rotary = scaled;
      return true;
    };
    const double factor = *std::max_element(divisors.begin(), divisors.end());
    // What models have in use, then what the divisors between the ends say.
    for (int64_t original = 8192; original <= int64_t{1} << 20U; original *= 2) {
      if (matches(factor, 1, 4, original)) {
        return;
      }
    }
    for (int64_t original = 4096; original >= 8; original /= 2) {
      if (matches(factor, 1, 4, original)) {
        return;
      }
    }
    check<ValueError>(fits_line(plain, divisors, factor, matches), file_.path(), ": tensor ",
                      kRopeFreqs,
                      ": its divisors are not those of llama3's scaling, the only one of this "
                      "kind that is built");
  }

  // Between its ends the scaling goes linearly with the turns of a pair: 1/divisor = (1 - s)/F + s,
  // s = (O f / 2 pi - low) / (high - low). Two points give the line; low is 1 then, by choice.
  static bool fits_line(const std::vector<double>& plain,
                        const std::vector<double>& divisors,
                        double factor,
                        const std::function<bool(double, double, double, int64_t)>& matches) {
    std::vector<std::pair<double, double>> points;  // frequency, s
    for (size_t j = 0; j < plain.size(); ++j) {
      const double s = (1 / divisors[j] - 1 / factor) / (1 - 1 / factor);
      if (s > kRounding && s < 1 - kRounding) {
        points.emplace_back(plain[j], s);
      }
    }
    if (points.size() < 2) {
      return false;
    }
    const auto [f1, s1] = points.front();
    const auto [f2, s2] = points.back();
    const double slope = (s1 - s2) / (f1 - f2);
    const double offset = slope * f1 - s1;  // low / (high - low)
    if (!(slope > 0) || !(offset > 0)) {
      return false;
    }
    const double high = 1 + 1 / offset;
    const double original = slope * 2 * std::numbers::pi * (high - 1);
    return original < 1e15 && original >= 1 &&
           matches(factor, 1, std::round(high * 1e4) / 1e4, std::llround(original));
  }

  void write_and_read() {
    DType dtype = kFloat32;
    if (const GgufEntry* matrix = file_.find("blk.0.attn_output.weight")) {
      dtype = matrix->type == GgufType::kF16    ? kFloat16
              : matrix->type == GgufType::kBF16 ? kBFloat16
                                                : kFloat32;
    }
    all_.model_config.hf_model_type = std::string(family_.model_type);
    HfSource source;
    source.token_ids = ids_;
    out_.family = &family_;
    out_.config_json =
        model_config_json(all_.model_config, std::string(family_.model_type), dtype, source);
    apply(out_.config_json);
    out_.config = all_.model_config;
    out_.model = gguf_model(family_, out_.config);
  }

  void compare_keys() {
    std::set<std::string> known;
    for (const auto& [key, ours] : gguf_model_keys(out_.config, out_.model)) {
      known.insert(key);
      const Value theirs = value_in(file_, key);
      const size_t dot = tables_.architecture.size() + 1;
      const bool own = key.starts_with(full(""));
      const Value meant = own ? given({.key = std::string_view(key).substr(dot)}) : theirs;
      if (agrees(ours, meant) || (ours.is_null() && is_nothing(key, theirs))) {
        continue;
      }
      if (theirs.is_null() && meant.is_null()) {
        problems_.push_back(concat("the key ", key, " is missing; it would be ", to_yaml(ours)));
      } else {
        problems_.push_back(concat(key, ": is ", to_yaml(meant), ", expected ",
                                   ours.is_null() ? "none" : to_yaml(ours)));
      }
    }
    for (const GgufList& list : out_.model.lists) {
      known.insert(list.key);
      const size_t found = file_.numbers(list.key).size();
      if (found != list.logical.size()) {
        problems_.push_back(
            concat(list.key, ": has ", found, " numbers, expected ", list.logical.size()));
      }
    }
    for (const auto& [key, value] : file_.metadata()) {
      const bool of_model = key.starts_with(full("")) || key.starts_with("xielu.");
      if (of_model && !known.contains(key) && !is_nothing(key, value_in(file_, key))) {
        problems_.push_back(concat(key, ": is ", to_yaml(value_in(file_, key)),
                                   ", a key of which nothing is known for this family"));
      }
    }
  }

  // Keys of an architecture that say nothing, or say that something is not there.
  bool is_nothing(const std::string& key, const Value& value) const {
    const std::string_view own =
        std::string_view(key).substr(std::min(key.size(), tables_.architecture.size() + 1));
    constexpr std::array<std::string_view, 4> kSilent = {"rope.scaling.finetuned",
                                                         "tensor_data_layout", "attention.causal",
                                                         "rope.scaling.original_context_length"};
    if (own == "attention.causal") {
      return value == Value(true);
    }
    if (std::find(kSilent.begin(), kSilent.end(), own) != kSilent.end()) {
      return true;
    }
    const bool is_0 = value == Value(int64_t{0}) || value == Value(0.0) || value == Value(false);
    const bool is_1 = value == Value(1.0);
    constexpr std::array<std::string_view, 9> kOff = {
        "expert_count",        "expert_used_count",        "attention.max_alibi_bias",
        "attention.clamp_kqv", "nextn_predict_layers",     "leading_dense_block_count",
        "expert_shared_count", "attention.sliding_window", "expert_feed_forward_length"};
    constexpr std::array<std::string_view, 4> kUnit = {
        "rope.scaling.attn_factor", "rope.scaling.factor", "rope.scale_linear", "residual_scale"};
    return (is_0 && std::find(kOff.begin(), kOff.end(), own) != kOff.end()) ||
           (is_1 && std::find(kUnit.begin(), kUnit.end(), own) != kUnit.end()) ||
           (own == "rope.scaling.type" && value == Value(std::string("none")));
  }

  void compare_tensors() {
    std::set<std::string> known = passed_over_;
    for (const GgufTensor& tensor : out_.model.tensors) {
      known.insert(tensor.name);
      const GgufEntry* entry = file_.find(tensor.name);
      if (entry == nullptr) {
        problems_.push_back(
            concat("the tensor ", tensor.name, " ", tensor.shape.str(), " is missing"));
        continue;
      }
      if (without_leading_ones(entry->shape) != without_leading_ones(tensor.shape)) {
        problems_.push_back(concat("tensor ", tensor.name, ": its shape is ", entry->shape.str(),
                                   ", expected ", tensor.shape.str()));
      } else if (!tensor.values.empty()) {
        compare_values(tensor);
      }
    }
    for (const auto& [name, entry] : file_.tensors()) {
      if (!known.contains(name)) {
        problems_.push_back(concat("tensor ", name, " ", entry.shape.str(),
                                   ": models of this family have none of this name"));
      }
    }
  }

  void compare_values(const GgufTensor& tensor) {
    const std::vector<double> theirs = values_of(tensor.name.c_str());
    for (size_t j = 0; j < theirs.size(); ++j) {
      if (std::abs(tensor.values[j] / theirs[j] - 1) > 2 * kRounding) {
        problems_.push_back(concat("tensor ", tensor.name, ": number ", j, " is ", theirs[j],
                                   ", expected ", tensor.values[j]));
        return;
      }
    }
  }

  const GgufFile& file_;
  const Architecture& family_;
  const architectures::GgufTables& tables_;
  const TokenIds& ids_;
  AllConfig all_;
  std::set<std::string> passed_over_;
  std::vector<std::string> problems_;
  GgufReading out_;
};

}  // namespace

GgufReading read_gguf_config(const GgufFile& file, const TokenIds& ids) {
  const std::string& architecture = file.text("general.architecture");
  if (file.has("general.type")) {
    check<ValueError>(file.text("general.type") == "model", file.path(), ": general.type: is \"",
                      file.text("general.type"),
                      "\", expected model: adapters are read in PEFT's form alone");
  }
  std::vector<std::string> fewest;
  const Architecture* nearest = nullptr;
  std::set<std::string> known;
  for (const Architecture& family : architectures::all()) {
    if (!family.gguf) {
      continue;
    }
    known.insert(std::string(family.gguf->architecture));
    if (family.gguf->architecture != architecture) {
      continue;
    }
    FamilyReader reader(file, family, ids);
    const std::vector<std::string>& problems = reader.read();
    if (problems.empty()) {
      return reader.reading();
    }
    if (nearest == nullptr || problems.size() < fewest.size()) {
      fewest = problems;
      nearest = &family;
    }
  }
  if (nearest == nullptr) {
    std::string names;
    for (const std::string& name : known) {
      names += (names.empty() ? "" : ", ") + name;
    }
    throw ValueError(concat(file.path(), ": general.architecture: is \"", architecture,
                            "\", which cannot be read; what can: ", names));
  }
  constexpr size_t kShown = 8;
  std::string text = concat(file.path(), ": is no model of ", nearest->title, " (",
                            nearest->model_type, ") that can be read");
  for (size_t i = 0; i < std::min(kShown, fewest.size()); ++i) {
    text += "\n  " + fewest[i];
  }
  if (fewest.size() > kShown) {
    text += concat("\n  and ", fewest.size() - kShown, " more");
  }
  throw ValueError(text);
}

}  // namespace tapestry
