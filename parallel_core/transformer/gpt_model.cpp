#include "parallel_core/transformer/gpt_model.h"

#include <algorithm>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/loss.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/comm/sum_over.h"
#include "parallel_core/tensor_parallel/mappings.h"
#include "parallel_core/transformer/activation_recorder.h"

namespace tapestry {

Tensor ParallelLMLogits::forward(const Tensor& hidden, const nn::Parameter& weight) const {
  return project_columns(hidden, weight, nullptr, precision_, layout_);
}

GPTModel::GPTModel(const TransformerConfig& config,
                   const std::string& data_layout,
                   const PipelineStage& stage)
    : stage_(stage),
      hidden_size_(config.hidden_size),
      sequence_first_(data_layout == "SBH"),
      fused_loss_(config.fused_linear_cross_entropy),
      vocabulary_(config.vocab_size),
      layout_(tensor_parallel_layout(config, sequence_first_)),
      context_layout_(context_parallel_layout()),
      fuses_in_training_(fuses_head_and_loss(config)),
      precision_(precision_of(config)),
      language_model_(static_cast<TransformerLanguageModel*>(
          &add_child("language_model", get_language_model(config, sequence_first_, stage)))),
      parallel_lm_logits_(
          &register_module<ParallelLMLogits>("parallel_lm_logits", precision_, layout_)),
      loss_(&register_module<VocabParallelCrossEntropy>("loss", config.vocab_size, layout_)) {
  check<ValueError>(data_layout == "BSH" || data_layout == "SBH", "data_layout '", data_layout,
                    "' is not known; choose BSH or SBH");
  check<ValueError>(!fused_loss_.value_or(false) || layout_.size == 1,
                    "fused_linear_cross_entropy: the loss needs sums over the vocabulary, which is "
                    "split over ",
                    layout_.size, " tensor-parallel ranks; switch it off");
}

Tensor GPTModel::whole_logits(const Tensor& own, int64_t length) const {
  if (layout_.size == 1) {
    return own;
  }
  return gather_from_model_parallel_region(own, -1, *layout_.group)
      .slice(-1, 0, vocabulary_)
      .slice(sequence_first_ ? 0 : 1, 0, length);
}

int64_t GPTModel::sequence_unit() const {
  return context_layout_.size == 1
             ? 1
             : context_layout_.chunks() * (layout_.sequence_axis ? layout_.size : 1);
}

Shape GPTModel::hidden_shape(int64_t batch, int64_t seq) const {
  const int64_t unit = sequence_unit();
  const int64_t context = (seq + unit - 1) / unit * unit / context_layout_.size;
  const int64_t own = layout_.sequence_axis ? (context + layout_.size - 1) / layout_.size : context;
  return sequence_first_ ? Shape{own, batch, hidden_size_} : Shape{batch, own, hidden_size_};
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
  const int64_t length = input.tokens.size(1);
  Tensor tokens = input.tokens;
  if (!input.labels.defined() && layout_.sequence_axis && length % layout_.size != 0) {
    // Text of any length: what stands behind a token does not change its logits.
    check<ValueError>(!input.attention_mask.defined() && !input.position_ids.defined(),
                      "gpt: ", length, " tokens with a mask or positions cannot be divided over ",
                      layout_.size, " ranks");
    tokens = cat(
        {tokens, zeros({tokens.size(0), layout_.size - length % layout_.size}, tokens.dtype())}, 1);
  }
  const Tensor hidden = language_model_->forward({.ids = tokens,
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
  const bool fused = input.labels.defined() && fuses_loss();
  if (!fused) {
    out.logits = parallel_lm_logits_->forward(hidden, weight);
    if (!input.labels.defined()) {
      out.logits = whole_logits(out.logits, length);
    }
  }
  if (activations_are_recorded()) {
    const NoGradGuard guard;
    const Tensor own = fused ? parallel_lm_logits_->forward(hidden, weight) : out.logits;
    report_activation("logits", input.labels.defined() ? whole_logits(own, length) : own,
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
  if (context_layout_.size > 1) {
    // Every rank goes backward from the loss of its own tokens.
    out.token_count = sum_over(*context_layout_.group, out.token_count);
    total = reduce_from_model_parallel_region(total, *context_layout_.group);
  }
  out.loss = total / std::max(out.token_count, 1.0);
  return out;
}

}  // namespace tapestry
