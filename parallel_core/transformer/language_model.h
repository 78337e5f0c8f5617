// Embeddings, transformer and output layer.
#pragma once

#include <memory>
#include <string>

#include "parallel_core/config/config.h"
#include "parallel_core/transformer/rotary_pos_embedding.h"
#include "parallel_core/transformer/transformer.h"

namespace tapestry {

/// Word embeddings plus, with position_embedding_type learned_absolute, learned positions; then
/// dropout. ids [B, S] -> [B, S, H], or [S, B, H] with data_layout SBH; with sequence parallelism
/// the rank's piece of that.
class Embedding final : public nn::Module {
 public:
  Embedding(const TransformerConfig& config, bool sequence_first);

  std::string type_name() const override { return "Embedding"; }
  /// ValueError if the sequence is longer than the table of positions, or cannot be divided over
  /// the ranks. Positions count from 0 in every row unless position_ids [B, S] are given.
  Tensor forward(const Tensor& ids, const Tensor& position_ids);
  nn::Parameter& word_embeddings() const { return word_embeddings_->weight(); }

 private:
  bool sequence_first_;
  double dropout_;
  DType dtype_;  // of the residual stream
  TensorParallelLayout layout_;
  VocabParallelEmbedding* word_embeddings_;
  nn::Parameter* positions_ = nullptr;
};

class TransformerLanguageModel final : public nn::Module {
 public:
  TransformerLanguageModel(const TransformerConfig& config, bool sequence_first);

  std::string type_name() const override { return "TransformerLanguageModel"; }
  /// ids [B, S] -> hidden states after the final norm. position_ids and mask may be undefined;
  /// mask is bool [B, 1, S, S], true = may look, on top of causality and window.
  Tensor forward(const Tensor& ids, const Tensor& position_ids, const Tensor& mask);
  /// The matrix [V, H] that turns hidden states into logits: the word embeddings when tied.
  nn::Parameter& output_weight() const;

 private:
  std::unique_ptr<RotaryEmbedding> rotary_;
  Embedding* embedding_;
  ParallelTransformer* encoder_;
  nn::Parameter* output_weight_ = nullptr;
};

/// The language model of a configuration; rows of the batch come second with sequence_first.
std::unique_ptr<TransformerLanguageModel> get_language_model(const TransformerConfig& config,
                                                             bool sequence_first);

}  // namespace tapestry
