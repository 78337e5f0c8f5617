#include "diagnosis/accuracy/tensor_names.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <span>

#include "autograd/io/input_file.h"
#include "autograd/tensor/error.h"

namespace tapestry::accuracy {
namespace {

constexpr std::string_view kGradients = "Gradients/";
constexpr std::string_view kUpdates = "Updates/";
constexpr uint64_t kMaxMapBytes = uint64_t{1} << 20U;

/// One line of the tables below: an input or output of a module, and what it is. '#' stands for the
/// number of a layer.
struct ModuleValue {
  std::string_view path;
  bool input;
  int64_t slot;
  std::string_view name;
  Cut cut = Cut::kNone;
  int64_t part = 0;
  /// If given: only of an MLP that has a gate, or has none; and not while a bias is missing.
  std::optional<bool> gated = std::nullopt;
};

constexpr bool kIn = true;
constexpr bool kOut = false;

// Sources: transformers 4, models/{llama,qwen2,mixtral,qwen2_moe}/modeling_*.py; without "model.".
constexpr auto kLlamaModules = std::to_array<ModuleValue>({
    {"embed_tokens", kOut, 0, "embedding"},
    {"layers.#.input_layernorm", kOut, 0, "layers.#.attention_norm"},
    {"layers.#.self_attn.q_proj", kOut, 0, "layers.#.attention.query"},
    {"layers.#.self_attn.k_proj", kOut, 0, "layers.#.attention.key"},
    {"layers.#.self_attn.v_proj", kOut, 0, "layers.#.attention.value"},
    {"layers.#.self_attn.o_proj", kIn, 0, "layers.#.attention.context"},
    {"layers.#.self_attn.o_proj", kOut, 0, "layers.#.attention"},
    {"layers.#.self_attn", kOut, 0, "layers.#.attention"},
    {"layers.#.post_attention_layernorm", kOut, 0, "layers.#.ffn_norm"},
    {"layers.#.mlp.gate_proj", kOut, 0, "layers.#.mlp.gate"},
    {"layers.#.mlp.up_proj", kOut, 0, "layers.#.mlp.up"},
    {"layers.#.mlp.down_proj", kIn, 0, "layers.#.mlp.active"},
    {"layers.#.mlp.down_proj", kOut, 0, "layers.#.mlp"},
    {"layers.#.mlp", kOut, 0, "layers.#.mlp"},
    {"layers.#.block_sparse_moe.gate", kOut, 0, "layers.#.moe.router_logits"},
    {"layers.#.block_sparse_moe", kOut, 0, "layers.#.mlp"},
    {"layers.#.mlp.gate", kOut, 0, "layers.#.moe.router_logits"},
    {"layers.#", kOut, 0, "layers.#.output"},
    {"norm", kOut, 0, "final_norm"},
    {"lm_head", kOut, 0, "logits"},
});

// Source: transformers 4, models/gpt2/modeling_gpt2.py; without "transformer.".
constexpr auto kGpt2Modules = std::to_array<ModuleValue>({
    {"drop", kOut, 0, "embedding"},
    {"h.#.ln_1", kOut, 0, "layers.#.attention_norm"},
    {"h.#.attn.c_attn", kOut, 0, "layers.#.attention.query", Cut::kThirds, 0},
    {"h.#.attn.c_attn", kOut, 0, "layers.#.attention.key", Cut::kThirds, 1},
    {"h.#.attn.c_attn", kOut, 0, "layers.#.attention.value", Cut::kThirds, 2},
    {"h.#.attn.c_proj", kIn, 0, "layers.#.attention.context"},
    {"h.#.attn.c_proj", kOut, 0, "layers.#.attention"},
    {"h.#.attn", kOut, 0, "layers.#.attention"},
    {"h.#.ln_2", kOut, 0, "layers.#.ffn_norm"},
    {"h.#.mlp.c_fc", kOut, 0, "layers.#.mlp.up"},
    {"h.#.mlp.c_proj", kIn, 0, "layers.#.mlp.active"},
    {"h.#.mlp.c_proj", kOut, 0, "layers.#.mlp"},
    {"h.#.mlp", kOut, 0, "layers.#.mlp"},
    {"h.#", kOut, 0, "layers.#.output"},
    {"ln_f", kOut, 0, "final_norm"},
});

// Sources: megatron/core/models/gpt/gpt_model.py and core/transformer/, without "decoder."; biases
// of projections are added later there, so what projections give is taken from the layers around.
constexpr auto kMegatronModules = std::to_array<ModuleValue>({
    {"embedding", kOut, 0, "embedding"},
    {"layers.#.self_attention.linear_qkv", kOut, 0, "layers.#.attention.query", Cut::kGroups, 0},
    {"layers.#.self_attention.linear_qkv", kOut, 0, "layers.#.attention.key", Cut::kGroups, 1},
    {"layers.#.self_attention.linear_qkv", kOut, 0, "layers.#.attention.value", Cut::kGroups, 2},
    {"layers.#.self_attention.core_attention", kIn, 0, "layers.#.attention.q"},
    {"layers.#.self_attention.core_attention", kIn, 1, "layers.#.attention.k"},
    {"layers.#.self_attention.core_attention", kIn, 2, "layers.#.attention.v"},
    {"layers.#.self_attention.core_attention", kOut, 0, "layers.#.attention.context"},
    {"layers.#.self_attention.linear_proj", kIn, 0, "layers.#.attention.context"},
    {"layers.#.pre_mlp_layernorm", kOut, 0, "layers.#.ffn_norm"},
    {"layers.#.mlp.linear_fc1", kOut, 0, "layers.#.mlp.gate", Cut::kHalves, 0, true},
    {"layers.#.mlp.linear_fc1", kOut, 0, "layers.#.mlp.up", Cut::kHalves, 1, true},
    {"layers.#.mlp.linear_fc1", kOut, 0, "layers.#.mlp.up", Cut::kNone, 0, false},
    {"layers.#.mlp.linear_fc2", kIn, 0, "layers.#.mlp.active"},
    {"layers.#.mlp.router.gating", kOut, 0, "layers.#.moe.router_logits"},
    {"final_layernorm", kOut, 0, "final_norm"},
    {"output_layer", kOut, 0, "logits"},
});

// Source: Megatron-LM before megatron.core, megatron/model/; without "language_model.encoder.".
constexpr auto kOldMegatronModules = std::to_array<ModuleValue>({
    {"layers.#.input_norm", kOut, 0, "layers.#.attention_norm"},
    {"layers.#.self_attention.query_key_value", kOut, 0, "layers.#.attention.query", Cut::kGroups,
     0},
    {"layers.#.self_attention.query_key_value", kOut, 0, "layers.#.attention.key", Cut::kGroups, 1},
    {"layers.#.self_attention.query_key_value", kOut, 0, "layers.#.attention.value", Cut::kGroups,
     2},
    {"layers.#.self_attention.dense", kIn, 0, "layers.#.attention.context"},
    {"layers.#.post_attention_norm", kOut, 0, "layers.#.ffn_norm"},
    {"layers.#.mlp.dense_h_to_4h", kOut, 0, "layers.#.mlp.gate", Cut::kHalves, 0, true},
    {"layers.#.mlp.dense_h_to_4h", kOut, 0, "layers.#.mlp.up", Cut::kHalves, 1, true},
    {"layers.#.mlp.dense_h_to_4h", kOut, 0, "layers.#.mlp.up", Cut::kNone, 0, false},
    {"layers.#.mlp.dense_4h_to_h", kIn, 0, "layers.#.mlp.active"},
    {"final_norm", kOut, 0, "final_norm"},
});

constexpr auto kWrappers = std::to_array<std::string_view>(
    {"module.", "_orig_mod.", "language_model.", "model.", "transformer.", "decoder.", "encoder."});

std::string_view without_wrappers(std::string_view path) {
  for (bool found = true; found;) {
    found = false;
    for (const std::string_view wrapper : kWrappers) {
      if (path.starts_with(wrapper)) {
        path.remove_prefix(wrapper.size());
        found = true;
      }
    }
  }
  return path;
}

/// The number in `path` where `pattern` has its '#' ("" if it has none); nothing if they differ.
std::optional<std::string_view> number_at(std::string_view pattern, std::string_view path) {
  const size_t hash = pattern.find('#');
  if (hash == std::string_view::npos) {
    return pattern == path ? std::optional<std::string_view>("") : std::nullopt;
  }
  const std::string_view behind = pattern.substr(hash + 1);
  if (!path.starts_with(pattern.substr(0, hash)) || !path.ends_with(behind) ||
      path.size() < pattern.size()) {
    return std::nullopt;
  }
  const std::string_view number = path.substr(hash, path.size() - behind.size() - hash);
  const bool digits = std::all_of(number.begin(), number.end(),
                                  [](char letter) { return letter >= '0' && letter <= '9'; });
  return digits && !number.empty() ? std::optional(number) : std::nullopt;
}

void add_values(std::span<const ModuleValue> table,
                const ModuleTensor& tensor,
                std::vector<NamedValue>& out) {
  for (const ModuleValue& value : table) {
    const auto number = number_at(value.path, tensor.op_name);
    const bool other_mlp =
        value.gated.has_value() && (*value.gated != tensor.has_gate || tensor.has_second_output);
    if (!number.has_value() || value.input != tensor.input || value.slot != tensor.slot ||
        other_mlp) {
      continue;
    }
    std::string name(value.name);
    if (const size_t hash = name.find('#'); hash != std::string::npos) {
      name.replace(hash, 1, *number);
    }
    out.push_back({name, value.cut, value.part});
  }
}

}  // namespace

std::vector<NamedValue> named_values(const ModuleTensor& tensor) {
  ModuleTensor forward = tensor;
  const bool backward = tensor.op_name.starts_with(kGradients);
  if (backward) {
    forward.op_name.remove_prefix(kGradients.size());
    forward.input = !tensor.input;
  }
  forward.op_name = without_wrappers(forward.op_name);
  std::vector<NamedValue> values;
  for (const std::span<const ModuleValue> table :
       {std::span<const ModuleValue>(kLlamaModules), std::span<const ModuleValue>(kGpt2Modules),
        std::span<const ModuleValue>(kMegatronModules),
        std::span<const ModuleValue>(kOldMegatronModules)}) {
    add_values(table, forward, values);
  }
  if (backward) {
    for (NamedValue& value : values) {
      value.name = concat(kGradients, value.name);
    }
  }
  return values;
}

NameMap::NameMap(const std::string& file) {
  const InputFile input(file);
  check<ValueError>(input.size() <= kMaxMapBytes, file, ": ", input.size(),
                    " bytes are more than a map of names has");
  std::string text(input.size(), '\0');
  input.read_at(0, text.data(), text.size(), "map of names");
  YAML::Node map;
  try {
    map = YAML::Load(text);
  } catch (const YAML::Exception& error) {
    throw ValueError(concat(file, ": ", error.what()));
  }
  check<ValueError>(map.IsMap(), file,
                    ": expected a mapping of expressions to names, for example "
                    "'h\\.(\\d+)\\.attn': 'layers.$1.attention'");
  for (const auto& entry : map) {
    check<ValueError>(entry.first.IsScalar() && entry.second.IsScalar(), file, ": line ",
                      entry.first.Mark().line + 1, ": expected an expression and a name");
    try {
      rules_.push_back({RegularExpression(entry.first.Scalar()), entry.second.Scalar()});
    } catch (const ValueError& error) {
      throw ValueError(concat(file, ": line ", entry.first.Mark().line + 1, ": ", error.what()));
    }
  }
}

std::optional<std::string> NameMap::find(const std::string& name) const {
  for (const Rule& rule : rules_) {
    if (std::optional<std::string> mapped = rule.expression.replacement(name, rule.text)) {
      return mapped;
    }
  }
  for (const std::string_view prefix : {kGradients, kUpdates}) {
    if (name.starts_with(prefix)) {
      const auto mapped = find(name.substr(prefix.size()));
      return mapped ? std::optional(concat(prefix, *mapped)) : std::nullopt;
    }
  }
  return std::nullopt;
}

std::string NameMap::apply(const std::string& name) const { return find(name).value_or(name); }

}  // namespace tapestry::accuracy
