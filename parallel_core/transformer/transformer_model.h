// Base of models whose sizes, dtypes and layout are those of a configuration.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "parallel_core/config/config.h"
#include "parallel_core/context_parallel/context_parallel_layout.h"
#include "parallel_core/pipeline_parallel/parallel_model.h"
#include "parallel_core/precision.h"
#include "parallel_core/tensor_parallel/tensor_parallel_layout.h"

namespace tapestry {

/// Knows its place in the layout and what follows from it: a model derived from it makes its layers
/// and has a forward(). Hidden states are [B, S, H], or [S, B, H] with data_layout SBH, of the
/// rank's part of the sequence with context or sequence parallelism.
class TransformerModel : public ParallelModel {
 public:
  const PipelineStage& stage() const final { return stage_; }
  Shape hidden_shape(int64_t batch, int64_t seq) const override;
  DType hidden_dtype() const override { return precision_.residual; }
  int64_t sequence_unit() const override;
  int64_t sequence_axis() const override { return sequence_first_ ? 0 : 1; }
  const TensorParallelLayout& tensor_layout() const { return tensor_layout_; }

 protected:
  /// The calling rank's part of the pipeline. ValueError for another data_layout than BSH or SBH,
  /// or layers that cannot be split as configured.
  explicit TransformerModel(const AllConfig& config);
  TransformerModel(const TransformerConfig& config,
                   const std::string& data_layout,
                   PipelineStage stage);

  bool sequence_first() const { return sequence_first_; }
  const ContextParallelLayout& context_layout() const { return context_layout_; }
  const Precision& precision() const { return precision_; }

  /// make(i) for every layer that this rank has, chunk by chunk; i is the layer's index in the
  /// whole model, from 0, and belongs into the names of what it makes.
  template <class F>
  auto make_layers(const F& make) const {
    std::vector<std::vector<decltype(make(int64_t{}))>> chunks;
    for (const LayerRange& range : stage_.chunks) {
      auto& layers = chunks.emplace_back();
      for (int64_t i = range.first; i < range.first + range.count; ++i) {
        layers.push_back(make(i));
      }
    }
    return chunks;
  }

  /// forward(), the hidden states that layer i of the whole model makes, from 0. Where the
  /// configuration has the layer recomputed as a whole, nothing else that it makes is kept, and
  /// backward makes again what it reads, with the same bits (autograd/tape/recompute.h).
  Tensor run_layer(int64_t i, const std::function<Tensor()>& forward) const;

  /// Ids, labels or a mask [B, S] in the order of hidden states: [S, B] with data_layout SBH. An
  /// undefined tensor stays one.
  Tensor in_layout(const Tensor& batch_first) const;
  /// The output of the last chunk for the losses of its tokens, in the order of hidden states:
  /// their mean over the tokens that input.loss_mask counts. ValueError for a mask of another
  /// shape than the tokens'.
  ModelOutput mean_loss(const Tensor& losses, const ModelInput& input) const;
  /// The same for sum(loss * mask), from whoever has that; not in exact mode.
  ModelOutput mean_of_sum(const Tensor& sum, const ModelInput& input) const;
  /// In exact mode: `weighted`, the sum of the losses times token_weights(input), and what the
  /// losses sum to.
  ModelOutput exact_loss(const Tensor& weighted,
                         const Tensor& losses,
                         const ModelInput& input) const;
  /// mask * token_weight in the order of hidden states, float32.
  Tensor token_weights(const ModelInput& input) const;
  /// ValueError unless labels and mask, where there are any, have the shape of the tokens.
  static void check_targets(const ModelInput& input);

 private:
  PipelineStage stage_;
  int64_t hidden_width_;  // of all residual streams, and per-layer embeddings behind them
  bool sequence_first_;
  TensorParallelLayout tensor_layout_;
  ContextParallelLayout context_layout_;
  Precision precision_;
  std::vector<bool> is_recomputed_;  // by layer; empty: none is
};

}  // namespace tapestry
