#include "interop/architectures/read_hf_config.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <utility>

#include "autograd/io/input_file.h"
#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "interop/architectures/hf_fields.h"
#include "parallel_core/config/read/parse_value.h"
#include "parallel_core/config/schema/schema.h"
#include "parallel_core/config/yaml/raw_json.h"

namespace tapestry {
namespace {

namespace fs = std::filesystem;
using config::Key;
using config::Value;
using hf::Found;
using hf::Json;

constexpr const char* kHfFile = "config.json";
constexpr uintmax_t kMaxHfBytes = 16U << 20U;  // those in use have a few kilobytes

// Defaults of a type.
struct HfDefaults {
  int64_t vocab_size = 32000;
  int64_t hidden_size = 4096;
  int64_t intermediate_size = 11008;
  int64_t layers = 32;
  int64_t heads = 32;
  int64_t max_position_embeddings = 2048;
  std::optional<int64_t> key_value_heads = {};  // none: those of the queries
  double norm_epsilon = 1e-6;
  double rope_theta = 10000.0;
  TokenIds token_ids = {};
};

class HfReader : private hf::Fields {
 public:
  HfReader(const std::string& text, const std::string& file) : Fields(text, file) {}

  HfConfig read() {
    out_.model_type = model_type();
    read_dtype();
    read_quantization();
    if (out_.model_type == "gpt2") {
      read_gpt2();
    } else if (out_.model_type == "tapestry") {
      read_tapestry();
    } else {
      read_llama();
    }
    if (!findings_.empty()) {
      std::string all;
      for (const std::string& finding : findings_) {
        all += (all.empty() ? "" : "\n") + finding;
      }
      throw ValueError(all);
    }
    return std::move(out_);
  }

 private:
  std::string model_type() {
    std::string type = text("model_type", "").value;
    std::vector<std::string> classes;
    if (const Json* list = find("architectures")) {
      if (!list->is_array() || !std::all_of(list->begin(), list->end(),
                                            [](const Json& item) { return item.is_string(); })) {
        finding("architectures", concat("expected a list of strings, got ", list->dump()));
      } else {
        classes = list->get<std::vector<std::string>>();
      }
    }
    const std::vector<std::pair<std::string, std::vector<std::string>>> known = {
        {"llama", {"LlamaForCausalLM", "LLaMAForCausalLM", "LlamaModel"}},
        {"mistral", {"MistralForCausalLM", "MistralModel"}},
        {"mixtral", {"MixtralForCausalLM", "MixtralModel"}},
        {"qwen2", {"Qwen2ForCausalLM", "Qwen2Model"}},
        {"qwen2_moe", {"Qwen2MoeForCausalLM", "Qwen2MoeModel"}},
        {"gpt2", {"GPT2LMHeadModel", "GPT2Model"}},
        {"tapestry", {}}};
    const auto is_of = [&](const auto& entry) {
      return type.empty() ? !classes.empty() && std::count(entry.second.begin(), entry.second.end(),
                                                           classes.front()) > 0
                          : type == entry.first;
    };
    const auto entry = std::find_if(known.begin(), known.end(), is_of);
    if (entry == known.end()) {
      const std::string shown = !type.empty()      ? concat("model_type \"", type, "\"")
                                : !classes.empty() ? concat("architecture ", classes.front())
                                                   : "no model_type";
      throw ValueError(concat(out_.file, ": ", shown, " cannot be read",
                              type == "qwen3" || type == "qwen3_moe"
                                  ? ": its norms of queries and keys are not read yet"
                                  : "",
                              "; what can: llama, mistral, mixtral, qwen2, qwen2_moe and gpt2"));
    }
    if (!entry->second.empty() && !classes.empty() &&
        std::count(entry->second.begin(), entry->second.end(), classes.front()) == 0) {
      finding("architectures",
              concat(classes.front(), " is not the language model of ", entry->first, ", ",
                     entry->second.front(), ", and cannot be read"));
    }
    return entry->first;
  }

  void read_dtype() {
    for (const char* name : {"torch_dtype", "dtype"}) {
      const Found<std::string> found = text(name, "");
      if (find(name) == nullptr || found.value == "auto") {
        continue;
      }
      std::optional<DType> dtype;
      for (const DType known : {kFloat32, kFloat16, kBFloat16, kFloat64}) {
        if (found.value == name_of(known)) {
          dtype = known;
        }
      }
      if (!dtype) {
        finding(name, concat("unknown dtype ", found.text,
                             "; what can be read: float32, bfloat16, float16, float64"));
      } else if (out_.dtype && *out_.dtype != *dtype) {
        finding(name, concat("is ", found.text, ", but torch_dtype is \"", name_of(*out_.dtype),
                             "\"; both name the dtype of the weights"));
      } else {
        out_.dtype = dtype;
      }
    }
  }

  // Some writers leave an object behind that asks for nothing: empty, or with every switch off.
  void read_quantization() {
    const char* const name = "quantization_config";
    const Json* asked = find(name);
    if (asked == nullptr) {
      return;
    }
    if (!asked->is_object()) {
      finding(name, concat("expected an object, got ", asked->dump()));
      return;
    }
    const auto is_off = [&](const char* key) {
      const auto found = asked->find(key);
      return found == asked->end() || found->is_null() || *found == false ||
             ((found->is_object() || found->is_array()) && found->empty());
    };
    const auto has = [&](const char* key) { return asked->contains(key); };
    const bool has_switches = has("load_in_4bit") || has("load_in_8bit");
    const bool switched_off = has_switches && is_off("load_in_4bit") && is_off("load_in_8bit") &&
                              is_off("_load_in_4bit") && is_off("_load_in_8bit");
    const bool has_groups = has("config_groups") || has("kv_cache_scheme");
    const bool no_groups = has_groups && is_off("config_groups") && is_off("kv_cache_scheme");
    if (!asked->empty() && !switched_off && !no_groups) {
      refuse_present(name, concat("the weights are quantised (", shown_method(*asked), ")"));
    }
  }
  static std::string shown_method(const Json& asked) {
    const auto method = asked.find("quant_method");
    return method == asked.end() ? "no quant_method is named" : concat("by ", method->dump());
  }

  void read_token_ids(const TokenIds& defaults) {
    const auto is_id = [](const Json& json) {
      return json.is_number_integer() && json.get<int64_t>() >= 0;
    };
    const auto one = [&](const char* name, std::optional<int64_t> id) -> std::optional<int64_t> {
      const Json* found = find(name);
      if (found == nullptr) {
        return has(name) ? std::nullopt : id;
      }
      if (is_id(*found)) {
        return found->get<int64_t>();
      }
      // -1 stands for none in some files.
      if (!found->is_number_integer()) {
        finding(name, concat("expected an id, got ", found->dump()));
      }
      return std::nullopt;
    };
    TokenIds& ids = out_.token_ids;
    ids.bos = one("bos_token_id", defaults.bos);
    ids.pad = one("pad_token_id", defaults.pad);
    const Json* eos = find("eos_token_id");
    if (eos != nullptr && eos->is_array()) {
      if (std::all_of(eos->begin(), eos->end(), is_id)) {
        ids.eos = eos->get<std::vector<int64_t>>();
      } else {
        finding("eos_token_id", concat("expected an id or a list of ids, got ", eos->dump()));
      }
      return;
    }
    const auto first = defaults.eos.empty() ? std::nullopt : std::optional(defaults.eos.front());
    if (const auto id = one("eos_token_id", first)) {
      ids.eos = {*id};
    }
  }

  void read_tie(bool by_default) {
    const Found<bool> tie = boolean("tie_word_embeddings", by_default);
    set_value("untie_embeddings_and_output_weights", Value(!tie.value), "tie_word_embeddings",
              tie.text, tie.written);
  }

  void set_block_structure() {
    set_by_type("qk_layernorm", Value(false));
    set_by_type("use_final_norm", Value(true));
    set_by_type("use_sandwich_norm", Value(false));
    set_by_type("apply_residual_connection_post_norm", Value(false));
  }

  void read_gpt2() {
    read_token_ids({.bos = 50256, .eos = {50256}, .pad = {}});
    const Found<int64_t> width = size("n_embd", 768);
    const Found<int64_t> heads = size("n_head", 12);
    set("vocab_size", size("vocab_size", 50257), "vocab_size");
    set("hidden_size", width, "n_embd");
    set("num_layers", size("n_layer", 12), "n_layer");
    set("num_attention_heads", heads, "n_head");
    set_value("group_query_attention", Value(false), "n_head", heads.text, heads.written);
    set("num_query_groups", heads, "n_head");
    if (width.value % heads.value != 0) {
      finding("n_head", concat(heads.text, " does not divide n_embd ", width.text));
    }
    set_value("kv_channels", Value(std::max<int64_t>(1, width.value / heads.value)), "n_head",
              heads.text, heads.written);
    const bool inner = find("n_inner") != nullptr;
    set("ffn_hidden_size",
        inner ? size("n_inner", 1) : Found<int64_t>{4 * width.value, "null", has("n_inner")},
        "n_inner");
    set("max_position_embeddings", size("n_positions", 1024), "n_positions");
    set_by_type("position_embedding_type", Value(std::string("learned_absolute")));
    set_by_type("normalization", Value(std::string("LayerNorm")));
    set("norm_epsilon", number("layer_norm_epsilon", 1e-5), "layer_norm_epsilon");
    read_gpt2_activation();
    for (const char* key : {"qkv_has_bias", "out_proj_has_bias", "mlp_has_bias"}) {
      set_by_type(key, Value(true));
    }
    set_by_type("window_size", Value());
    set_block_structure();
    read_tie(true);
    require("scale_attn_weights", true, "scores that are not divided by the root of a head's size");
    require("scale_attn_by_inverse_layer_idx", false,
            "scores that are divided by the layer's "
            "number");
    require("add_cross_attention", false, "attention to an encoder");
    set("init_method_std", number("initializer_range", 0.02), "initializer_range");
    set("attention_dropout", number("attn_pdrop", 0.1), "attn_pdrop");
    set_moe_by_type("num_experts", Value(int64_t{1}));
    const Found<double> residual = number("resid_pdrop", 0.1);
    const Found<double> embedding = number("embd_pdrop", 0.1);
    if (residual.value == embedding.value) {
      set("hidden_dropout", residual, "resid_pdrop");
    } else {
      out_.undecided.push_back(concat("hidden_dropout: resid_pdrop of ", out_.file, " is ",
                                      residual.text, ", embd_pdrop ", embedding.text,
                                      ", and there is one key here for both; give it"));
    }
  }

  void read_gpt2_activation() {
    const Found<std::string> found = text("activation_function", "gelu_new");
    constexpr std::pair<const char*, const char*> kActivations[] = {
        {"gelu_new", "fast_gelu"}, {"gelu_pytorch_tanh", "fast_gelu"},
        {"gelu", "gelu"},          {"relu", "relu"},
        {"silu", "silu"},          {"swish", "silu"}};
    for (const auto& [theirs, ours] : kActivations) {
      if (found.value == theirs) {
        set_value("hidden_act", Value(std::string(ours)), "activation_function", found.text,
                  found.written);
        return;
      }
    }
    finding("activation_function", concat("the activation ", found.text, " is not built; what is: ",
                                          "gelu_new, gelu_pytorch_tanh, gelu, relu, silu"));
  }

  HfDefaults llama_defaults() const {
    const std::string& type = out_.model_type;
    if (type == "qwen2") {
      return {.vocab_size = 151936, .intermediate_size = 22016, .max_position_embeddings = 32768};
    }
    if (type == "qwen2_moe") {
      return {.vocab_size = 151936,
              .hidden_size = 2048,
              .intermediate_size = 5632,
              .layers = 24,
              .heads = 16,
              .max_position_embeddings = 32768};
    }
    const TokenIds ids{.bos = 1, .eos = {2}, .pad = {}};
    if (type == "llama") {
      return {.token_ids = ids};
    }
    const bool mixtral = type == "mixtral";
    return {.intermediate_size = 14336,
            .max_position_embeddings = 131072,
            .key_value_heads = 8,
            .norm_epsilon = mixtral ? 1e-5 : 1e-6,
            .rope_theta = mixtral ? 1e6 : 10000.0,
            .token_ids = ids};
  }

  void read_llama() {
    const HfDefaults defaults = llama_defaults();
    read_token_ids(defaults.token_ids);
    const Found<int64_t> width = size("hidden_size", defaults.hidden_size);
    const Found<int64_t> heads = size("num_attention_heads", defaults.heads);
    set("vocab_size", size("vocab_size", defaults.vocab_size), "vocab_size");
    set("hidden_size", width, "hidden_size");
    const Found<int64_t> inner = size("intermediate_size", defaults.intermediate_size);
    set("ffn_hidden_size", inner, "intermediate_size");
    const Found<int64_t> layers = size("num_hidden_layers", defaults.layers);
    set("num_layers", layers, "num_hidden_layers");
    set("num_attention_heads", heads, "num_attention_heads");
    Found<int64_t> groups = size(
        "num_key_value_heads",
        has("num_key_value_heads") ? heads.value : defaults.key_value_heads.value_or(heads.value));
    if (heads.value % groups.value != 0) {
      finding("num_key_value_heads",
              concat(groups.value, " does not divide num_attention_heads ", heads.value));
    }
    set_value("group_query_attention", Value(groups.value != heads.value), "num_key_value_heads",
              groups.text, groups.written);
    set("num_query_groups", groups, "num_key_value_heads");
    if (find("head_dim") == nullptr && width.value % heads.value != 0) {
      finding("num_attention_heads", concat(heads.text, " does not divide hidden_size ", width.text,
                                            ", and there is no head_dim"));
    }
    set("kv_channels", size("head_dim", std::max<int64_t>(1, width.value / heads.value)),
        "head_dim");
    set("max_position_embeddings",
        size("max_position_embeddings", defaults.max_position_embeddings),
        "max_position_embeddings");
    set_by_type("position_embedding_type", Value(std::string("rope")));
    read_rotation(defaults.rope_theta);
    set_by_type("normalization", Value(std::string("RMSNorm")));
    set("norm_epsilon", number("rms_norm_eps", defaults.norm_epsilon), "rms_norm_eps");
    const Found<std::string> activation = text("hidden_act", "silu");
    if (activation.value != "silu" && activation.value != "swish") {
      finding("hidden_act",
              concat("a gated MLP with ", activation.text, " is not built; what is: silu"));
    }
    set_value("hidden_act", Value(std::string("swiglu")), "hidden_act", activation.text,
              activation.written);
    read_llama_biases();
    read_window(layers.value);
    set_block_structure();
    read_tie(false);
    set("init_method_std", number("initializer_range", 0.02), "initializer_range");
    set("attention_dropout", number("attention_dropout", 0.0), "attention_dropout");
    if (out_.model_type == "mixtral") {
      read_mixtral(inner);
    } else if (out_.model_type == "qwen2_moe") {
      read_qwen2_moe(layers.value);
    } else {
      set_moe_by_type("num_experts", Value(int64_t{1}));
    }
  }

  // A softmax over all experts whose k largest are divided by their sum is a softmax over the k.
  void read_gates(bool normalised,
                  const std::string& name,
                  const std::string& shown,
                  bool written) {
    set_moe("norm_topk_prob", Value(normalised), name, shown, written);
    set_moe("moe_router_pre_softmax", Value(!normalised), name, shown, written);
    set_moe_by_type("moe_router_score_function", Value(std::string("softmax")));
    set_moe_by_type("moe_router_topk_scaling_factor", Value(1.0));
    set_moe_by_type("topk_method", Value(std::string("greedy")));
    set_moe_by_type("moe_router_enable_expert_bias", Value(false));
  }

  void read_expert_numbers(const std::string& name, int64_t experts, int64_t topk) {
    const Found<int64_t> number = size(name, experts);
    const Found<int64_t> chosen = size("num_experts_per_tok", topk);
    if (number.value < 2) {
      finding(name, concat("a mixture of ", number.text, " expert; what is read has 2 or more"));
    } else if (chosen.value > number.value) {
      finding("num_experts_per_tok", concat(chosen.text, " of ", name, " ", number.text));
    }
    set_moe("num_experts", number, name);
    set_moe("moe_router_topk", chosen, "num_experts_per_tok");
  }

  void read_mixtral(const Found<int64_t>& inner) {
    read_expert_numbers("num_local_experts", 8, 2);
    set_moe("moe_ffn_hidden_size", inner, "intermediate_size");
    set_moe_by_type("moe_layer_freq", Value(Value::List{Value(int64_t{1})}));
    set_moe_by_type("moe_shared_expert_intermediate_size", Value());
    set_moe_by_type("use_shared_expert_gating", Value(false));
    read_gates(true, "model_type", "\"mixtral\"", true);
    const Found<double> jitter = number("router_jitter_noise", 0.0);
    if (jitter.value < 0 || jitter.value >= 1) {
      finding("router_jitter_noise", concat("expected a number in [0, 1), got ", jitter.text));
    }
    set_moe("moe_input_jitter_eps", jitter.value > 0 ? Value(jitter.value) : Value(),
            "router_jitter_noise", jitter.text, jitter.written);
    // No layer has a dense MLP, so its width is nothing that the weights could contradict.
    for (HfSetting& setting : out_.settings) {
      setting.compared = setting.compared && setting.key != "ffn_hidden_size";
    }
  }

  void read_qwen2_moe(int64_t layers) {
    read_expert_numbers("num_experts", 60, 4);
    set_moe("moe_ffn_hidden_size", size("moe_intermediate_size", 1408), "moe_intermediate_size");
    set_moe("moe_shared_expert_intermediate_size", size("shared_expert_intermediate_size", 5632),
            "shared_expert_intermediate_size");
    set_moe_by_type("use_shared_expert_gating", Value(true));
    const Found<bool> normalised = boolean("norm_topk_prob", false);
    read_gates(normalised.value, "norm_topk_prob", normalised.text, normalised.written);
    read_sparse_layers(layers);
    require("qkv_bias", true, "queries, keys and values without biases");
  }

  // Layer i, from 0, has experts if (i + 1) is divisible by decoder_sparse_step and i is not among
  // mlp_only_layers.
  void read_sparse_layers(int64_t layers) {
    constexpr int64_t kMaxLayers = 1 << 16;
    const Found<int64_t> step = size("decoder_sparse_step", 1);
    std::vector<int64_t> dense;
    if (const Json* list = find("mlp_only_layers")) {
      if (!list->is_array() || !std::all_of(list->begin(), list->end(), [](const Json& item) {
            return item.is_number_integer();
          })) {
        finding("mlp_only_layers", concat("expected a list of layers, got ", list->dump()));
      } else {
        dense = list->get<std::vector<int64_t>>();
      }
    }
    const bool any_dense = !dense.empty();
    const std::string name = any_dense ? "mlp_only_layers" : "decoder_sparse_step";
    if (layers > kMaxLayers) {
      finding("num_hidden_layers", concat("expected at most ", kMaxLayers, ", got ", layers));
      return;
    }
    std::vector<bool> sparse(static_cast<size_t>(layers));
    for (int64_t layer = 0; layer < layers; ++layer) {
      sparse[static_cast<size_t>(layer)] = (layer + 1) % step.value == 0;
    }
    for (const int64_t layer : dense) {
      if (layer >= 0 && layer < layers) {
        sparse[static_cast<size_t>(layer)] = false;
      }
    }
    if (std::count(sparse.begin(), sparse.end(), true) == 0) {
      finding(name,
              concat("no layer of ", layers, " has experts; a model without is of type qwen2"));
    }
    Value::List freq;
    if (std::count(sparse.begin(), sparse.end(), false) == 0) {
      freq.push_back(Value(int64_t{1}));
    } else {
      for (const bool has_experts : sparse) {
        freq.push_back(Value(int64_t{has_experts ? 1 : 0}));
      }
    }
    const Json* shown = find(name);
    set_moe("moe_layer_freq", Value(std::move(freq)), name,
            shown != nullptr ? shown->dump() : step.text, any_dense || step.written);
  }

  void read_llama_biases() {
    if (out_.model_type == "llama") {
      const Found<bool> attention = boolean("attention_bias", false);
      set("qkv_has_bias", attention, "attention_bias");
      set("out_proj_has_bias", attention, "attention_bias");
      set("mlp_has_bias", boolean("mlp_bias", false), "mlp_bias");
      return;
    }
    set_by_type("qkv_has_bias", Value(out_.model_type.starts_with("qwen2")));
    set_by_type("out_proj_has_bias", Value(false));
    set_by_type("mlp_has_bias", Value(false));
  }

  // rope_theta and rope_scaling, or rope_parameters, which newer writers put in place of both.
  void read_rotation(double default_theta) {
    Found<double> theta = number("rope_theta", default_theta);
    std::string theta_name = "rope_theta";
    Scaling scaling{.written = has("rope_scaling")};
    for (const std::string name : {"rope_scaling", "rope_parameters"}) {
      const Json* object = find(name);
      if (object == nullptr) {
        continue;
      }
      if (!object->is_object()) {
        finding(name, concat("expected an object, got ", object->dump()));
        continue;
      }
      if (const auto base = object->find("rope_theta"); base != object->end()) {
        if (!base->is_number()) {
          finding(name, concat("rope_theta: expected a number, got ", base->dump()));
        } else if (theta.written && theta.value != base->get<double>()) {
          finding(name,
                  concat("rope_theta is ", base->dump(), ", but ", theta_name, " is ", theta.text));
        } else {
          theta = {base->get<double>(), base->dump(), true};
          theta_name = name + ".rope_theta";
        }
      }
      read_scaling(name, *object, scaling);
    }
    if (!(theta.value > 0)) {
      finding(theta_name, concat("expected a number above 0, got ", theta.text));
    }
    if (number("partial_rotary_factor", 1.0).value != 1.0) {
      finding("partial_rotary_factor", "a rotation of some channels alone is not read");
    }
    set("rotary_config.rotary_base", theta, theta_name);
    set_scaling(scaling);
    set_by_type("rotary_config.rotary_percent", Value(1.0));
    set_by_type("rotary_config.rotary_interleaved", Value(false));
  }

  // Longer texts than a model was first trained on, and which member says so.
  struct Scaling {
    std::string name = "rope_scaling";
    std::string text = "null";
    bool written = false;
    double linear = 1.0;
    std::optional<RotaryConfig> llama3 = {};
  };

  void set_scaling(const Scaling& scaling) {
    const auto set_key = [&](const std::string& key, Value value) {
      set_value("rotary_config." + key, std::move(value), scaling.name, scaling.text,
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

  void read_llama3(const std::string& name, const Json& object, Scaling& scaling) {
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
      finding(name, concat("expected a factor of 1 or more, a low_freq_factor above 0, a "
                           "high_freq_factor above that and a length "
                           "original_max_position_embeddings beside rope_type llama3, got ",
                           object.dump()));
      return;
    }
    read.original_max_position_embeddings = static_cast<int64_t>(length);
    scaling = {.name = name, .text = object.dump(), .written = true, .llama3 = read};
  }

  void read_scaling(const std::string& name, const Json& object, Scaling& scaling) {
    std::string type;
    for (const char* key : {"type", "rope_type"}) {
      if (const auto found = object.find(key); found != object.end()) {
        type = found->is_string() ? found->get<std::string>() : found->dump();
      }
    }
    if (object.contains("partial_rotary_factor") && object.at("partial_rotary_factor") != 1.0) {
      finding(name, "partial_rotary_factor: a rotation of some channels alone is not read");
    }
    if (type == "linear") {
      const auto found = object.find("factor");
      if (found == object.end() || !found->is_number() || !(found->get<double>() > 0)) {
        finding(name,
                concat("expected a factor above 0 beside rope_type linear, got ", object.dump()));
        return;
      }
      scaling = {
          .name = name, .text = object.dump(), .written = true, .linear = found->get<double>()};
    } else if (type == "llama3") {
      read_llama3(name, object, scaling);
    } else if (type.empty() && name == "rope_scaling") {
      finding(name, concat("expected a rope_type, got ", object.dump()));
    } else if (!type.empty() && type != "default") {
      finding(name, concat("the rotation's scaling \"", type,
                           "\" is not built; what is: default, linear, llama3"));
    } else {
      for (const auto& [key, value] : object.items()) {
        if (value.is_object()) {
          finding(name,
                  concat("a rotation of its own for layers of the kind ", key, " is not built"));
        }
      }
    }
  }

  // Layers that see the last sliding_window tokens alone: all of them, or none.
  void read_window(int64_t layers) {
    const bool qwen2 = out_.model_type.starts_with("qwen2");
    const bool mistral = out_.model_type == "mistral";
    const bool mixtral = out_.model_type == "mixtral";
    Found<int64_t> window{0, "null", has("sliding_window")};
    if (find("sliding_window") != nullptr || (mistral && !has("sliding_window"))) {
      window = size("sliding_window", 4096);
    }
    int64_t with_window = window.value > 0 ? layers : 0;
    if (qwen2) {
      const int64_t first = std::max<int64_t>(0, integer("max_window_layers", 28));
      const bool used = boolean("use_sliding_window", false).value;
      with_window = used && window.value > 0 ? std::max<int64_t>(0, layers - first) : 0;
    } else if (!mistral && !mixtral && with_window > 0) {
      finding("sliding_window",
              concat(window.text, ": models of type ", out_.model_type, " have no window"));
    }
    if (const Json* kinds = find("layer_types")) {
      with_window = 0;
      for (const Json& kind : *kinds) {
        if (kind == "sliding_attention") {
          ++with_window;
        } else if (kind != "full_attention") {
          finding("layer_types", concat("layers of the kind ", kind.dump(), " are not built"));
        }
      }
    }
    if (with_window > 0 && with_window < layers) {
      finding(find("layer_types") != nullptr ? "layer_types" : "max_window_layers",
              concat(with_window, " of ", layers,
                     " layers have a window; what is built is one for all or none"));
    }
    const std::string name =
        qwen2 && !has("sliding_window") ? "use_sliding_window" : "sliding_window";
    if (with_window > 0 && window.value > 0) {
      set_value("window_size", Value(Value::List{Value(window.value - 1), Value(int64_t{0})}), name,
                window.text, window.written);
    } else if (qwen2) {
      set_value("window_size", Value(), "use_sliding_window", "false", has("use_sliding_window"));
    } else {
      set_value("window_size", Value(), name, "null", window.written);
    }
  }

  int64_t integer(const std::string& name, int64_t value) {
    return take<int64_t>(name, value, &Json::is_number_integer, "an integer").value;
  }

  // Our own: the keys as they are. Earlier releases wrote some sizes alone.
  void read_tapestry() {
    read_token_ids({});
    const Json* section = find("model_config");
    if (section == nullptr) {
      out_.complete = false;
      constexpr std::pair<const char*, const char*> kSizes[] = {
          {"vocab_size", "vocab_size"},
          {"hidden_size", "hidden_size"},
          {"intermediate_size", "ffn_hidden_size"},
          {"num_hidden_layers", "num_layers"},
          {"num_attention_heads", "num_attention_heads"},
          {"num_key_value_heads", "num_query_groups"},
          {"head_dim", "kv_channels"},
          {"max_position_embeddings", "max_position_embeddings"}};
      for (const auto& [theirs, ours] : kSizes) {
        if (find(theirs) != nullptr) {
          set(ours, size(theirs, 1), theirs);
        }
      }
      if (find("tie_word_embeddings") != nullptr) {
        read_tie(false);
      }
      return;
    }
    if (!section->is_object()) {
      finding("model_config", concat("expected an object, got ", section->dump()));
      return;
    }
    read_keys("model_config", *section, described_keys());
    const Json* experts = find("moe_config");
    if (experts == nullptr) {
      set_moe("num_experts", Value(int64_t{1}), "moe_config", "null", has("moe_config"));
    } else if (!experts->is_object()) {
      finding("moe_config", concat("expected an object, got ", experts->dump()));
    } else {
      read_keys("moe_config", *experts, described_moe_keys());
    }
  }

  void read_keys(const std::string& section,
                 const Json& object,
                 const std::vector<std::string>& known) {
    for (const auto& [name, json] : object.items()) {
      const std::string path = concat(section, ".", name);
      if (std::find(known.begin(), known.end(), name) == known.end()) {
        finding(path, "unknown key");
        continue;
      }
      const Key& key = *config::find_key(section, name);
      std::string error;
      const Value value =
          config::parse_value(key, config::raw_node(json, {out_.file}, findings_), error);
      error = error.empty() ? config::complaint(key, value) : error;
      if (!error.empty()) {
        finding(path, error);
        continue;
      }
      set_value(name, value, path, json.dump());
      out_.settings.back().section = section;
    }
  }
};

}  // namespace

const std::vector<std::string>& described_keys() {
  static const std::vector<std::string> keys = {"vocab_size",
                                                "num_layers",
                                                "hidden_size",
                                                "ffn_hidden_size",
                                                "num_attention_heads",
                                                "group_query_attention",
                                                "num_query_groups",
                                                "kv_channels",
                                                "seq_length",
                                                "max_position_embeddings",
                                                "position_embedding_type",
                                                "rotary_config.rotary_percent",
                                                "rotary_config.rotary_interleaved",
                                                "rotary_config.seq_len_interpolation_factor",
                                                "rotary_config.rotary_base",
                                                "rotary_config.rope_type",
                                                "rotary_config.rope_scaling_factor",
                                                "rotary_config.low_freq_factor",
                                                "rotary_config.high_freq_factor",
                                                "rotary_config.original_max_position_embeddings",
                                                "normalization",
                                                "norm_epsilon",
                                                "hidden_act",
                                                "qkv_has_bias",
                                                "out_proj_has_bias",
                                                "mlp_has_bias",
                                                "qk_layernorm",
                                                "window_size",
                                                "apply_residual_connection_post_norm",
                                                "use_final_norm",
                                                "use_sandwich_norm",
                                                "untie_embeddings_and_output_weights",
                                                "init_method_std",
                                                "attention_dropout",
                                                "hidden_dropout"};
  return keys;
}

const std::vector<std::string>& described_moe_keys() {
  static const std::vector<std::string> keys = {"num_experts",
                                                "moe_router_topk",
                                                "moe_layer_freq",
                                                "first_k_dense_replace",
                                                "moe_ffn_hidden_size",
                                                "moe_shared_expert_intermediate_size",
                                                "use_shared_expert_gating",
                                                "moe_router_score_function",
                                                "moe_router_pre_softmax",
                                                "norm_topk_prob",
                                                "moe_router_topk_scaling_factor",
                                                "topk_method",
                                                "moe_router_num_groups",
                                                "moe_router_group_topk",
                                                "moe_router_enable_expert_bias",
                                                "moe_router_bias_update_rate",
                                                "moe_router_load_balancing_type",
                                                "moe_aux_loss_coeff",
                                                "aux_loss_types",
                                                "aux_loss_factors",
                                                "expert_group_size",
                                                "moe_z_loss_coeff",
                                                "moe_input_jitter_eps",
                                                "moe_expert_capacity_factor",
                                                "moe_token_drop_policy"};
  return keys;
}

HfConfig parse_hf_config(const std::string& text, const std::string& file) {
  return HfReader(text, file).read();
}

HfConfig read_hf_config(const std::string& folder) {
  const std::string path = (fs::path(folder) / kHfFile).string();
  std::error_code error;
  check<IoError>(fs::is_directory(folder, error), folder,
                 ": there is no such folder; a Hugging Face model is a folder with ", kHfFile,
                 " and model.safetensors");
  return parse_hf_config(
      read_file(path, kMaxHfBytes, "a Hugging Face model is a folder with this file"), path);
}

}  // namespace tapestry
