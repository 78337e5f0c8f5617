// What a run takes of a model: anything that trains in a parallel layout.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "autograd/kernels/exact/exact_scalar.h"
#include "nn/module.h"
#include "nn/module_call.h"
#include "parallel_core/pipeline_parallel/pipeline_stage.h"
#include "parallel_core/pipeline_parallel/token_scores.h"

namespace tapestry {

struct CachedStep;

/// The rows of a micro-batch so many positions on: what a further layer reads and predicts.
struct AheadInput {
  Tensor tokens;           ///< [B, S]: at position i the token of position i + depth
  Tensor labels;           ///< the label of that position
  Tensor loss_mask;        ///< whether position i counts
  float token_weight = 0;  ///< as ModelInput's
};

/// One micro-batch. All are [B, S]; labels may be undefined (then only logits are computed),
/// loss_mask (all ones) and position_ids (0 .. S-1) too. Where context-parallel ranks divide the
/// sequences, all are the rank's chunks (own_chunks), the mask those of its queries.
struct ModelInput {
  Tensor tokens;
  Tensor labels;
  Tensor loss_mask;
  Tensor position_ids;
  /// bool [B, 1, own S, S], or [B, 1, 1, S] for all queries, true = may look; undefined: causal
  /// only.
  Tensor attention_mask;
  /// int32 [B, S] of whole sequences: where the document of each token begins, of which attention
  /// sees no other; see AttentionOptions. Undefined: each row is one document.
  Tensor document_starts;
  /// Of depth 1, 2, .. (ParallelModel::tokens_ahead); empty: only the next token is predicted.
  std::vector<AheadInput> ahead;
  /// The tokens continue texts whose keys and values are kept (transformer/kv_cache.h): then they
  /// are [1, N], with position_ids, and no mask, documents or labels. Outlives the call.
  const CachedStep* cached = nullptr;
  /// With labels: the model tells these of each token (ModelOutput::scores) and makes no loss.
  /// Outlives the call.
  const TokenScoresRequest* scores = nullptr;
  int64_t micro_batch = 0;  ///< its number among those of the step
  /// In exact mode what the loss of each token that counts is multiplied by: the loss scale by the
  /// step's tokens, as one float32. 0 where nothing runs backwards.
  float token_weight = 0;
  /// In a pipeline: which of the rank's chunks runs, and what it gets from the chunk before: hidden
  /// states of hidden_shape() and hidden_dtype().
  int chunk = 0;
  Tensor hidden;
};

/// The loss of a further prediction, as ModelOutput's.
struct AheadLoss {
  Tensor loss;
  double token_count = 0;
  std::optional<kernels::ExactSum> exact_loss = std::nullopt;
};

struct ModelOutput {
  Tensor hidden;  ///< for the next chunk; of the model's last chunk undefined, all others are not
  /// Scalar: sum(loss * mask) / sum(mask), over whole sequences, and 0 where all of the mask is;
  /// undefined without labels.
  /// Of ranks that divide sequences each has the same value, and the gradients of its own tokens.
  ///
  /// In exact mode (in_exact(), kernels/machine/exact.h): sum(loss * (mask * token_weight)) over
  /// the rank's own tokens instead, not summed over ranks. Backward passes start from 1, so that
  /// each token's loss has the gradient mask * token_weight, whatever the micro-batches. The value
  /// of the scalar is of no account; exact_loss is.
  Tensor loss;
  /// [B, S, V], or [S, B, V] with data_layout SBH. With labels for whoever looks, of any kind and
  /// possibly undefined: dropped before backward, its memory serves for its gradient.
  Tensor logits;
  double token_count = 0;  ///< sum(mask), over whole sequences
  /// In exact mode, wherever `loss` is defined: the sum of the float32 loss * mask of the rank's
  /// own tokens. Context-parallel ranks have the sums of different tokens, tensor-parallel ranks
  /// all have the same one; data-parallel ranks' are those of different samples.
  std::optional<kernels::ExactSum> exact_loss = std::nullopt;
  /// Of ModelInput::ahead, on the last stage. They are no part of `loss`.
  std::vector<AheadLoss> ahead = {};
  /// Of ModelInput::scores, on the last stage; then there is no loss.
  std::optional<TokenScores> scores = std::nullopt;
};
inline void append_observed(TensorList& out, const ModelInput& input) {
  out.insert(out.end(), {input.tokens, input.hidden});
}
inline void append_observed(TensorList& out, const ModelOutput& output) {
  out.insert(out.end(), {output.loss, output.logits, output.hidden});
  for (const AheadLoss& further : output.ahead) {
    out.push_back(further.loss);
  }
  if (output.scores) {
    out.insert(out.end(), {output.scores->log_probs, output.scores->entropy});
  }
}

/// A model, or what one rank of a pipeline has of it. Training, evaluation, generation, files and
/// the comparison of layouts use this and the parameters' logical tensors, nothing else.
class ParallelModel : public nn::Module, public nn::Callable<ParallelModel> {
 public:
  /// Every rank of the tensor-parallel group passes the same input and gets the same loss.
  virtual ModelOutput forward(const ModelInput& input) = 0;

  /// The chunks that this rank has; the same number on every rank.
  virtual const PipelineStage& stage() const = 0;
  /// Of the hidden states between chunks, on this rank, for `batch` sequences of `seq` tokens.
  virtual Shape hidden_shape(int64_t batch, int64_t seq) const = 0;
  virtual DType hidden_dtype() const = 0;
  /// Sequences without labels are filled up to a multiple of so many tokens before ranks divide
  /// them.
  virtual int64_t sequence_unit() const { return 1; }
  /// How many tokens behind the next one it predicts while it is trained: it then wants so many
  /// entries in ModelInput::ahead. The same on every rank.
  virtual int64_t tokens_ahead() const { return 0; }
  /// Whether forward() goes by ModelInput::scores, as tasks other than pre-training need.
  virtual bool tells_scores() const { return false; }
  /// Whether forward() goes by ModelInput::cached. Otherwise the whole text goes through the model
  /// for each new token.
  virtual bool takes_cache() const { return false; }
  /// Of hidden states and logits.
  virtual int64_t sequence_axis() const { return 1; }
  /// True if the model computes what Hugging Face's model of this configuration (file_model_type)
  /// does from the same tensors, so that files carry the names of that one. All others are saved
  /// under their logical names.
  virtual bool has_file_names_of_config() const { return false; }
};

}  // namespace tapestry
