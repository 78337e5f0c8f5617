#include "parallel_core/transformer/per_layer_embedding.h"

#include <cmath>
#include <numbers>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tensor/error.h"
#include "parallel_core/init_method.h"
#include "parallel_core/lora/low_rank_spec.h"

namespace tapestry {

ParallelLinearSpec replicated_spec(const TransformerConfig& config,
                                   const TensorParallelLayout& layout,
                                   const std::string& name,
                                   int64_t in,
                                   int64_t out,
                                   const InitMethod& init,
                                   bool sequence_first) {
  ParallelLinearSpec spec{.input_size = in,
                          .output_size = out,
                          .weight = {whole(name + ".weight", {out, in}, init)},
                          .replicated = true,
                          .precision = precision_of(config),
                          .layout = layout};
  return with_adapters(std::move(spec), config, DividedSide::kRows, sequence_first);
}

PerLayerEmbedding::PerLayerEmbedding(const TransformerConfig& config, bool sequence_first)
    : layers_(config.num_layers),
      size_(config.per_layer_embedding_size),
      projection_scale_(1 / std::sqrt(static_cast<double>(config.hidden_size))),
      precision_(precision_of(config)) {
  const TensorParallelLayout layout = tensor_parallel_layout(config, sequence_first);
  table_ = &register_module<VocabParallelEmbedding>("table", "per_layer_embeddings.weight",
                                                    per_layer_vocab_size(config), layers_ * size_,
                                                    weight_init(config), layout);
  projection_ = &register_module<ColumnParallelLinear>(
      "projection",
      replicated_spec(config, layout, "per_layer_model_projection", config.hidden_size,
                      layers_ * size_, weight_init(config), sequence_first));
  norm_ = static_cast<ParallelNorm*>(&add_child(
      "norm", get_norm(config, size_, "per_layer_projection_norm", layout.hidden_gradient())));
}

Tensor PerLayerEmbedding::forward(const Tensor& ids, const Tensor& x0) const {
  const Tensor projected = (*projection_)(x0).output * projection_scale_;
  const Shape by_layer = {x0.size(0), x0.size(1), layers_, size_};
  const Tensor normed = (*norm_)(projected.reshape(by_layer)).reshape(projected.shape());
  const Tensor own = (*table_)(ids)*std::sqrt(static_cast<double>(size_));
  return ((normed + own) * (1 / std::numbers::sqrt2)).to(precision_.residual);
}

}  // namespace tapestry
