#include "parallel_core/transformer/gpt_model.h"

#include <algorithm>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/loss.h"
#include "autograd/ops/reduction.h"
#include "autograd/tape/grad_mode.h"
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

GPTModel::GPTModel(const TransformerConfig& config, const std::string& data_layout)
    : sequence_first_(data_layout == "SBH"),
      fused_loss_(config.fused_linear_cross_entropy),
      fuses_in_training_(fuses_head_and_loss(config)),
      precision_(precision_of(config)),
      language_model_(static_cast<TransformerLanguageModel*>(
          &add_child("language_model", get_language_model(config, sequence_first_)))),
      parallel_lm_logits_(
          &register_module<ParallelLMLogits>("parallel_lm_logits", precision_of(config))),
      loss_(&register_module<VocabParallelCrossEntropy>("loss")) {
  check<ValueError>(data_layout == "BSH" || data_layout == "SBH", "data_layout '", data_layout,
                    "' is not known; choose BSH or SBH");
}

bool GPTModel::fuses_loss() const {
  return fused_loss_.value_or(fuses_in_training_ && is_training() && grad_enabled());
}

Tensor GPTModel::fused_loss(const Tensor& hidden,
                            const nn::Parameter& weight,
                            const Tensor& labels,
                            const Tensor& mask) const {
  LinearCrossEntropyOptions options = {.loss = {.reduction = Reduction::kSum, .loss_mask = mask}};
  options.rounded = rounded_weight(weight, precision_);
  return linear_cross_entropy(hidden.to(precision_.compute), weight, labels, options);
}

GPTOutput GPTModel::forward(const GPTInput& input) {
  check<ValueError>(input.tokens.dim() == 2, "gpt: tokens must be [batch, sequence], got ",
                    describe(input.tokens));
  const Tensor hidden =
      language_model_->forward(input.tokens, input.position_ids, input.attention_mask);
  const nn::Parameter& weight = language_model_->output_weight();
  const bool fused = input.labels.defined() && fuses_loss();
  GPTOutput out;
  if (!fused) {
    out.logits = parallel_lm_logits_->forward(hidden, weight);
    report_activation("logits", out.logits, sequence_first_ ? 1 : 0);
  } else if (activations_are_recorded()) {
    const NoGradGuard guard;
    report_activation("logits", parallel_lm_logits_->forward(hidden, weight),
                      sequence_first_ ? 1 : 0);
  }
  if (!input.labels.defined()) {
    return out;
  }
  for (const auto& [name, tensor] :
       {std::pair{"labels", input.labels}, std::pair{"loss_mask", input.loss_mask}}) {
    check<ValueError>(!tensor.defined() || tensor.shape() == input.tokens.shape(), "gpt: ", name,
                      " is ", describe(tensor), ", tokens ", describe(input.tokens));
  }
  const auto in_layout = [&](const Tensor& t) {
    return sequence_first_ && t.defined() ? t.transpose(0, 1).contiguous() : t;
  };
  const Tensor labels = in_layout(input.labels);
  const Tensor mask = in_layout(input.loss_mask);
  out.token_count =
      mask.defined() ? sum(mask.to(kFloat64)).item() : static_cast<double>(input.tokens.numel());
  Tensor total;
  if (fused) {
    total = fused_loss(hidden, weight, labels, mask);
  } else {
    const Tensor losses = loss_->forward(out.logits, labels);
    total = sum(mask.defined() ? losses * mask : losses);
  }
  out.loss = total / std::max(out.token_count, 1.0);
  return out;
}

}  // namespace tapestry
