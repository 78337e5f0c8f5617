// The stack of transformer layers.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "parallel_core/config/config.h"
#include "parallel_core/context_parallel/context_parallel_layout.h"
#include "parallel_core/pipeline_parallel/pipeline_stage.h"
#include "parallel_core/random.h"
#include "parallel_core/transformer/attention.h"
#include "parallel_core/transformer/mlp.h"
#include "parallel_core/transformer/moe/moe_layer.h"
#include "parallel_core/transformer/norm.h"
#include "parallel_core/transformer/recompute_policy.h"
#include "parallel_core/transformer/token_mixer.h"

namespace tapestry {

/// One layer: x + m dropout(mixer(norm(x))), then the same with the feed-forward block; the mixer
/// is attention or what layer_types has in its place, m is residual_multiplier. norm_placement of
/// the layer says which norms there are: of a block's input, of its output, or of both; with blocks
/// in parallel both read x, and their sum is added to it. What is recomputed and what is reported
/// is wrapped around these calls.
///
/// With moe_beside_dense the feed-forward block is norm(norm_a(dense(norm(y))) +
/// norm_b(experts(norm_c(y)))), whose router reads y itself. With per-layer embeddings e of the
/// layer z, the sum behind it, becomes z + norm(W_p (gelu_tanh(W_g z) * e)); with layer_scalar the
/// result is multiplied by a number. Source: Gemma 4, as in transformers.
///
/// What config.layer_recompute says for it is not kept but made again in backward, from what comes
/// before it in the layer (autograd/tape/recompute.h). Of a layer that is recomputed as a whole the
/// sum is kept that its first norm reads; what follows is let go when the next layer has read it.
class ParallelTransformerLayer final : public nn::Module,
                                       public nn::Callable<ParallelTransformerLayer> {
 public:
  /// `layer_number` counts from 1.
  ParallelTransformerLayer(const TransformerConfig& config,
                           int64_t layer_number,
                           bool sequence_first);
  ParallelTransformerLayer(const AllConfig& config, int64_t layer_number)
      : ParallelTransformerLayer(config.model_config, layer_number, is_sequence_first(config)) {}

  std::string type_name() const override { return "ParallelTransformerLayer"; }
  /// The stream that the layer's two blocks have been added to, the second one still pending.
  ResidualStream forward(const ResidualStream& stream, const AttentionContext& context);

 private:
  class Pass;

  int64_t layer_;  // from 0
  int64_t batch_axis_;
  double dropout_;
  double multiplier_;
  bool residual_from_norm_;
  bool blocks_in_parallel_;
  bool shares_norm_;
  Precision precision_;
  TensorParallelLayout layout_;
  ContextParallelLayout context_layout_;
  std::optional<RecomputePolicy> recompute_;
  ParallelNorm* input_norm_ = nullptr;
  TokenMixer* mixer_;
  ParallelNorm* attn_post_norm_ = nullptr;
  ParallelNorm* post_attention_norm_ = nullptr;
  MlpBlock* mlp_;
  ParallelNorm* ffn_post_norm_ = nullptr;
  // With moe_beside_dense: mlp_ and its norms are those of the experts.
  MoELayer* experts_ = nullptr;
  MlpBlock* dense_mlp_ = nullptr;
  ParallelNorm* dense_post_norm_ = nullptr;
  ParallelNorm* moe_norm_ = nullptr;
  ParallelNorm* moe_post_norm_ = nullptr;
  // With per-layer embeddings.
  ColumnParallelLinear* per_layer_gate_ = nullptr;
  ColumnParallelLinear* per_layer_projection_ = nullptr;
  ParallelNorm* per_layer_norm_ = nullptr;
  Tensor scalar_;  // [1]; undefined without layer_scalar
};

/// The layers of a pipeline stage and, on the last one, the final norm. Layers are named by their
/// index in the whole model.
class ParallelTransformer final : public nn::Module, public nn::Callable<ParallelTransformer> {
 public:
  ParallelTransformer(const TransformerConfig& config,
                      bool sequence_first,
                      const PipelineStage& stage);
  /// The calling rank's stage.
  explicit ParallelTransformer(const AllConfig& config)
      : ParallelTransformer(
            config.model_config, is_sequence_first(config), get_pipeline_stage(config)) {}

  std::string type_name() const override { return "ParallelTransformer"; }
  /// Runs the layers of one chunk. Hidden states in, hidden states out: [B, S, H], or [S, B, H]
  /// with data_layout SBH; in the residual stream's dtype for the next chunk, in the activations'
  /// after the last one. With per-layer embeddings those of all layers, [.., L p], stand behind the
  /// H channels of what chunks give each other, and in `per_layer` of the first one.
  Tensor forward(const Tensor& hidden,
                 const AttentionContext& context,
                 int chunk,
                 const Tensor& per_layer = {});

 private:
  int64_t hidden_size_;
  int64_t num_layers_;
  int64_t per_layer_size_;
  bool shares_keys_;
  std::vector<std::vector<ParallelTransformerLayer*>> chunks_;
  bool post_process_;
  ParallelNorm* final_norm_ = nullptr;
  int64_t batch_axis_;
  Precision precision_;
  TensorParallelLayout layout_;
};

}  // namespace tapestry
