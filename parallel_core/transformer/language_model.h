// Embeddings, transformer and output layer.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "parallel_core/config/config.h"
#include "parallel_core/transformer/multi_token_prediction.h"
#include "parallel_core/transformer/per_layer_embedding.h"
#include "parallel_core/transformer/rotary_pos_embedding.h"
#include "parallel_core/transformer/transformer.h"

namespace tapestry {

/// How the word embeddings are shared between the first and the last stage of a pipeline.
enum class EmbeddingCopy : uint8_t {
  kOnly,      ///< nobody else has them
  kOriginal,  ///< the last stage has a copy, to make logits with or to embed tokens ahead
  kCopy,      ///< this is that copy: no positions, and no forward()
};

/// Word embeddings plus, with position_embedding_type learned_absolute, learned positions; then
/// dropout; word embeddings are multiplied by embedding_multiplier, and with embedding_norm the sum
/// goes through a norm. ids [B, S] -> [B, S, H], or [S, B, H] with data_layout SBH; with sequence
/// parallelism the rank's piece of that. S are the rank's own tokens where context-parallel ranks
/// divide sequences.
class Embedding final : public nn::Module, public nn::Callable<Embedding> {
 public:
  Embedding(const TransformerConfig& config,
            bool sequence_first,
            EmbeddingCopy copy = EmbeddingCopy::kOnly);
  explicit Embedding(const AllConfig& config, EmbeddingCopy copy = EmbeddingCopy::kOnly)
      : Embedding(config.model_config, is_sequence_first(config), copy) {}

  std::string type_name() const override { return "Embedding"; }
  /// ValueError if the sequence, or a position, lies beyond the table of positions, or cannot be
  /// divided over the ranks. Without position_ids [B, S] those of the tokens in their sequence
  /// count. Per-layer embeddings, if the model has any, go to `per_layer`.
  Tensor forward(const Tensor& ids, const Tensor& position_ids, Tensor* per_layer = nullptr);
  /// The same of word embeddings alone, for the layer of this number from 0 that predicts further
  /// tokens, whose dropout is its own.
  Tensor embed_ahead(const Tensor& ids, int64_t layer) const;
  nn::Parameter& word_embeddings() const { return word_embeddings_->weight(); }

 private:
  Tensor words(const Tensor& ids) const;
  Tensor dropped(const Tensor& x, int64_t layer, int64_t own) const;
  Tensor parallel_positions(const Tensor& position_ids, int64_t batch, int64_t length) const;

  bool sequence_first_;
  double dropout_;
  double multiplier_;
  DType dtype_;  // of the residual stream
  TensorParallelLayout layout_;
  ContextParallelLayout context_layout_;
  VocabParallelEmbedding* word_embeddings_;
  int64_t num_positions_ = 0;  // rows of the learned table, 0 without one
  nn::Parameter* positions_ = nullptr;
  VocabParallelEmbedding* parallel_positions_ = nullptr;  // in place of it, divided over ranks
  ParallelNorm* norm_ = nullptr;
  PerLayerEmbedding* per_layer_ = nullptr;
};

class TransformerLanguageModel final : public nn::Module,
                                       public nn::Callable<TransformerLanguageModel> {
 public:
  TransformerLanguageModel(const TransformerConfig& config,
                           bool sequence_first,
                           const PipelineStage& stage);
  /// The calling rank's stage.
  explicit TransformerLanguageModel(const AllConfig& config)
      : TransformerLanguageModel(
            config.model_config, is_sequence_first(config), get_pipeline_stage(config)) {}

  std::string type_name() const override { return "TransformerLanguageModel"; }

  struct Input {
    Tensor ids;           ///< [B, S]; used by the first chunk of the model alone
    Tensor hidden;        ///< what the chunk before gave; used by all others
    Tensor position_ids;  ///< this and the next three as in ModelInput
    Tensor mask;
    Tensor document_starts;
    const CachedStep* cached = nullptr;
    int chunk = 0;  ///< of those that this rank holds
  };
  /// Hidden states after the chunk; after the last one of the model, those after the final norm.
  Tensor forward(const Input& input);
  /// The hidden states, behind their last norm, of which the token `depth` + 1 positions on is
  /// predicted (depth from 1 to mtp_num_layers), of those of the depth before, 0 being the model
  /// itself. input.ids are the tokens `depth` positions on. On the last stage only.
  Tensor predict_ahead(int64_t depth, const Input& input, const Tensor& hidden);
  /// The matrix [V, H] that turns hidden states into logits: the word embeddings when tied, of
  /// which the last stage of a pipeline has a copy. On the last stage only.
  nn::Parameter& output_weight() const;
  /// [1, H], of a model with a score head (score_head). On the last stage only.
  nn::Parameter& score_weight() const;

 private:
  AttentionContext context_of(const Input& input) const;

  PipelineStage stage_;
  int64_t num_layers_;
  std::unique_ptr<RotaryEmbedding> rotary_;
  std::unique_ptr<RotaryEmbedding> sliding_rotary_;  // of layers with a window, if it is another
  Embedding* embedding_ = nullptr;
  ParallelTransformer* encoder_;
  nn::Parameter* output_weight_ = nullptr;
  nn::Parameter* score_weight_ = nullptr;
  MultiTokenPrediction* ahead_ = nullptr;
};
inline void append_observed(TensorList& out, const TransformerLanguageModel::Input& input) {
  out.insert(out.end(), {input.ids, input.hidden});
}

/// A stage of the language model of a configuration; rows of the batch come second with
/// sequence_first.
std::unique_ptr<TransformerLanguageModel> get_language_model(const TransformerConfig& config,
                                                             bool sequence_first,
                                                             const PipelineStage& stage);
/// The calling rank's stage of it.
std::unique_ptr<TransformerLanguageModel> get_language_model(const AllConfig& config);

}  // namespace tapestry
