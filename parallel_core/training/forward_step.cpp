#include "parallel_core/training/forward_step.h"

#include <algorithm>
#include <utility>

#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/random.h"

namespace tapestry {

namespace {

// [batch, 1, seq, seq], true = may look, from what hides keys in the data.
Tensor visibility(const data::Batch& batch) {
  const int64_t b = batch.batch;
  const int64_t s = batch.seq;
  if (batch.attention_mask.empty() && batch.document_starts.empty()) {
    return {};
  }
  Tensor mask = full({b, 1, s, s}, 1, kBool);
  auto* visible = mask.data<bool>();
  if (!batch.attention_mask.empty()) {
    for (int64_t i = 0; i < b * s * s; ++i) {
      visible[i] = batch.attention_mask[static_cast<size_t>(i)] == 0;
    }
  }
  for (size_t row = 0; row < batch.document_starts.size(); ++row) {
    for (const int64_t start : batch.document_starts[row]) {
      for (int64_t query = start; query < s; ++query) {
        bool* keys = visible + (static_cast<int64_t>(row) * s + query) * s;
        std::fill(keys, keys + start, false);
      }
    }
  }
  return mask;
}

}  // namespace

GPTInput to_model_input(const data::Batch& batch) {
  const Shape shape = {batch.batch, batch.seq};
  GPTInput input;
  input.tokens = tensor(batch.tokens, shape);
  if (!batch.labels.empty()) {
    input.labels = tensor(batch.labels, shape);
  }
  if (!batch.loss_mask.empty()) {
    input.loss_mask = tensor(batch.loss_mask, shape);
  }
  if (!batch.position_ids.empty()) {
    input.position_ids = tensor(batch.position_ids, shape);
  }
  input.attention_mask = visibility(batch);
  return input;
}

PipelineWork pipeline_work(
    GPTModel& model,
    const std::vector<data::Batch>& micro_batches,
    std::function<StageOutput(int64_t micro_batch, GPTOutput& output)> finish) {
  PipelineWork work;
  work.micro_batches = static_cast<int64_t>(micro_batches.size());
  work.chunks = model.stage().num_chunks();
  work.messages.dtype = model.residual_dtype();
  work.messages.shape = [&model, &micro_batches](int64_t i) {
    const data::Batch& batch = micro_batches[static_cast<size_t>(i)];
    return model.hidden_shape(batch.batch, batch.seq);
  };
  work.forward = [&model, &micro_batches, finish = std::move(finish)](int chunk, int64_t i,
                                                                      const Tensor& hidden) {
    const data::Batch& batch = micro_batches[static_cast<size_t>(i)];
    random_context().sample_ids = batch.sample_ids;
    GPTInput input = to_model_input(batch);
    input.chunk = chunk;
    input.hidden = hidden;
    GPTOutput output = model.forward(input);
    return output.hidden.defined() ? StageOutput{output.hidden, {}} : finish(i, output);
  };
  return work;
}

Tensor pipeline_logits(GPTModel& model, const data::Batch& batch) {
  const NoGradGuard guard;
  Tensor logits;
  const std::vector<data::Batch> batches = {batch};
  PipelineWork work = pipeline_work(model, batches, [&](int64_t /*i*/, GPTOutput& output) {
    logits = output.logits;
    return StageOutput{};
  });
  work.forward_only = true;
  get_forward_backward_func(work.chunks)(work);
  return logits;
}

}  // namespace tapestry
