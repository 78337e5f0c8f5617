// GPT: the language model with its head and loss.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "parallel_core/config/config.h"
#include "parallel_core/register.h"
#include "parallel_core/tensor_parallel/cross_entropy.h"
#include "parallel_core/transformer/language_model.h"
#include "parallel_core/transformer/transformer_model.h"

namespace tapestry {

/// Hidden states to logits by a matrix that belongs to somebody else.
class ParallelLMLogits final : public nn::Module, public nn::Callable<ParallelLMLogits> {
 public:
  ParallelLMLogits(const TransformerConfig& config, const TensorParallelLayout& layout)
      : vocabulary_(config.vocab_size),
        scale_(config.logit_multiplier),
        cap_(config.logit_softcap),
        precision_(precision_of(config)),
        layout_(layout) {}
  explicit ParallelLMLogits(const AllConfig& config);

  std::string type_name() const override { return "ParallelLMLogits"; }
  /// soft_cap(hidden weight^T, logit_multiplier, logit_softcap), as far as the two are set, for
  /// hidden [.., H] replicated or a piece of the sequence, weight this rank's rows of [V, H]; in
  /// the activations' dtype the logits of those rows, padding included, or without
  /// `parallel_output` all of them on every rank: [.., V].
  Tensor forward(const Tensor& hidden,
                 const nn::Parameter& weight,
                 bool parallel_output = true) const;

 private:
  int64_t vocabulary_;
  double scale_;
  double cap_;
  Precision precision_;
  TensorParallelLayout layout_;
};

/// The loss of loss_func_kwargs on the calling rank: the cross entropy, or a registered one.
/// ValueError where what is registered makes none.
TokenLoss token_loss(const AllConfig& config);

/// The model, or what one rank of a pipeline has of it: the layers of its chunks under their names
/// in the whole model, the embeddings on the first rank, final norm, head and loss on the last.
class GPTModel final : public TransformerModel {
 public:
  GPTModel(const TransformerConfig& config, const std::string& data_layout)
      : GPTModel(config, data_layout, whole_model(config)) {}
  /// `loss` in place of the cross entropy; the head is not fused with it. ValueError if the
  /// tensor-parallel ranks cannot divide heads or channels, or if the head is to be fused with the
  /// loss and there are several, or a loss is given.
  GPTModel(const TransformerConfig& config,
           const std::string& data_layout,
           const PipelineStage& stage,
           TokenLoss loss = {});
  /// The calling rank's part of it. Without `loss` that of loss_func_kwargs, the cross entropy or
  /// a registered one.
  explicit GPTModel(const AllConfig& config, TokenLoss loss = {});

  std::string type_name() const override { return "GPTModel"; }
  /// With labels, logits are the rank's columns alone, with padding; undefined where the head is
  /// fused with the loss: see fused_linear_cross_entropy. Scores (ModelInput::scores) are those of
  /// the next token alone: layers that predict ahead do not run, a loss of one's own is not asked.
  /// A model with a score head tells values, and ValueError where anything else is asked.
  ModelOutput forward(const ModelInput& input) override;
  bool has_file_names_of_config() const override { return true; }
  /// True unless context-parallel ranks divide sequences, or attention's scores are rounded
  /// (use_fused_kernels and softmax_compute_dtype), or the rotation changes while a text grows
  /// (rope_type longrope or dynamic).
  bool takes_cache() const override;
  bool tells_scores() const override { return true; }
  /// mtp_num_layers.
  int64_t tokens_ahead() const override { return tokens_ahead_; }

  TransformerLanguageModel& language_model() { return *language_model_; }

 private:
  AheadLoss loss_ahead(int64_t depth, const ModelInput& input, Tensor& hidden);
  void report_logits(const Tensor& hidden, Tensor& logits, bool fused, int64_t length);
  Tensor whole_logits(const Tensor& own, int64_t length) const;
  Tensor logits_of_cached(const Tensor& hidden, const CachedStep& step, int64_t length);
  bool fuses_loss() const;
  ModelOutput fused_loss(const Tensor& hidden,
                         const nn::Parameter& weight,
                         const Tensor& labels,
                         const ModelInput& input) const;
  TokenScores token_scores(const Tensor& hidden, const ModelInput& input) const;
  void check_head(const ModelInput& input) const;
  TokenScores token_values(const Tensor& hidden) const;
  // gpt_divergence.cpp
  TokenScores scores_beside_teacher(const Tensor& hidden, const ModelInput& input) const;
  HeadRows head_rows(const Tensor& hidden, const std::vector<int64_t>& tokens) const;
  std::vector<int64_t> whole_positions(const std::vector<int64_t>& tokens,
                                       int64_t batch,
                                       int64_t length) const;

  int64_t vocabulary_;
  std::optional<bool> fused_loss_;  // head and loss in one op, always or never
  bool fuses_in_training_;
  double logit_multiplier_;
  double logit_softcap_;
  bool frequencies_change_;
  int64_t tokens_ahead_;
  bool score_head_;
  TransformerLanguageModel* language_model_;
  ParallelLMLogits* parallel_lm_logits_;
  TokenLoss loss_;
};

}  // namespace tapestry
