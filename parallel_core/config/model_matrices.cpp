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

bool has_norm_bias(const TransformerConfig& config) {
  return config.normalization == "LayerNorm" && config.norm_has_bias;
}

// The biases of a rank's part follow the rows; those of a matrix that is divided by its columns are
// added once, by everybody.
double bias_elements(const ModelMatrix& matrix, const ModelShares& shares) {
  return matrix.has_bias ? static_cast<double>(shape_on_rank(matrix, shares)[0]) : 0;
}

// Of the module of a layer, in memory.
std::string layer_path(const TransformerConfig& config, int64_t layer) {
  return layer < config.num_layers || layer >= all_layers(config)
             ? concat(kLanguageModel, "encoder.layers.", layer, ".")
             : concat(kLanguageModel, "mtp.layers.", layer - config.num_layers,
                      ".transformer_layer.");
}

// Appends the matrices of a layer.
class MatrixList {
 public:
  MatrixList(const TransformerConfig& config, int64_t layer)
      : config_(config),
        widths_(layer_widths(config, layer)),
        layer_(layer),
        path_(layer_path(config, layer)),
        prefix_(concat("layers.", layer, ".")) {}

  void add_norms() {
    const int64_t hidden = config_.hidden_size;
    if (norms_inputs(config_, layer_)) {
      norm("input_norm", "attention_norm", hidden);
    }
    if (config_.qk_layernorm && mixer_kind(config_, layer_) == MixerKind::kAttention) {
      head_norms("attention.q_norm", widths_.heads);
      if (!keys_from(config_, layer_)) {
        head_norms("attention.k_norm", widths_.groups);
      }
    }
    if (norms_outputs(config_, layer_)) {
      norm("attn_post_norm", "attention_post_norm", hidden);
      norm("ffn_post_norm", "ffn_post_norm", hidden);
    }
    if (norms_inputs(config_, layer_) && !shares_norm(config_, layer_)) {
      norm("post_attention_norm", "ffn_norm", hidden);
    }
    if (has_experts_beside_dense(config_, layer_)) {
      for (const char* name : {"dense_post_norm", "moe_norm", "moe_post_norm"}) {
        norm(name, name, hidden);
      }
    }
    if (config_.per_layer_embedding_size > 0) {
      norm("per_layer_norm", "per_layer_norm", hidden);
    }
  }

  void add_hyper_connections() {
    if (!config_.hyper_connections.enabled) {
      return;
    }
    const int64_t n = residual_streams(config_);
    const Shape shape = {n * (n + 2),
                         checked_product(n, config_.hidden_size, "num_residual_streams")};
    for (const auto& [module, block] : {std::pair{"attention_hyper_connection", "attention"},
                                        std::pair{"mlp_hyper_connection", "feed_forward"}}) {
      const std::string name = concat("hyper_connection.", block);
      add(module, name, MatrixRole::kStreams, shape).has_bias = true;
      add(module, name + ".alpha", MatrixRole::kVector, {3});
    }
  }

  // Behind the MLP.
  void add_per_layer() {
    const int64_t size = config_.per_layer_embedding_size;
    if (size > 0) {
      for (const auto& [name, shape] :
           {std::pair{"per_layer_gate", Shape{size, config_.hidden_size}},
            std::pair{"per_layer_projection", Shape{config_.hidden_size, size}}}) {
        ModelMatrix& matrix = add(name, name, MatrixRole::kPerLayer, shape);
        matrix.quantizable = matrix.takes_adapter = true;
      }
    }
  }

  void add_router() {
    add("mlp.router", "moe.router", MatrixRole::kRouter,
        {config_.moe.num_experts, config_.hidden_size})
        .has_bias = config_.moe.moe_router_has_bias;
    if (config_.moe.moe_beside_dense) {
      add("mlp.router", "moe.router.scale", MatrixRole::kVector, {config_.hidden_size});
      add("mlp.router", "moe.router.per_expert_scale", MatrixRole::kVector,
          {config_.moe.num_experts});
    }
    if (has_shared_expert() && config_.moe.use_shared_expert_gating) {
      add("mlp.shared_expert_gate", "moe.shared_expert_gate", MatrixRole::kSharedExpertGate,
          {1, config_.hidden_size});
    }
  }

  void add_mixer() {
    switch (mixer_kind(config_, layer_)) {
      case MixerKind::kAttention:
        add_attention();
        break;
      case MixerKind::kGatedDelta:
        add_gated_delta();
        break;
      case MixerKind::kShortConv:
        add_short_conv();
        break;
      case MixerKind::kMamba:
        add_mamba();
        break;
    }
  }

  void add_attention() {
    if (config_.multi_latent_attention) {
      add_latent_attention();
    } else {
      add_heads();
    }
    if (config_.attention_sinks) {
      add("attention", "attention.sinks", MatrixRole::kVector, {widths_.heads}).sharded_axis = 0;
    }
  }

  void add_mlp() {
    add_mlp(has_experts_beside_dense(config_, layer_) ? "dense_mlp" : "mlp", "feed_forward.",
            widths_.ffn);
  }

  void add_experts() {
    if (has_shared_expert()) {
      add_mlp("mlp.shared_expert", "moe.shared_expert.", widths_.shared_ffn);
    }
    const size_t first = matrices_.size();
    add_mlp("mlp.experts", "moe.experts.0.", widths_.expert_ffn);
    for (size_t i = first; i < matrices_.size(); ++i) {
      matrices_[i].experts = config_.moe.num_experts;
      matrices_[i].module = path_ + "mlp.experts";
      matrices_[i].takes_adapter = false;
    }
  }

  std::vector<ModelMatrix> take() { return std::move(matrices_); }

 private:
  bool has_shared_expert() const { return widths_.shared_ffn > 0; }

  void add_heads() {
    const int64_t hidden = config_.hidden_size;
    const auto fused = [&](const char* name, MatrixRole role, int64_t rows) {
      ModelMatrix& matrix =
          add("attention.qkv_proj", concat("attention.", name), role, {rows, hidden});
      matrix.has_bias = config_.qkv_has_bias;
      divide(matrix, 0, widths_.channels);
    };
    fused("wq", MatrixRole::kQuery, widths_.queries);
    if (config_.attention_output_gate) {
      fused("wg", MatrixRole::kQuery, widths_.queries);
    }
    if (!keys_from(config_, layer_)) {
      fused("wk", MatrixRole::kKey, widths_.keys);
      if (!value_is_key(config_, layer_)) {
        fused("wv", MatrixRole::kValue, widths_.keys);
      }
    }
    ModelMatrix& out =
        add("attention.out_proj", "attention.wo", MatrixRole::kOutput, {hidden, widths_.queries});
    out.has_bias = config_.out_proj_has_bias;
    divide(out, 1, widths_.channels);
  }

  // Rows of the matrix that reads a layer's input; ranks divide them by heads.
  ModelMatrix& mixing(const char* module,
                      const std::string& name,
                      int64_t rows,
                      int64_t unit,
                      bool has_bias = false) {
    ModelMatrix& matrix = add(module, name, MatrixRole::kMixing, {rows, config_.hidden_size});
    matrix.has_bias = has_bias;
    divide(matrix, 0, unit);
    return matrix;
  }

  void convolution(const char* module,
                   const std::string& name,
                   int64_t channels,
                   int64_t taps,
                   int64_t unit,
                   bool has_bias = false) {
    ModelMatrix& matrix = add(module, name, MatrixRole::kConvolution, {channels, 1, taps});
    matrix.has_bias = has_bias;
    matrix.sharded_axis = 0;
    matrix.unit = unit;
  }

  void vector(const char* module, const std::string& name, int64_t size, int64_t unit) {
    ModelMatrix& matrix = add(module, name, MatrixRole::kVector, {size});
    matrix.sharded_axis = 0;
    matrix.unit = unit;
  }

  void mixer_output(const char* module,
                    const std::string& name,
                    int64_t columns,
                    int64_t unit,
                    bool has_bias = false) {
    ModelMatrix& out = add(module, name, MatrixRole::kOutput, {config_.hidden_size, columns});
    out.has_bias = has_bias;
    divide(out, 1, unit);
  }

  void add_gated_delta() {
    const MixerWidths w = mixer_widths(config_, MixerKind::kGatedDelta);
    const int64_t per_key = w.value_heads / w.key_heads;
    const int64_t unit = per_key * w.value_channels;
    const std::string name = "linear_attention.";
    constexpr const char* kIn = "linear_attention.in_proj";
    mixing(kIn, name + "wq", w.keys, w.key_channels);
    mixing(kIn, name + "wk", w.keys, w.key_channels);
    mixing(kIn, name + "wv", w.values, unit);
    mixing(kIn, name + "wz", w.values, unit);
    mixing(kIn, name + "wb", w.value_heads, per_key);
    mixing(kIn, name + "wa", w.value_heads, per_key);
    constexpr const char* kConv = "linear_attention.conv";
    convolution(kConv, name + "conv_q", w.keys, w.taps, w.key_channels);
    convolution(kConv, name + "conv_k", w.keys, w.taps, w.key_channels);
    convolution(kConv, name + "conv_v", w.values, w.taps, unit);
    vector("linear_attention", name + "A_log", w.value_heads, per_key);
    vector("linear_attention", name + "dt_bias", w.value_heads, per_key);
    add("linear_attention.norm", name + "norm", MatrixRole::kNorm, {w.value_channels});
    mixer_output("linear_attention.out_proj", name + "wo", w.values, unit);
  }

  void add_short_conv() {
    const MixerWidths w = mixer_widths(config_, MixerKind::kShortConv);
    const bool bias = config_.short_conv.has_bias;
    const std::string name = "short_conv.";
    for (const char* part : {"wb", "wc", "wx"}) {
      mixing("short_conv.in_proj", name + part, w.values, 1, bias);
    }
    convolution("short_conv.conv", name + "conv", w.values, w.taps, 1, bias);
    mixer_output("short_conv.out_proj", name + "wo", w.values, 1, bias);
  }

  void add_mamba() {
    const MixerWidths w = mixer_widths(config_, MixerKind::kMamba);
    const MambaConfig& mamba = config_.mamba;
    const std::string name = "mamba.";
    constexpr const char* kIn = "mamba.in_proj";
    const bool bias = mamba.proj_has_bias;
    const int64_t channels = w.value_channels;
    mixing(kIn, name + "wz", w.values, channels, bias);
    mixing(kIn, name + "wx", w.values, channels, bias);
    mixing(kIn, name + "wB", w.keys, w.key_channels, bias);
    mixing(kIn, name + "wC", w.keys, w.key_channels, bias);
    mixing(kIn, name + "wdt", w.value_heads, 1, bias);
    constexpr const char* kConv = "mamba.conv";
    convolution(kConv, name + "conv_x", w.values, w.taps, channels, mamba.conv_has_bias);
    convolution(kConv, name + "conv_B", w.keys, w.taps, w.key_channels, mamba.conv_has_bias);
    convolution(kConv, name + "conv_C", w.keys, w.taps, w.key_channels, mamba.conv_has_bias);
    for (const char* part : {"A_log", "D", "dt_bias"}) {
      vector("mamba", name + part, w.value_heads, 1);
    }
    ModelMatrix& norm = add("mamba.norm", name + "norm", MatrixRole::kNorm, {w.values});
    norm.sharded_axis = 0;
    norm.unit = channels;
    mixer_output("mamba.out_proj", name + "wo", w.values, channels, bias);
  }

  void add_latent_attention() {
    const int64_t hidden = config_.hidden_size;
    const int64_t rank = config_.kv_lora_rank;
    const int64_t values = widths_.value_channels;
    const auto linear = [&](const char* module, const char* name, MatrixRole role, int64_t rows,
                            int64_t columns) -> ModelMatrix& {
      return add(concat("attention.", module), concat("attention.", name), role, {rows, columns});
    };
    const auto on_every_rank = [&](ModelMatrix& matrix) {
      matrix.has_bias = config_.qkv_has_bias;
      matrix.quantizable = matrix.takes_adapter = true;
    };
    if (config_.q_lora_rank) {
      const int64_t of_queries = *config_.q_lora_rank;
      on_every_rank(linear("q_a_proj", "wq_a", MatrixRole::kQuery, of_queries, hidden));
      norm("attention.q_a_norm", "attention.q_a_norm", of_queries);
      divide(linear("q_b_proj", "wq_b", MatrixRole::kQuery, widths_.queries, of_queries), 0,
             widths_.channels);
    } else {
      divide(linear("q_proj", "wq", MatrixRole::kQuery, widths_.queries, hidden), 0,
             widths_.channels);
    }
    on_every_rank(
        linear("kv_a_proj", "wkv_a", MatrixRole::kKey, rank + config_.qk_pos_emb_head_dim, hidden));
    norm("attention.kv_a_norm", "attention.kv_a_norm", rank);
    divide(linear("kv_b_proj", "wkv_b", MatrixRole::kKey,
                  widths_.heads * (config_.qk_head_dim + values), rank),
           0, config_.qk_head_dim + values);
    ModelMatrix& out =
        linear("out_proj", "wo", MatrixRole::kOutput, hidden, widths_.heads * values);
    out.has_bias = config_.out_proj_has_bias;
    divide(out, 1, values);
  }

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
    if (config_.norm_has_gain) {
      add(module, name, MatrixRole::kNorm, {size}).has_bias = has_norm_bias(config_);
    }
  }

  void head_norms(const char* name, int64_t heads) {
    if (config_.qk_layernorm_scope == "projection") {
      ModelMatrix& matrix = add(name, name, MatrixRole::kNorm, {heads * widths_.channels});
      matrix.sharded_axis = 0;
      matrix.unit = widths_.channels;
    } else if (config_.qk_layernorm_scope == "each_head") {
      for (int64_t head = 0; head < heads; ++head) {
        add(name, concat(name, ".", head), MatrixRole::kNorm, {widths_.channels});
      }
    } else {
      norm(name, name, widths_.channels);
    }
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
    if (config_.hidden_act == "xielu") {
      add(module, prefix + "alpha_p", MatrixRole::kVector, {1});
      add(module, prefix + "alpha_n", MatrixRole::kVector, {1});
    }
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

LayerWidths layer_widths(const TransformerConfig& config,
                         int64_t layer,
                         const ModelShares& shares) {
  const int64_t tp = std::max<int64_t>(shares.tensor, 1);
  const int64_t heads = config.num_attention_heads;
  LayerWidths widths;
  widths.channels = config.kv_channels ? kv_channels(config, layer)
                                       : (heads > 0 ? config.hidden_size / heads : 0);
  widths.heads = heads / tp;
  widths.groups = (num_query_groups(config, layer) + tp - 1) / tp;
  widths.queries = checked_product(widths.heads, widths.channels, "num_attention_heads");
  widths.keys = checked_product(widths.groups, widths.channels, "num_query_groups");
  widths.value_channels = config.multi_latent_attention ? config.v_head_dim : widths.channels;
  widths.values = checked_product(widths.groups, widths.value_channels, "num_query_groups");
  widths.context = checked_product(widths.heads, widths.value_channels, "num_attention_heads");
  if (keys_from(config, layer)) {
    widths.keys = widths.values = 0;
  }
  widths.ffn = ffn_hidden_size(config, layer) / tp;
  widths.expert_ffn = moe_ffn_hidden_size(config) / std::max<int64_t>(shares.expert_tensor, 1);
  widths.shared_ffn = config.moe.moe_shared_expert_intermediate_size.value_or(0) / tp;
  widths.gates = has_gated_mlp(config) ? 2 : 1;
  return widths;
}

MixerWidths mixer_widths(const TransformerConfig& config,
                         MixerKind mixer,
                         const ModelShares& shares) {
  const int64_t tp = std::max<int64_t>(shares.tensor, 1);
  MixerWidths w;
  switch (mixer) {
    case MixerKind::kAttention:
      break;
    case MixerKind::kGatedDelta: {
      const LinearAttentionConfig& linear = config.linear_attention;
      w.key_heads = linear.num_key_heads / tp;
      w.value_heads = linear.num_value_heads / tp;
      w.key_channels = linear.key_head_dim;
      w.value_channels = linear.value_head_dim;
      w.keys = checked_product(w.key_heads, w.key_channels, "linear_num_key_heads");
      w.values = checked_product(w.value_heads, w.value_channels, "linear_num_value_heads");
      w.convolved = 2 * w.keys + w.values;
      w.projected = w.convolved + w.values + 2 * w.value_heads;
      w.state = checked_product(w.values, w.key_channels, "linear_key_head_dim");
      w.taps = linear.conv_kernel_dim;
      break;
    }
    case MixerKind::kShortConv:
      w.values = w.convolved = config.hidden_size / tp;
      w.projected = 3 * w.values;
      w.taps = config.short_conv.kernel_dim;
      break;
    case MixerKind::kMamba: {
      const MambaConfig& mamba = config.mamba;
      w.value_heads = mamba.num_heads.value_or(0) / tp;
      w.key_heads = (mamba.num_groups + tp - 1) / tp;
      w.key_channels = mamba.state_dim;
      w.value_channels = mamba.head_dim;
      w.keys = checked_product(w.key_heads, w.key_channels, "mamba_num_groups");
      w.values = checked_product(w.value_heads, w.value_channels, "mamba_num_heads");
      w.convolved = 2 * w.keys + w.values;
      w.projected = w.convolved + w.values + w.value_heads;
      w.state = checked_product(w.values, w.key_channels, "mamba_state_dim");
      w.taps = mamba.conv_kernel_dim;
      break;
    }
  }
  return w;
}

int64_t residual_streams(const TransformerConfig& config) {
  return config.hyper_connections.enabled ? config.hyper_connections.num_streams : 1;
}

LayerKind layer_kind(const TransformerConfig& config, int64_t layer) {
  return is_moe_layer(config, layer) ? LayerKind::kMixture : LayerKind::kDense;
}

std::vector<AlikeLayers> alike_layers(const TransformerConfig& config,
                                      int64_t first,
                                      int64_t count) {
  if (!config.layer_types && config.moe.num_experts <= 1 && config.num_kv_shared_layers == 0) {
    return count > 0 ? std::vector<AlikeLayers>{{first, count}} : std::vector<AlikeLayers>();
  }
  const auto alike = [&](int64_t a, int64_t b) {
    const auto type = [&](int64_t layer) {
      return config.layer_types
                 ? config.layer_types->at(static_cast<size_t>(kind_of(config, layer)))
                 : std::string();
    };
    return is_moe_layer(config, a) == is_moe_layer(config, b) && type(a) == type(b) &&
           keys_from(config, a).has_value() == keys_from(config, b).has_value();
  };
  std::vector<AlikeLayers> out;
  for (int64_t layer = first; layer < first + count; ++layer) {
    const auto same = std::find_if(out.begin(), out.end(),
                                   [&](const AlikeLayers& one) { return alike(one.layer, layer); });
    if (same == out.end()) {
      out.push_back({layer, 1});
    } else {
      ++same->count;
    }
  }
  return out;
}

std::vector<AlikeLayers> alike_layers(const TransformerConfig& config) {
  return alike_layers(config, 0, config.num_layers);
}

std::vector<ModelMatrix> layer_matrices(const TransformerConfig& config, int64_t layer) {
  const LayerKind kind = layer_kind(config, layer);
  MatrixList table(config, layer);
  table.add_norms();
  if (kind == LayerKind::kMixture) {
    table.add_router();
  }
  table.add_mixer();
  if (kind == LayerKind::kDense || has_experts_beside_dense(config, layer)) {
    table.add_mlp();
  }
  if (kind == LayerKind::kMixture) {
    table.add_experts();
  }
  table.add_hyper_connections();
  table.add_per_layer();
  return table.take();
}

namespace {

// Of the model's norms outside of layers.
void append_norm(const TransformerConfig& config,
                 const char* module,
                 const char* name,
                 std::vector<ModelMatrix>& out) {
  if (config.norm_has_gain) {
    out.push_back({.name = name,
                   .module = concat(kLanguageModel, module),
                   .role = MatrixRole::kNorm,
                   .shape = {config.hidden_size},
                   .has_bias = has_norm_bias(config)});
  }
}

}  // namespace

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
  if (config.embedding_norm) {
    append_norm(config, "embedding.norm", "embedding_norm", out);
  }
  if (config.per_layer_embedding_size > 0) {
    const int64_t all =
        checked_product(config.num_layers, config.per_layer_embedding_size, "num_layers");
    const std::string module = concat(kLanguageModel, "embedding.per_layer.");
    out.push_back({.name = "per_layer_embeddings",
                   .module = module + "table",
                   .role = MatrixRole::kPerLayerTable,
                   .shape = {per_layer_vocab_size(config), all},
                   .sharded_axis = 0});
    out.push_back({.name = "per_layer_model_projection",
                   .module = module + "projection",
                   .role = MatrixRole::kPerLayer,
                   .shape = {all, hidden},
                   .quantizable = true,
                   .takes_adapter = true});
    append_norm(config, "embedding.per_layer.norm", "per_layer_projection_norm", out);
    if (config.norm_has_gain) {
      out.back().shape = {config.per_layer_embedding_size};
    }
  }
  return out;
}

std::vector<ModelMatrix> matrices_after_layers(const TransformerConfig& config) {
  const int64_t hidden = config.hidden_size;
  std::vector<ModelMatrix> out;
  if (config.use_final_norm) {
    append_norm(config, "encoder.final_norm", "final_norm", out);
  }
  if (config.score_head) {
    out.push_back({.name = "score",
                   .module = concat(kLanguageModel, "score"),
                   .role = MatrixRole::kScore,
                   .shape = {1, hidden}});
  } else if (config.untie_embeddings_and_output_weights) {
    out.push_back({.name = "lm_head",
                   .module = concat(kLanguageModel, "output_layer"),
                   .role = MatrixRole::kHead,
                   .shape = {config.vocab_size, hidden},
                   .sharded_axis = 0});
  }
  return out;
}

bool needs_table_at_end(const TransformerConfig& config) {
  return config.mtp_num_layers > 0 ||
         (!config.untie_embeddings_and_output_weights && !config.score_head);
}

std::vector<ModelMatrix> matrices_ahead(const TransformerConfig& config) {
  const int64_t hidden = config.hidden_size;
  std::vector<ModelMatrix> out;
  for (int64_t layer = config.num_layers; layer < all_layers(config); ++layer) {
    const std::string module = concat("mtp.layers.", layer - config.num_layers, ".");
    const std::string name = concat("layers.", layer, ".mtp.");
    const size_t first = out.size();
    for (const char* norm : {"enorm", "hnorm"}) {
      append_norm(config, (module + norm).c_str(), (name + norm).c_str(), out);
    }
    out.push_back({.name = name + "eh_proj",
                   .module = concat(kLanguageModel, module, "eh_proj"),
                   .role = MatrixRole::kAhead,
                   .shape = {hidden, 2 * hidden}});
    append_norm(config, (module + "final_norm").c_str(), (name + "final_norm").c_str(), out);
    for (size_t i = first; i < out.size(); ++i) {
      out[i].layer = layer;
    }
    append(out, layer_matrices(config, layer));
    // Adapters are trained without these layers.
    for (size_t i = first; i < out.size(); ++i) {
      out[i].takes_adapter = out[i].quantizable = false;
    }
  }
  return out;
}

std::vector<ModelMatrix> model_matrices(const TransformerConfig& config) {
  std::vector<ModelMatrix> out = matrices_before_layers(config);
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    append(out, layer_matrices(config, layer));
  }
  append(out, matrices_after_layers(config));
  append(out, matrices_ahead(config));
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
