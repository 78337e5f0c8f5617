#include "parallel_core/transformer/gpt_model.h"

#include <utility>

#include "autograd/kernels/machine/exact.h"
#include "autograd/ops/activation.h"
#include "autograd/ops/indexing.h"
#include "autograd/ops/loss.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/dtype.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/lora/freeze_base.h"
#include "parallel_core/tensor_parallel/mappings.h"
#include "parallel_core/transformer/activation_recorder.h"

namespace tapestry {

ParallelLMLogits::ParallelLMLogits(const AllConfig& config)
    : ParallelLMLogits(config.model_config, tensor_parallel_layout(config)) {}

Tensor ParallelLMLogits::forward(const Tensor& hidden,
                                 const nn::Parameter& weight,
                                 bool parallel_output) const {
  Tensor own = project_columns(hidden, weight, nullptr, precision_, layout_);
  if (scale_ != 1 || cap_ != 0) {
    const DType wide = size_of(own.dtype()) < size_of(kFloat32) ? kFloat32 : own.dtype();
    own = soft_cap(own.to(wide), scale_, cap_).to(own.dtype());
  }
  return parallel_output ? own : gather_vocabulary(own, vocabulary_, layout_);
}

GPTModel::GPTModel(const TransformerConfig& config,
                   const std::string& data_layout,
                   const PipelineStage& stage,
                   TokenLoss loss)
    : TransformerModel(config, data_layout, stage),
      vocabulary_(config.vocab_size),
      fused_loss_(config.fused_linear_cross_entropy),
      fuses_in_training_(fuses_head_and_loss(config)),
      logit_multiplier_(config.logit_multiplier),
      logit_softcap_(config.logit_softcap),
      frequencies_change_(config.position_embedding_type == "rope" &&
                          frequencies_depend_on_length(config.rotary_config)),
      tokens_ahead_(config.mtp_num_layers),
      score_head_(config.score_head),
      language_model_(static_cast<TransformerLanguageModel*>(
          &add_child("language_model", get_language_model(config, sequence_first(), stage)))),
      parallel_lm_logits_(
          &register_module<ParallelLMLogits>("parallel_lm_logits", config, tensor_layout())),
      loss_(std::move(loss)) {
  freeze_base(*language_model_, config);
  check<ValueError>(!fused_loss_.value_or(false) || tensor_layout().size == 1,
                    "fused_linear_cross_entropy: the loss needs sums over the vocabulary, which is "
                    "split over ",
                    tensor_layout().size, " tensor-parallel ranks; switch it off");
  check<ValueError>(!fused_loss_.value_or(false) || !loss_,
                    "fused_linear_cross_entropy: cannot be fused with a loss of your own; switch "
                    "it off");
  if (loss_) {
    fused_loss_ = false;
    return;
  }
  const auto& cross_entropy =
      register_module<VocabParallelCrossEntropy>("loss", config.vocab_size, tensor_layout());
  loss_ = [&cross_entropy](const Tensor& logits, const Tensor& labels) {
    return cross_entropy(logits, labels);
  };
}

namespace {

// The loss that the configuration names; empty: the cross entropy.
TokenLoss configured_loss(const AllConfig& config) {
  const auto& chosen = config.training_config.loss_func_kwargs;
  if (!chosen || !ModuleRegistry::has_item(ModuleType::kLossFunc, chosen->loss_func_type)) {
    return {};
  }
  TokenLoss loss = ModuleRegistry::get_item<ModuleType::kLossFunc>(chosen->loss_func_type)(config);
  check<ValueError>(loss != nullptr, "loss_func_type ", chosen->loss_func_type,
                    ": what is registered makes no loss");
  return loss;
}

}  // namespace

TokenLoss token_loss(const AllConfig& config) {
  if (TokenLoss own = configured_loss(config)) {
    return own;
  }
  return [cross_entropy = std::make_shared<VocabParallelCrossEntropy>(config)](
             const Tensor& logits, const Tensor& labels) {
    return cross_entropy->forward(logits, labels);
  };
}

GPTModel::GPTModel(const AllConfig& config, TokenLoss loss)
    : GPTModel(config.model_config,
               config.dataset_config.data_layout,
               get_pipeline_stage(config),
               loss ? std::move(loss) : configured_loss(config)) {}

bool GPTModel::takes_cache() const {
  const Precision& p = precision();
  // Keys that were rotated with the frequencies of a shorter text are of no use in a longer one.
  return !frequencies_change_ &&
         ((p.fused && p.softmax == kFloat32) || (p.compute == kFloat32 && p.softmax == kFloat32));
}

bool GPTModel::fuses_loss() const {
  return fused_loss_.value_or(fuses_in_training_ && is_training() && grad_enabled());
}

ModelOutput GPTModel::fused_loss(const Tensor& hidden,
                                 const nn::Parameter& weight,
                                 const Tensor& labels,
                                 const ModelInput& input) const {
  LinearCrossEntropyOptions options = {.loss = {.reduction = Reduction::kSum}};
  options.rounded = rounded_weight(weight, precision());
  options.logit_scale = logit_multiplier_;
  options.logit_cap = logit_softcap_;
  const Tensor x = hidden.to(precision().compute);
  if (!in_exact()) {
    options.chunk_rows = chunk_rows_for(x.dtype());
    options.loss.loss_mask = in_layout(input.loss_mask);
    return mean_of_sum(linear_cross_entropy(x, weight, labels, options), input);
  }
  options.loss.loss_mask = token_weights(input);
  options.losses = empty(labels.shape(), kFloat32);
  options.vocabulary_leaves = tensor_layout().leaves;
  const Tensor weighted = linear_cross_entropy(x, weight, labels, options);
  return exact_loss(weighted, options.losses, input);
}

Tensor GPTModel::whole_logits(const Tensor& own, int64_t length) const {
  const TensorParallelLayout& layout = tensor_layout();
  const Tensor all = gather_vocabulary(own, vocabulary_, layout);
  return layout.size == 1 ? all : all.slice(sequence_axis(), 0, length);
}

Tensor GPTModel::logits_of_cached(const Tensor& hidden, const CachedStep& step, int64_t length) {
  const nn::Parameter& weight = language_model_->output_weight();
  const std::vector<int64_t>& wanted = step.logits_of;
  const auto count = static_cast<int64_t>(wanted.size());
  const auto chosen = [&](const Tensor& rows) {
    return count == rows.size(sequence_axis())
               ? rows
               : index_select(rows, sequence_axis(), tensor(wanted, {count}));
  };
  if (count == 0) {
    return {};
  }
  // With sequence parallelism a rank has but its piece of the hidden states.
  return tensor_layout().sequence_axis
             ? chosen(whole_logits((*parallel_lm_logits_)(hidden, weight), length))
             : gather_vocabulary((*parallel_lm_logits_)(chosen(hidden), weight), vocabulary_,
                                 tensor_layout());
}

void GPTModel::report_logits(const Tensor& hidden, Tensor& logits, bool fused, int64_t length) {
  const TensorParallelLayout& layout = tensor_layout();
  const nn::Parameter& weight = language_model_->output_weight();
  const Tensor shown = shown_only([&] {
    return whole_logits(fused ? parallel_lm_logits_->forward(hidden, weight) : logits, length);
  });
  std::vector<ReportedAxis> axes = {whole_axis(), whole_axis(), whole_axis()};
  axes[static_cast<size_t>(sequence_axis())] =
      token_axis(context_parallel_layout().positions(shown.size(sequence_axis())));
  const int64_t batch_axis = sequence_first() ? 1 : 0;
  const VocabularyShard own = vocabulary_shard(vocabulary_, layout.rank, layout.size);
  if (!fused && own.valid == own.rows) {
    std::vector<ReportedAxis> own_axes = axes;
    own_axes[2] = sliced_axis(own.first, own.rows, vocabulary_);
    replace_activation("logits", logits, own_axes, batch_axis);
  }
  report_activation("logits", shown, axes, batch_axis,
                    !fused && layout.size == 1 ? logits : Tensor());
}

// `hidden` are the states of the depth before, and become those of this one.
AheadLoss GPTModel::loss_ahead(int64_t depth, const ModelInput& input, Tensor& hidden) {
  const AheadInput& ahead = input.ahead[static_cast<size_t>(depth - 1)];
  const ModelInput moved = {.tokens = ahead.tokens,
                            .labels = ahead.labels,
                            .loss_mask = ahead.loss_mask,
                            .token_weight = ahead.token_weight};
  check_targets(moved);
  hidden = language_model_->predict_ahead(
      depth,
      TransformerLanguageModel::Input{.ids = ahead.tokens,
                                      .hidden = {},
                                      .position_ids = input.position_ids,
                                      .mask = input.attention_mask,
                                      .document_starts = input.document_starts},
      hidden);
  const nn::Parameter& weight = language_model_->output_weight();
  const Tensor labels = in_layout(ahead.labels);
  const ModelOutput out =
      fuses_loss() ? fused_loss(hidden, weight, labels, moved)
                   : mean_loss(loss_((*parallel_lm_logits_)(hidden, weight), labels), moved);
  return {out.loss, out.token_count, out.exact_loss};
}

ModelOutput GPTModel::forward(const ModelInput& input) {
  check<ValueError>(input.tokens.dim() == 2, "gpt: tokens must be [batch, sequence], got ",
                    describe(input.tokens));
  check_head(input);
  const GradModeGuard mode(grad_enabled() && (input.scores == nullptr || input.scores->gradients));
  const int64_t length = input.tokens.size(1);
  const TensorParallelLayout& layout = tensor_layout();
  Tensor tokens = input.tokens;
  if (!input.labels.defined() && layout.sequence_axis && length % layout.size != 0) {
    // Text of any length: what stands behind a token does not change its logits.
    check<ValueError>(!input.attention_mask.defined() && !input.position_ids.defined() &&
                          !input.document_starts.defined(),
                      "gpt: ", length,
                      " tokens with a mask, positions or documents cannot be divided over ",
                      layout.size, " ranks");
    tokens = cat(
        {tokens, zeros({tokens.size(0), layout.size - length % layout.size}, tokens.dtype())}, 1);
  }
  Tensor hidden =
      (*language_model_)(TransformerLanguageModel::Input{.ids = tokens,
                                                         .hidden = input.hidden,
                                                         .position_ids = input.position_ids,
                                                         .mask = input.attention_mask,
                                                         .document_starts = input.document_starts,
                                                         .cached = input.cached,
                                                         .chunk = input.chunk});
  if (!stage().is_last(input.chunk)) {
    return {.hidden = hidden};
  }
  if (score_head_) {
    return {.scores = token_values(hidden)};
  }
  if (input.cached != nullptr) {
    return {.logits = logits_of_cached(hidden, *input.cached, length)};
  }
  if (input.scores != nullptr) {
    report_if_recorded([&] {
      Tensor none;
      report_logits(hidden, none, /*fused=*/true, length);
    });
    return {.scores = token_scores(hidden, input)};
  }
  const nn::Parameter& weight = language_model_->output_weight();
  const bool fused = input.labels.defined() && fuses_loss();
  Tensor logits = fused ? Tensor() : (*parallel_lm_logits_)(hidden, weight);
  report_if_recorded([&] { report_logits(hidden, logits, fused, length); });
  if (!input.labels.defined()) {
    return {.logits = whole_logits(logits, length)};
  }
  check_targets(input);
  const Tensor labels = in_layout(input.labels);
  ModelOutput out =
      fused ? fused_loss(hidden, weight, labels, input) : mean_loss(loss_(logits, labels), input);
  out.logits = std::move(logits);
  for (int64_t depth = 1; depth <= std::ssize(input.ahead); ++depth) {
    out.ahead.push_back(loss_ahead(depth, input, hidden));
  }
  return out;
}

}  // namespace tapestry
