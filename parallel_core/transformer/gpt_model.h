// GPT: the language model with its head and loss.
#pragma once

#include <memory>
#include <optional>
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
};

struct GPTOutput {
  Tensor loss;  ///< scalar: sum(loss * mask) / max(sum(mask), 1); undefined without labels
  /// [B, S, V], or [S, B, V] with data_layout SBH. Undefined where labels are given and the head is
  /// fused with the loss: see fused_linear_cross_entropy. Dropped before backward, its memory
  /// serves for its gradient.
  Tensor logits;
  double token_count = 0;  ///< sum(mask)
};

class GPTModel final : public nn::Module {
 public:
  GPTModel(const TransformerConfig& config, const std::string& data_layout);

  std::string type_name() const override { return "GPTModel"; }
  GPTOutput forward(const GPTInput& input);
  TransformerLanguageModel& language_model() { return *language_model_; }

 private:
  bool fuses_loss() const;
  Tensor fused_loss(const Tensor& hidden,
                    const nn::Parameter& weight,
                    const Tensor& labels,
                    const Tensor& mask) const;

  bool sequence_first_;
  std::optional<bool> fused_loss_;  // head and loss in one op, always or never
  bool fuses_in_training_;
  Precision precision_;
  TransformerLanguageModel* language_model_;
  ParallelLMLogits* parallel_lm_logits_;
  VocabParallelCrossEntropy* loss_;
};

}  // namespace tapestry
