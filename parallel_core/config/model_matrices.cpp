#include "parallel_core/config/model_matrices.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "autograd/tensor/error.h"

namespace tapestry {

namespace {

constexpr const char* kLanguageModel = "language_model.";

int64_t checked_product(int64_t a, int64_t b, const char* what) {
  constexpr int64_t kMost = int64_t{1} << 53;
  check<ValueError>(a >= 0 && b >= 0 && (a == 0 || b <= kMost / a), what, " ", a, " * ", b,
                    " is out of all bounds");
  return a * b;
}

// The biases of a rank's part follow the rows; those of a matrix that is divided by its columns are
// added once, by everybody.
double bias_elements(const ModelMatrix& matrix, const ModelShares& shares) {
  return matrix.has_bias ? static_cast<double>(shape_on_rank(matrix, shares)[0]) : 0;
}

// Appends the matrices of a layer.
class MatrixList {
 public:
  MatrixList(const TransformerConfig& config, int64_t layer)
      : config_(config),
        widths_(layer_widths(config)),
        layer_(layer),
        path_(concat(kLanguageModel, "encoder.layers.", layer, ".")),
        prefix_(concat("layers.", layer, ".")) {}

  void add_norms() {
    const int64_t hidden = config_.hidden_size;
    norm("input_norm", "attention_norm", hidden);
    if (config_.qk_layernorm) {
      norm("attention.q_norm", "attention.q_norm", widths_.channels);
      norm("attention.k_norm", "attention.k_norm", widths_.channels);
    }
    if (config_.use_sandwich_norm) {
      norm("attn_post_norm", "attention_post_norm", hidden);
      norm("ffn_post_norm", "ffn_post_norm", hidden);
    }
    norm("post_attention_norm", "ffn_norm", hidden);
  }

  void add_router() {
    add("mlp.router", "moe.router", MatrixRole::kRouter,
        {config_.moe.num_experts, config_.hidden_size});
    if (has_shared_expert() && config_.moe.use_shared_expert_gating) {
      add("mlp.shared_expert_gate", "moe.shared_expert_gate", MatrixRole::kSharedExpertGate,
          {1, config_.hidden_size});
    }
  }

  void add_attention() {
    const int64_t hidden = config_.hidden_size;
    const auto fused = [&](const char* name, MatrixRole role, int64_t rows) {
      ModelMatrix& matrix =
          add("attention.qkv_proj", concat("attention.", name), role, {rows, hidden});
      matrix.has_bias = config_.qkv_has_bias;
      divide(matrix, 0, widths_.channels);
    };
    fused("wq", MatrixRole::kQuery, widths_.queries);
    fused("wk", MatrixRole::kKey, widths_.keys);
    fused("wv", MatrixRole::kValue, widths_.keys);
    ModelMatrix& out =
        add("attention.out_proj", "attention.wo", MatrixRole::kOutput, {hidden, widths_.queries});
    out.has_bias = config_.out_proj_has_bias;
    divide(out, 1, widths_.channels);
  }

  void add_mlp() { add_mlp("mlp", "feed_forward.", widths_.ffn); }

  void add_experts() {
    if (has_shared_expert()) {
      add_mlp("mlp.shared_expert", "moe.shared_expert.", widths_.shared_ffn);
    }
    const size_t first = matrices_.size();
    add_mlp("mlp.experts", "moe.experts.0.", widths_.expert_ffn);
    for (size_t i = first; i < matrices_.size(); ++i) {
      matrices_[i].experts = config_.moe.num_experts;
      matrices_[i].module = path_ + "mlp.experts";
      matrices_[i].quantizable = matrices_[i].takes_adapter = false;
    }
  }

  std::vector<ModelMatrix> take() { return std::move(matrices_); }

 private:
  bool has_shared_expert() const { return widths_.shared_ffn > 0; }

  ModelMatrix& add(const std::string& module,
                   const std::string& name,
                   MatrixRole role,
                   Shape shape) {
    return matrices_.emplace_back(ModelMatrix{.name = prefix_ + name,
                                              .module = path_ + module,
                                              .role = role,
                                              .shape = std::move(shape),
                                              .layer = layer_});
  }

  void norm(const char* module, const char* name, int64_t size) {
    add(module, name, MatrixRole::kNorm, {size}).has_bias = config_.normalization == "LayerNorm";
  }

  // The linear layers whose matrices ranks divide are those that can be frozen and adapted.
  static void divide(ModelMatrix& matrix, int64_t axis, int64_t unit) {
    matrix.sharded_axis = axis;
    matrix.unit = unit;
    matrix.quantizable = matrix.takes_adapter = true;
  }

  void add_mlp(const std::string& module, const std::string& prefix, int64_t width) {
    const int64_t hidden = config_.hidden_size;
    const auto part = [&](const char* name, MatrixRole role, const char* linear, Shape shape,
                          int64_t axis) {
      ModelMatrix& matrix = add(concat(module, ".", linear), prefix + name, role, std::move(shape));
      matrix.has_bias = config_.mlp_has_bias;
      divide(matrix, axis, 1);
    };
    if (widths_.gates == 2) {
      part("w_gate", MatrixRole::kGate, "mapping", {width, hidden}, 0);
    }
    part("w_up", MatrixRole::kUp, "mapping", {width, hidden}, 0);
    part("w_down", MatrixRole::kDown, "projection", {hidden, width}, 1);
  }

  const TransformerConfig& config_;
  LayerWidths widths_;
  int64_t layer_;
  std::string path_;
  std::string prefix_;
  std::vector<ModelMatrix> matrices_;
};

void append(std::vector<ModelMatrix>& to, std::vector<ModelMatrix> from) {
  std::move(from.begin(), from.end(), std::back_inserter(to));
}

}  // namespace

LayerWidths layer_widths(const TransformerConfig& config, const ModelShares& shares) {
  const int64_t tp = std::max<int64_t>(shares.tensor, 1);
  const int64_t heads = config.num_attention_heads;
  LayerWidths widths;
  widths.channels = config.kv_channels.value_or(heads > 0 ? config.hidden_size / heads : 0);
  widths.heads = heads / tp;
  widths.groups = (config.num_query_groups + tp - 1) / tp;
  widths.queries = checked_product(widths.heads, widths.channels, "num_attention_heads");
  widths.keys = checked_product(widths.groups, widths.channels, "num_query_groups");
  widths.ffn = config.ffn_hidden_size / tp;
  widths.expert_ffn = moe_ffn_hidden_size(config) / std::max<int64_t>(shares.expert_tensor, 1);
  widths.shared_ffn = config.moe.moe_shared_expert_intermediate_size.value_or(0) / tp;
  widths.gates = has_gated_mlp(config) ? 2 : 1;
  return widths;
}

LayerKind layer_kind(const TransformerConfig& config, int64_t layer) {
  return is_moe_layer(config, layer) ? LayerKind::kMixture : LayerKind::kDense;
}

std::vector<ModelMatrix> layer_matrices(const TransformerConfig& config, int64_t layer) {
  return layer_matrices(config, layer, layer_kind(config, layer));
}

std::vector<ModelMatrix> layer_matrices(const TransformerConfig& config,
                                        int64_t layer,
                                        LayerKind kind) {
  MatrixList table(config, layer);
  table.add_norms();
  if (kind == LayerKind::kMixture) {
    table.add_router();
  }
  table.add_attention();
  if (kind == LayerKind::kMixture) {
    table.add_experts();
  } else {
    table.add_mlp();
  }
  return table.take();
}

std::vector<ModelMatrix> matrices_before_layers(const TransformerConfig& config) {
  const int64_t hidden = config.hidden_size;
  std::vector<ModelMatrix> out = {{.name = "tok_embeddings",
                                   .module = concat(kLanguageModel, "embedding.word_embeddings"),
                                   .role = MatrixRole::kEmbedding,
                                   .shape = {config.vocab_size, hidden},
                                   .sharded_axis = 0}};
  if (config.position_embedding_type == "learned_absolute") {
    ModelMatrix positions{
        .name = "pos_embeddings",
        .module = concat(kLanguageModel, "embedding.position_embeddings"),
        .role = MatrixRole::kPositions,
        .shape = {config.max_position_embeddings.value_or(config.seq_length), hidden}};
    if (config.parallel_position_embedding) {
      positions.sharded_axis = 0;
    }
    out.push_back(std::move(positions));
  }
  return out;
}

std::vector<ModelMatrix> matrices_after_layers(const TransformerConfig& config) {
  const int64_t hidden = config.hidden_size;
  std::vector<ModelMatrix> out;
  if (config.use_final_norm) {
    out.push_back({.name = "final_norm",
                   .module = concat(kLanguageModel, "encoder.final_norm"),
                   .role = MatrixRole::kNorm,
                   .shape = {hidden},
                   .has_bias = config.normalization == "LayerNorm"});
  }
  if (config.untie_embeddings_and_output_weights) {
    out.push_back({.name = "lm_head",
                   .module = concat(kLanguageModel, "output_layer"),
                   .role = MatrixRole::kHead,
                   .shape = {config.vocab_size, hidden},
                   .sharded_axis = 0});
  }
  return out;
}

std::vector<ModelMatrix> model_matrices(const TransformerConfig& config) {
  std::vector<ModelMatrix> out = matrices_before_layers(config);
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    append(out, layer_matrices(config, layer));
  }
  append(out, matrices_after_layers(config));
  return out;
}

Shape shape_on_rank(const ModelMatrix& matrix, const ModelShares& shares) {
  Shape shape = matrix.shape;
  if (!matrix.sharded_axis) {
    return shape;
  }
  const int64_t ranks =
      std::max<int64_t>(matrix.experts > 0 ? shares.expert_tensor : shares.tensor, 1);
  int64_t& size = shape[*matrix.sharded_axis];
  const int64_t units = size / std::max<int64_t>(matrix.unit, 1);
  size = (units + ranks - 1) / ranks * matrix.unit;
  return shape;
}

double weight_elements(const ModelMatrix& matrix, const ModelShares& shares) {
  double count = 1;
  const Shape shape = shape_on_rank(matrix, shares);
  for (int64_t axis = 0; axis < shape.size(); ++axis) {
    count *= static_cast<double>(shape[axis]);
  }
  return count;
}

double elements_on_rank(const ModelMatrix& matrix, const ModelShares& shares) {
  return weight_elements(matrix, shares) + bias_elements(matrix, shares);
}

}  // namespace tapestry
