// What a GPTModel tells of single tokens beside a teacher (TokenScoresRequest::divergence), and as
// the teacher (head_rows).
#include <utility>
#include <vector>

#include "autograd/ops/activation.h"
#include "autograd/ops/indexing.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/tensor_parallel/layers.h"
#include "parallel_core/tensor_parallel/mappings.h"
#include "parallel_core/transformer/gpt_model.h"
#include "parallel_core/transformer/linear_divergence.h"

namespace tapestry {

namespace {

// Numbers of the tokens that count among those of `mask` [.., ..].
std::vector<int64_t> counted_tokens(const Tensor& mask) {
  const Tensor values = mask.to(kFloat32).contiguous();
  const auto* value = values.data<float>();
  std::vector<int64_t> out;
  for (int64_t i = 0; i < values.numel(); ++i) {
    if (value[i] > 0) {
      out.push_back(i);
    }
  }
  return out;
}

Tensor rows_at(const Tensor& values, const std::vector<int64_t>& rows) {
  return index_select(values, 0, tensor(rows, {std::ssize(rows)}));
}

}  // namespace

// Where the tokens with these numbers, in the order of hidden states, stand in whole rows of
// `length` own tokens.
std::vector<int64_t> GPTModel::whole_positions(const std::vector<int64_t>& tokens,
                                               int64_t batch,
                                               int64_t length) const {
  std::vector<int64_t> columns;
  for (const PositionRun& run : context_layout().positions(length).runs) {
    for (int64_t i = 0; i < run.count; ++i) {
      columns.push_back(run.first + i);
    }
  }
  std::vector<int64_t> out;
  for (const int64_t token : tokens) {
    const int64_t row = sequence_first() ? token % batch : token / length;
    const int64_t own = sequence_first() ? token / batch : token % length;
    out.push_back(row * length * context_layout().size + columns[static_cast<size_t>(own)]);
  }
  return out;
}

HeadRows GPTModel::head_rows(const Tensor& hidden, const std::vector<int64_t>& tokens) const {
  const Tensor flat = hidden.to(precision().compute).reshape({-1, hidden.shape().back()});
  const Tensor rows = rows_at(flat, tokens);
  const nn::Parameter& weight = language_model_->output_weight();
  return {.count = std::ssize(tokens), .logits = [this, rows, &weight](int64_t begin, int64_t end) {
            const NoGradGuard guard;
            const Tensor own = project(rows.slice(0, begin, end), weight, nullptr, precision());
            return logit_multiplier_ == 1 && logit_softcap_ == 0
                       ? own
                       : soft_cap(float_or_wider(own), logit_multiplier_, logit_softcap_)
                             .to(own.dtype());
          }};
}

TokenScores GPTModel::scores_beside_teacher(const Tensor& hidden, const ModelInput& input) const {
  const TokenScoresRequest& wanted = *input.scores;
  check<ValueError>(input.loss_mask.defined(),
                    "gpt: a divergence is that of tokens that count, which loss_mask says");
  const TensorParallelLayout& layout = tensor_layout();
  const Tensor states = hidden.to(precision().compute);
  const Tensor whole =
      layout.size == 1 ? states
      : layout.sequence_axis
          ? gather_from_sequence_parallel_region(states, *layout.sequence_axis, *layout.group)
          : copy_to_model_parallel_region(states, *layout.group);
  const std::vector<int64_t> tokens = counted_tokens(in_layout(input.loss_mask));
  TokenScores scores;
  if (wanted.head_rows) {
    scores.head_rows = head_rows(whole, tokens);
    return scores;
  }
  const DivergenceRequest& request = *wanted.divergence;
  check<ValueError>(wanted.temperature == 1,
                    "gpt: with a divergence the log-probabilities have temperature 1, got ",
                    wanted.temperature);
  const int64_t batch = input.tokens.size(0);
  const int64_t length = input.tokens.size(1);
  const nn::Parameter& weight = language_model_->output_weight();
  const LinearDivergence own =
      linear_divergence(rows_at(whole.reshape({-1, whole.shape().back()}), tokens), weight,
                        rows_at(in_layout(input.labels).to(kInt64).reshape({-1}), tokens),
                        request.target(input.micro_batch, whole_positions(tokens, batch, length)),
                        {.temperature = request.temperature,
                         .beta = request.beta,
                         .add_tail = request.add_tail,
                         .vocabulary = vocabulary_,
                         .rounded = rounded_weight(weight, precision()),
                         .logit_scale = logit_multiplier_,
                         .logit_cap = logit_softcap_},
                        layout);
  const Shape shape = sequence_first() ? Shape{length, batch} : Shape{batch, length};
  const auto in_rows = [&](const Tensor& values) {
    const Tensor all = index_copy(zeros({batch * length}, kFloat32), 0,
                                  tensor(tokens, {std::ssize(tokens)}), values.to(kFloat32));
    return gather_alike_chunks(in_layout(all.view(shape)), 1, context_layout());
  };
  scores.divergence = in_rows(own.divergence);
  scores.log_probs = in_rows(own.log_probs);
  if (wanted.entropy) {
    scores.entropy = in_rows(own.entropy);
  }
  return scores;
}

}  // namespace tapestry
