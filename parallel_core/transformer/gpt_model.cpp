#include "parallel_core/transformer/gpt_model.h"

#include <algorithm>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/loss.h"
#include "autograd/ops/reduction.h"
#include "autograd/tensor/error.h"
#include "parallel_core/transformer/activation_recorder.h"

namespace tapestry {

Tensor ParallelLMLogits::forward(const Tensor& hidden, const nn::Parameter& weight) const {
  return project(hidden, weight, nullptr, precision_);
}

Tensor VocabParallelCrossEntropy::forward(const Tensor& logits,
                                          const Tensor& labels,
                                          double label_smoothing) const {
  return cross_entropy(logits, labels,
                       {.reduction = Reduction::kNone, .label_smoothing = label_smoothing});
}

GPTModel::GPTModel(const TransformerConfig& config,
                   const std::string& data_layout,
                   const PipelineStage& stage)
    : stage_(stage),
      hidden_size_(config.hidden_size),
      sequence_first_(data_layout == "SBH"),
      fused_loss_(config.fused_linear_cross_entropy),
      precision_(precision_of(config)),
      language_model_(static_cast<TransformerLanguageModel*>(
          &add_child("language_model", get_language_model(config, sequence_first_, stage)))),
      parallel_lm_logits_(
          &register_module<ParallelLMLogits>("parallel_lm_logits", precision_of(config))),
      loss_(&register_module<VocabParallelCrossEntropy>("loss")) {
  check<ValueError>(data_layout == "BSH" || data_layout == "SBH", "data_layout '", data_layout,
                    "' is not known; choose BSH or SBH");
}

Tensor GPTModel::fused_losses(const Tensor& hidden,
                              const nn::Parameter& weight,
                              const Tensor& labels) const {
  LinearCrossEntropyOptions options = {.loss = {.reduction = Reduction::kNone}};
  options.rounded = rounded_weight(weight, precision_);
  return linear_cross_entropy(hidden.to(precision_.compute), weight, labels, options);
}

GPTOutput GPTModel::forward(const GPTInput& input) {
  check<ValueError>(input.tokens.dim() == 2, "gpt: tokens must be [batch, sequence], got ",
                    describe(input.tokens));
  const Tensor hidden = language_model_->forward({.ids = input.tokens,
                                                  .hidden = input.hidden,
                                                  .position_ids = input.position_ids,
                                                  .mask = input.attention_mask,
                                                  .chunk = input.chunk});
  GPTOutput out;
  if (!stage_.is_last(input.chunk)) {
    out.hidden = hidden;
    return out;
  }
  const nn::Parameter& weight = language_model_->output_weight();
  if (!fused_loss_ || !input.labels.defined()) {
    out.logits = parallel_lm_logits_->forward(hidden, weight);
    report_activation("logits", out.logits, sequence_first_ ? 1 : 0);
  }
  if (!input.labels.defined()) {
    return out;
  }
  check<ValueError>(input.labels.shape() == input.tokens.shape(), "gpt: labels are ",
                    describe(input.labels), ", tokens ", describe(input.tokens));
  const auto in_layout = [&](const Tensor& t) {
    return sequence_first_ ? t.transpose(0, 1).contiguous() : t;
  };
  const Tensor labels = in_layout(input.labels);
  const Tensor losses =
      fused_loss_ ? fused_losses(hidden, weight, labels) : loss_->forward(out.logits, labels);
  if (input.loss_mask.defined()) {
    check<ValueError>(input.loss_mask.shape() == input.tokens.shape(), "gpt: loss_mask is ",
                      describe(input.loss_mask), ", tokens ", describe(input.tokens));
    out.token_count = sum(input.loss_mask.to(kFloat64)).item();
    out.loss = sum(losses * in_layout(input.loss_mask));
  } else {
    out.token_count = static_cast<double>(input.tokens.numel());
    out.loss = sum(losses);
  }
  out.loss = out.loss / std::max(out.token_count, 1.0);
  return out;
}

}  // namespace tapestry
