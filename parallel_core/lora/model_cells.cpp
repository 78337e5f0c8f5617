#include "parallel_core/lora/model_cells.h"

#include <numeric>
#include <string_view>
#include <utility>

#include "autograd/tensor/error.h"
#include "interop/architectures/file_place.h"
#include "interop/architectures/hf_names.h"

namespace tapestry {

namespace {

constexpr std::string_view kLanguageModel = "language_model.";

// Puts together cells whose tensors have the names of the configuration's files.
class CellMaker {
 public:
  explicit CellMaker(const TransformerConfig& config)
      : config_(config), names_(name_scheme(config), config) {}

  // A matrix that a cell is fused from.
  struct Part {
    const char* name;
    int64_t rows;
    bool bias;
  };

  // Matrices that one file tensor holds are one module, called `fused`.
  ModelCell matrices(std::string path,
                     const std::string& prefix,
                     const std::vector<Part>& parts,
                     int64_t in_features,
                     const char* fused = "") const {
    ModelCell cell{.path = std::move(path), .in_features = in_features, .takes_adapter = true};
    for (const Part& part : parts) {
      const std::string name = prefix + part.name;
      const std::string path_in_file = hf_path(name, 2);
      if (!path_in_file.empty() && !cell.modules.empty() &&
          cell.modules.back().hf_path == path_in_file) {
        cell.modules.back().name = prefix + fused;
      } else {
        cell.modules.push_back({.name = name, .hf_path = path_in_file});
      }
      ModelModule& module = cell.modules.back();
      module.weights.push_back(name + ".weight");
      module.rows.push_back(part.rows);
      module.tensors.push_back(name + ".weight");
      module.sizes.push_back(part.rows * in_features);
      if (part.bias) {
        module.tensors.push_back(name + ".bias");
        module.sizes.push_back(part.rows);
      }
    }
    return cell;
  }

  // Anything else: a table, a norm, a router.
  ModelCell whole(std::string path, const std::string& name, const Shape& shape, bool bias) const {
    ModelModule module{.name = name, .hf_path = hf_path(name, shape.size())};
    module.tensors.push_back(name + ".weight");
    module.sizes.push_back(shape.numel());
    if (bias) {
      module.tensors.push_back(name + ".bias");
      module.sizes.push_back(shape.numel());
    }
    return {.path = std::move(path), .modules = {std::move(module)}, .in_features = 1};
  }

  ModelCell norm(const std::string& path, const std::string& name, int64_t size) const {
    return whole(path, name, {size}, config_.normalization == "LayerNorm");
  }

 private:
  std::string hf_path(const std::string& name, int64_t dims) const {
    constexpr std::string_view kEnd = ".weight";
    if (names_.scheme == NameScheme::kLogical) {
      return {};
    }
    const std::string full = name + std::string(kEnd);
    const std::string in_file = file_place(names_, full, Shape::filled(dims, 1)).name;
    return in_file.ends_with(kEnd) && in_file != full
               ? in_file.substr(0, in_file.size() - kEnd.size())
           : name == "lm_head" ? name
                               : std::string();
  }

  const TransformerConfig& config_;
  FileNames names_;
};

std::vector<ModelCell> mlp_matrices(const CellMaker& maker,
                                    const TransformerConfig& config,
                                    const std::string& path,
                                    const std::string& prefix,
                                    int64_t width) {
  std::vector<CellMaker::Part> mapping = {{"w_up", width, config.mlp_has_bias}};
  if (has_gated_mlp(config)) {
    mapping.insert(mapping.begin(), {"w_gate", width, config.mlp_has_bias});
  }
  return {maker.matrices(path + ".mapping", prefix, mapping, config.hidden_size),
          maker.matrices(path + ".projection", prefix,
                         {{"w_down", config.hidden_size, config.mlp_has_bias}}, width)};
}

std::vector<ModelCell> matrices_of(const CellMaker& maker,
                                   const TransformerConfig& config,
                                   int64_t layer) {
  const std::string path = concat(kLanguageModel, "encoder.layers.", layer, ".");
  const std::string prefix = concat("layers.", layer, ".");
  const bool bias = config.qkv_has_bias;
  const int64_t channels = config.kv_channels.value_or(0);
  const int64_t queries = config.num_attention_heads * channels;
  const int64_t keys = config.num_query_groups * channels;
  std::vector<ModelCell> out = {
      maker.matrices(path + "attention.qkv_proj", prefix + "attention.",
                     {{"wq", queries, bias}, {"wk", keys, bias}, {"wv", keys, bias}},
                     config.hidden_size, "wqkv"),
      maker.matrices(path + "attention.out_proj", prefix + "attention.",
                     {{"wo", config.hidden_size, config.out_proj_has_bias}}, queries)};
  const bool experts = is_moe_layer(config, layer);
  if (experts && !config.moe.moe_shared_expert_intermediate_size) {
    return out;
  }
  for (ModelCell& cell : experts ? mlp_matrices(maker, config, path + "mlp.shared_expert",
                                                prefix + "moe.shared_expert.",
                                                *config.moe.moe_shared_expert_intermediate_size)
                                 : mlp_matrices(maker, config, path + "mlp",
                                                prefix + "feed_forward.", config.ffn_hidden_size)) {
    out.push_back(std::move(cell));
  }
  return out;
}

}  // namespace

int64_t ModelModule::out_features() const {
  return std::accumulate(rows.begin(), rows.end(), int64_t{0});
}

std::vector<ModelCell> layer_matrices(const TransformerConfig& config, int64_t layer) {
  return matrices_of(CellMaker(config), config, layer);
}

std::vector<ModelCell> model_cells(const TransformerConfig& config) {
  const CellMaker maker(config);
  const auto top = [](const char* name) { return concat(kLanguageModel, name); };
  const int64_t hidden = config.hidden_size;
  const Shape table = {config.vocab_size, hidden};
  std::vector<ModelCell> out = {
      maker.whole(top("embedding.word_embeddings"), "tok_embeddings", table, false)};
  if (config.position_embedding_type == "learned_absolute") {
    out.push_back(maker.whole(top("embedding.position_embeddings"), "pos_embeddings",
                              {config.max_position_embeddings.value_or(config.seq_length), hidden},
                              false));
  }
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const std::string path = top("encoder.layers.") + std::to_string(layer) + ".";
    const std::string prefix = concat("layers.", layer, ".");
    const auto add_norm = [&](const char* cell, const char* name, int64_t size) {
      out.push_back(maker.norm(path + cell, prefix + name, size));
    };
    add_norm("input_norm", "attention_norm", hidden);
    if (config.qk_layernorm) {
      add_norm("attention.q_norm", "attention.q_norm", config.kv_channels.value_or(0));
      add_norm("attention.k_norm", "attention.k_norm", config.kv_channels.value_or(0));
    }
    if (config.use_sandwich_norm) {
      add_norm("attn_post_norm", "attention_post_norm", hidden);
      add_norm("ffn_post_norm", "ffn_post_norm", hidden);
    }
    add_norm("post_attention_norm", "ffn_norm", hidden);
    if (is_moe_layer(config, layer)) {
      out.push_back(maker.whole(path + "mlp.router", prefix + "moe.router",
                                {config.moe.num_experts, hidden}, false));
      if (config.moe.moe_shared_expert_intermediate_size && config.moe.use_shared_expert_gating) {
        out.push_back(maker.whole(path + "mlp.shared_expert_gate",
                                  prefix + "moe.shared_expert_gate", {1, hidden}, false));
      }
    }
    for (ModelCell& cell : matrices_of(maker, config, layer)) {
      out.push_back(std::move(cell));
    }
  }
  if (config.use_final_norm) {
    out.push_back(maker.norm(top("encoder.final_norm"), "final_norm", hidden));
  }
  if (config.untie_embeddings_and_output_weights) {
    out.push_back(maker.whole(top("output_layer"), "lm_head", table, false));
  }
  return out;
}

}  // namespace tapestry
