// What a GPTModel tells of single tokens (ModelInput::scores).
#include <utility>
#include <vector>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tensor/error.h"
#include "parallel_core/tensor_parallel/vocab_parallel_scores.h"
#include "parallel_core/transformer/gpt_model.h"

namespace tapestry {

namespace {

constexpr int64_t kUncounted = -100;

// Labels that the mask does not count are left out of the head's work.
Tensor counted_labels(const ModelInput& input) {
  const Tensor labels = input.labels.to(kInt64);
  return input.loss_mask.defined() ? masked_fill(labels, le(input.loss_mask, 0), kUncounted)
                                   : labels;
}

}  // namespace

TokenScores GPTModel::token_scores(const Tensor& hidden, const ModelInput& input) const {
  check_targets(input);
  check<ValueError>(input.labels.defined(), "gpt: scores are those of labels, and there are none");
  const TokenScoresRequest& wanted = *input.scores;
  if (wanted.divergence != nullptr || wanted.head_rows) {
    return scores_beside_teacher(hidden, input);
  }
  const nn::Parameter& weight = language_model_->output_weight();
  const LinearTokenScoresOptions options = {.ignore_index = kUncounted,
                                            .rounded = rounded_weight(weight, precision()),
                                            .logit_scale = logit_multiplier_,
                                            .logit_cap = logit_softcap_,
                                            .temperature = wanted.temperature};
  const RowTokenScores own = vocab_parallel_token_scores(hidden.to(precision().compute), weight,
                                                         in_layout(counted_labels(input)), options,
                                                         vocabulary_, tensor_layout());
  TokenScores scores;
  TensorList asked;
  std::vector<Tensor*> places;
  const auto ask = [&](bool is_wanted, const Tensor& values, Tensor& place) {
    if (is_wanted) {
      asked.push_back(in_layout(values.to(kFloat32)));  // batch first: it is its own inverse
      places.push_back(&place);
    }
  };
  ask(true, own.log_probs, scores.log_probs);
  ask(wanted.entropy, own.entropy, scores.entropy);
  const size_t with_gradient = asked.size();
  ask(wanted.logit_means, own.logit_means, scores.logit_means);
  ask(wanted.likeliest, own.likeliest, scores.likeliest);
  ask(wanted.square_sums, own.square_sums, scores.square_sums);
  // All in one message.
  const Tensor whole = context_layout().size > 1
                           ? gather_alike_chunks(stack(asked, 0), 2, context_layout())
                           : Tensor();
  for (size_t i = 0; i < asked.size(); ++i) {
    const Tensor values =
        whole.defined() ? select(whole, 0, static_cast<int64_t>(i)) : std::move(asked[i]);
    *places[i] = i < with_gradient ? values : values.detach();
  }
  return scores;
}

}  // namespace tapestry
