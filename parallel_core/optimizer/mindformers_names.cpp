#include "parallel_core/optimizer/mindformers_names.h"

#include <charconv>
#include <optional>
#include <string_view>

#include "autograd/tensor/error.h"

namespace tapestry {

namespace {

struct NamePair {
  std::string_view ours;
  std::string_view theirs;
};

// Whole names, without ".weight" or ".bias".
constexpr NamePair kOfModel[] = {
    {"tok_embeddings", "embedding.word_embeddings"},
    {"pos_embeddings", "embedding.position_embeddings"},
    {"final_norm", "decoder.final_layernorm"},
    {"lm_head", "output_layer"},
};

// Behind "layers.N.".
constexpr NamePair kOfLayer[] = {
    {"attention_norm", "input_layernorm"},
    {"ffn_norm", "pre_mlp_layernorm"},
    {"attention.wq", "self_attention.linear_qkv"},
    {"attention.wk", "self_attention.linear_qkv"},
    {"attention.wv", "self_attention.linear_qkv"},
    {"attention.wq_a", "self_attention.linear_qkv"},
    {"attention.wkv_a", "self_attention.linear_qkv"},
    {"attention.wq_b", "self_attention.linear_qb"},
    {"attention.wkv_b", "self_attention.linear_kvb"},
    {"attention.wo", "self_attention.linear_proj"},
    {"attention.q_norm", "self_attention.q_layernorm"},
    {"attention.k_norm", "self_attention.k_layernorm"},
    {"attention.q_a_norm", "self_attention.q_layernorm"},
    {"attention.kv_a_norm", "self_attention.k_layernorm"},
    {"feed_forward.w_gate", "mlp.linear_fc1"},
    {"feed_forward.w_up", "mlp.linear_fc1"},
    {"feed_forward.w_down", "mlp.linear_fc2"},
    {"moe.router", "mlp.router"},
    {"moe.shared_expert.w_gate", "mlp.shared_experts.linear_fc1"},
    {"moe.shared_expert.w_up", "mlp.shared_experts.linear_fc1"},
    {"moe.shared_expert.w_down", "mlp.shared_experts.linear_fc2"},
};

// Behind "layers.N.moe.experts.E.": all experts' lie in one tensor there, whose name has no ending.
constexpr NamePair kOfExpert[] = {
    {"w_gate", "mlp.experts.weight1"},
    {"w_up", "mlp.experts.weight1"},
    {"w_down", "mlp.experts.weight2"},
};

// Behind "layers.N.mtp.".
constexpr NamePair kOfPrediction[] = {
    {"enorm", "enorm"},
    {"hnorm", "hnorm"},
    {"eh_proj", "eh_proj"},
    {"final_norm", "final_layernorm"},
};

template <size_t N>
std::string_view theirs_of(const NamePair (&table)[N], std::string_view ours) {
  for (const NamePair& pair : table) {
    if (pair.ours == ours) {
      return pair.theirs;
    }
  }
  return {};
}

// Takes "PREFIX<number>." off the front.
std::optional<int64_t> take_number(std::string_view& name, std::string_view prefix) {
  if (!name.starts_with(prefix)) {
    return std::nullopt;
  }
  const std::string_view rest = name.substr(prefix.size());
  int64_t number = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
  if (error != std::errc() || end == rest.data() + rest.size() || *end != '.') {
    return std::nullopt;
  }
  name = rest.substr(static_cast<size_t>(end - rest.data()) + 1);
  return number;
}

std::string joined_name(const std::string& before, std::string_view stem, std::string_view ending) {
  return stem.empty() ? std::string() : concat(before, stem, ending);
}

}  // namespace

std::string mindformers_name(const std::string& logical, int64_t num_layers) {
  std::string_view name = logical;
  const std::string_view ending = name.ends_with(".bias")     ? std::string_view(".bias")
                                  : name.ends_with(".weight") ? std::string_view(".weight")
                                                              : std::string_view();
  name.remove_suffix(ending.size());
  const std::optional<int64_t> layer = take_number(name, "layers.");
  if (!layer) {
    return joined_name("", theirs_of(kOfModel, name), ending);
  }
  const bool predicts = *layer >= num_layers;
  const std::string of_module = predicts ? concat("mtp.layers.", *layer - num_layers, ".")
                                         : concat("decoder.layers.", *layer, ".");
  if (predicts && name.starts_with("mtp.")) {
    return joined_name(of_module, theirs_of(kOfPrediction, name.substr(4)), ending);
  }
  const std::string of_layer = predicts ? of_module + "transformer_layer." : of_module;
  if (take_number(name, "moe.experts.")) {
    return joined_name(of_layer, theirs_of(kOfExpert, name), ending == ".bias" ? ".bias" : "");
  }
  return joined_name(of_layer, theirs_of(kOfLayer, name), ending);
}

}  // namespace tapestry
