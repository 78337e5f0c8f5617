// GPT: the language model with its head and loss.
#pragma once

#include <memory>
#include <string>

#include "parallel_core/config/config.h"
#include "parallel_core/transformer/language_model.h"

namespace tapestry {

/// Hidden states to logits by a matrix that belongs to somebody else. hidden [.., H], weight
/// [V, H]; logits [.., V] in the activations' dtype.
class ParallelLMLogits final : public nn::Module {
 public:
  explicit ParallelLMLogits(const Precision& precision) : precision_(precision) {}
  std::string type_name() const override { return "ParallelLMLogits"; }
  Tensor forward(const Tensor& hidden, const nn::Parameter& weight) const;

 private:
  Precision precision_;
};

/// Cross entropy over a vocabulary that may be split over the tensor-parallel group.
class VocabParallelCrossEntropy final : public nn::Module {
 public:
  std::string type_name() const override { return "VocabParallelCrossEntropy"; }
  /// Loss of every token: logits [.., V] of any floating dtype, labels [..] -> float32 [..],
  /// computed in float32. `label_smoothing` in [0, 1) spreads that share of the target evenly over
  /// the vocabulary.
  Tensor forward(const Tensor& logits, const Tensor& labels, double label_smoothing = 0) const;
};

/// One micro-batch. All are [B, S]; labels may be undefined (then only logits are computed),
/// loss_mask (all ones) and position_ids (0 .. S-1) too.
struct GPTInput {
  Tensor tokens;
  Tensor labels;
  Tensor loss_mask;
  Tensor position_ids;
  Tensor attention_mask;  ///< bool [B, 1, S, S], true = may look; undefined: causal only
  /// In a pipeline: which of the rank's chunks runs, and what it gets from the chunk before: hidden
  /// states [B, S, H], or [S, B, H] with data_layout SBH, in residual_dtype().
  int chunk = 0;
  Tensor hidden;
};

struct GPTOutput {
  Tensor hidden;  ///< for the next chunk; of the model's last chunk undefined, all others are not
  Tensor loss;    ///< scalar: sum(loss * mask) / max(sum(mask), 1); undefined without labels
  /// [B, S, V], or [S, B, V] with data_layout SBH. Undefined where labels are given and the head is
  /// fused with the loss. Dropped before backward, its memory serves for its gradient.
  Tensor logits;
  double token_count = 0;  ///< sum(mask)
};

/// The model, or what one rank of a pipeline has of it: the layers of its chunks under their names
/// in the whole model, the embeddings on the first rank, final norm, head and loss on the last.
class GPTModel final : public nn::Module {
 public:
  GPTModel(const TransformerConfig& config, const std::string& data_layout)
      : GPTModel(config, data_layout, whole_model(config)) {}
  GPTModel(const TransformerConfig& config,
           const std::string& data_layout,
           const PipelineStage& stage);

  std::string type_name() const override { return "GPTModel"; }
  GPTOutput forward(const GPTInput& input);

  const PipelineStage& stage() const { return stage_; }
  /// Of the hidden states between chunks: [batch, seq, H] in the data layout, residual_dtype().
  Shape hidden_shape(int64_t batch, int64_t seq) const {
    return sequence_first_ ? Shape{seq, batch, hidden_size_} : Shape{batch, seq, hidden_size_};
  }
  DType residual_dtype() const { return precision_.residual; }
  TransformerLanguageModel& language_model() { return *language_model_; }

 private:
  Tensor fused_losses(const Tensor& hidden,
                      const nn::Parameter& weight,
                      const Tensor& labels) const;

  PipelineStage stage_;
  int64_t hidden_size_;
  bool sequence_first_;
  bool fused_loss_;  // head and loss in one op
  Precision precision_;
  TransformerLanguageModel* language_model_;
  ParallelLMLogits* parallel_lm_logits_;
  VocabParallelCrossEntropy* loss_;
};

}  // namespace tapestry
