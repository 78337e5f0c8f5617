#include "parallel_core/training/step/forward_step.h"

#include <algorithm>
#include <utility>

#include "autograd/ops/shape_ops.h"
#include "autograd/ops/transformer/attention.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/context_parallel/context_parallel_layout.h"
#include "parallel_core/random.h"
#include "parallel_core/training/step/rows_ahead.h"

namespace tapestry {

namespace {

// [batch, 1, own queries, seq], or [batch, 1, 1, seq] for all queries, true = may look, from a mask
// in the data.
Tensor visibility(const data::Batch& batch, const ContextParallelLayout& layout) {
  const int64_t b = batch.batch;
  const int64_t s = batch.seq;
  if (batch.attention_mask.empty()) {
    return {};
  }
  if (std::ssize(batch.attention_mask) == b * s) {
    Tensor mask = full({b, 1, 1, s}, 1, kBool);
    std::transform(batch.attention_mask.begin(), batch.attention_mask.end(), mask.data<bool>(),
                   [](auto hidden) { return hidden == 0; });
    return mask;
  }
  const int64_t own = s / layout.size;
  Tensor mask = full({b, 1, own, s}, 1, kBool);
  bool* keys = mask.data<bool>();
  for (int64_t row = 0; row < b; ++row) {
    for (const PositionRun& run : layout.positions(own).runs) {
      for (int64_t query = run.first; query < run.first + run.count; ++query, keys += s) {
        const auto first = batch.attention_mask.begin() + (row * s + query) * s;
        std::transform(first, first + s, keys, [](auto hidden) { return hidden == 0; });
      }
    }
  }
  return mask;
}

// The rows of a micro-batch on this rank. A sequence that ranks cannot divide into leaves has rows
// of which each is one.
ExactTokens tokens_of(const data::Batch& batch, const ParallelModel& model) {
  const ContextParallelLayout layout = context_parallel_layout();
  const int64_t unit = model.sequence_unit();
  const int64_t whole = (batch.seq + unit - 1) / unit * unit;
  const int64_t leaves = sequence_leaves(whole);
  if (leaves % layout.size != 0) {
    return {};
  }
  return {.samples = batch.batch,
          .length = whole / layout.size,
          .leaves = leaves / layout.size,
          .samples_first = model.sequence_axis() == 1};
}

}  // namespace

ModelInput to_model_input(const data::Batch& batch, int64_t unit, int64_t depths) {
  const ContextParallelLayout layout = context_parallel_layout();
  const Shape shape = {batch.batch, batch.seq};
  const int64_t missing = (unit - batch.seq % unit) % unit;
  ModelInput input;
  input.tokens = tensor(batch.tokens, shape);
  if (missing > 0) {
    check<ValueError>(batch.labels.empty() && batch.position_ids.empty() &&
                          batch.attention_mask.empty() && batch.document_starts.empty(),
                      "model: ", batch.seq,
                      " tokens with labels, positions or a mask are not a multiple of ", unit,
                      ", as the ranks that divide them need");
    input.tokens = cat({input.tokens, zeros({batch.batch, missing}, kInt64)}, 1);
  }
  input.tokens = own_chunks(input.tokens, 1, layout);
  const auto own = [&](const auto& values) {
    return values.empty() ? Tensor() : own_chunks(tensor(values, shape), 1, layout);
  };
  input.labels = own(batch.labels);
  input.loss_mask = own(batch.loss_mask);
  input.position_ids = own(batch.position_ids);
  input.attention_mask = visibility(batch, layout);
  if (!batch.document_starts.empty()) {
    input.document_starts = document_starts(batch.document_starts, batch.seq);
  }
  for (int64_t depth = 1; depth <= depths && !batch.labels.empty(); ++depth) {
    const RowsAhead rows = rows_ahead(batch, depth);
    input.ahead.push_back(
        {.tokens = own(rows.tokens), .labels = own(rows.labels), .loss_mask = own(rows.loss_mask)});
  }
  return input;
}

PipelineWork pipeline_work(
    ParallelModel& model,
    const std::vector<data::Batch>& micro_batches,
    std::function<StageOutput(int64_t micro_batch, ModelOutput& output)> finish,
    const TokenScoresRequest* scores,
    const TokenWeights& weights) {
  check<ValueError>(scores == nullptr || model.tells_scores(),
                    "post_training_config.task: its loss is made of the log-probabilities of "
                    "tokens, which ",
                    model.type_name(),
                    " does not tell; override ParallelModel::tells_scores() and fill "
                    "ModelOutput::scores, or leave the task out");
  PipelineWork work;
  work.micro_batches = static_cast<int64_t>(micro_batches.size());
  work.chunks = model.stage().num_chunks();
  work.messages.dtype = model.hidden_dtype();
  work.messages.shape = [&model, &micro_batches](int64_t i) {
    const data::Batch& batch = micro_batches[static_cast<size_t>(i)];
    return model.hidden_shape(batch.batch, batch.seq);
  };
  work.exact_tokens = [&model, &micro_batches](int64_t i) {
    return tokens_of(micro_batches[static_cast<size_t>(i)], model);
  };
  work.forward = [&model, &micro_batches, scores, weights, finish = std::move(finish)](
                     int chunk, int64_t i, const Tensor& hidden) {
    const data::Batch& batch = micro_batches[static_cast<size_t>(i)];
    random_context().sample_ids = batch.sample_ids;
    const bool at_the_end =
        model.stage().is_last(chunk) && model.is_training() && scores == nullptr;
    ModelInput input =
        to_model_input(batch, model.sequence_unit(), at_the_end ? model.tokens_ahead() : 0);
    input.scores = scores;
    input.token_weight = weights.own;
    for (size_t depth = 0; depth < std::min(input.ahead.size(), weights.ahead.size()); ++depth) {
      input.ahead[depth].token_weight = weights.ahead[depth];
    }
    input.micro_batch = i;
    input.chunk = chunk;
    input.hidden = hidden;
    ModelOutput output = model(input);
    return output.hidden.defined() ? StageOutput{output.hidden, {}} : finish(i, output);
  };
  return work;
}

Tensor pipeline_logits(ParallelModel& model, const data::Batch& batch) {
  const NoGradGuard guard;
  Tensor logits;
  const std::vector<data::Batch> batches = {batch};
  PipelineWork work = pipeline_work(model, batches, [&](int64_t /*i*/, ModelOutput& output) {
    logits = output.logits;
    return StageOutput{};
  });
  work.forward_only = true;
  get_forward_backward_func(work.chunks)(work);
  return logits.defined() ? gather_chunks(logits, model.sequence_axis(), context_parallel_layout())
                                .slice(model.sequence_axis(), 0, batch.seq)
                          : logits;
}

}  // namespace tapestry
