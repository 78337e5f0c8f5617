// GPT: the language model with its head and loss.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "parallel_core/config/config.h"
#include "parallel_core/tensor_parallel/cross_entropy.h"
#include "parallel_core/transformer/language_model.h"

namespace tapestry {

/// Hidden states to logits by a matrix that belongs to somebody else. hidden [.., H] replicated or
/// a piece of the sequence, weight this rank's rows of [V, H]; logits of the rank's part of the
/// vocabulary, padding included, in the activations' dtype.
class ParallelLMLogits final : public nn::Module {
 public:
  ParallelLMLogits(const Precision& precision, const TensorParallelLayout& layout)
      : precision_(precision), layout_(layout) {}
  std::string type_name() const override { return "ParallelLMLogits"; }
  Tensor forward(const Tensor& hidden, const nn::Parameter& weight) const;

 private:
  Precision precision_;
  TensorParallelLayout layout_;
};

/// One micro-batch. All are [B, S]; labels may be undefined (then only logits are computed),
/// loss_mask (all ones) and position_ids (0 .. S-1) too. Where context-parallel ranks divide the
/// sequences, all are the rank's chunks (own_chunks), the mask those of its queries.
struct GPTInput {
  Tensor tokens;
  Tensor labels;
  Tensor loss_mask;
  Tensor position_ids;
  Tensor attention_mask;  ///< bool [B, 1, own S, S], true = may look; undefined: causal only
  /// In a pipeline: which of the rank's chunks runs, and what it gets from the chunk before: hidden
  /// states [B, S, H], or [S, B, H] with data_layout SBH, in residual_dtype().
  int chunk = 0;
  Tensor hidden;
};

struct GPTOutput {
  Tensor hidden;  ///< for the next chunk; of the model's last chunk undefined, all others are not
  /// Scalar: sum(loss * mask) / max(sum(mask), 1), over whole sequences; undefined without labels.
  /// Of ranks that divide sequences each has the same value, and the gradients of its own tokens.
  Tensor loss;
  /// [B, S, V], or [S, B, V] with data_layout SBH. Undefined where labels are given and the head is
  /// fused with the loss: see fused_linear_cross_entropy. Dropped before backward, its memory
  /// serves for its gradient. Where labels are given and the vocabulary is split, the rank's
  /// columns alone, with padding.
  Tensor logits;
  double token_count = 0;  ///< sum(mask), over whole sequences
};

/// The model, or what one rank of a pipeline has of it: the layers of its chunks under their names
/// in the whole model, the embeddings on the first rank, final norm, head and loss on the last.
class GPTModel final : public nn::Module {
 public:
  GPTModel(const TransformerConfig& config, const std::string& data_layout)
      : GPTModel(config, data_layout, whole_model(config)) {}
  /// ValueError if the tensor-parallel ranks cannot divide heads or channels, or if the head is to
  /// be fused with the loss and there are several.
  GPTModel(const TransformerConfig& config,
           const std::string& data_layout,
           const PipelineStage& stage);

  std::string type_name() const override { return "GPTModel"; }
  /// Every rank of the tensor-parallel group passes the same input and gets the same loss.
  GPTOutput forward(const GPTInput& input);

  const PipelineStage& stage() const { return stage_; }
  /// Of the hidden states between chunks: [batch, seq, H] in the data layout, residual_dtype();
  /// with context or sequence parallelism of this rank's part of the sequence.
  Shape hidden_shape(int64_t batch, int64_t seq) const;
  /// Where context-parallel ranks divide sequences, these are filled up to a multiple of so many
  /// tokens; 1 where they do not.
  int64_t sequence_unit() const;
  /// Of hidden states and logits.
  int64_t sequence_axis() const { return sequence_first_ ? 0 : 1; }
  DType residual_dtype() const { return precision_.residual; }
  TransformerLanguageModel& language_model() { return *language_model_; }

 private:
  Tensor whole_logits(const Tensor& own, int64_t length) const;
  bool fuses_loss() const;
  Tensor fused_loss(const Tensor& hidden,
                    const nn::Parameter& weight,
                    const Tensor& labels,
                    const Tensor& mask) const;

  PipelineStage stage_;
  int64_t hidden_size_;
  bool sequence_first_;
  std::optional<bool> fused_loss_;  // head and loss in one op, always or never
  int64_t vocabulary_;
  TensorParallelLayout layout_;
  ContextParallelLayout context_layout_;
  bool fuses_in_training_;
  Precision precision_;
  TransformerLanguageModel* language_model_;
  ParallelLMLogits* parallel_lm_logits_;
  VocabParallelCrossEntropy* loss_;
};

}  // namespace tapestry
