#include "parallel_core/inference/cached_pass.h"

#include <algorithm>
#include <cstdint>

#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/context_parallel/context_parallel_layout.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/pipeline_parallel/schedules.h"

namespace tapestry {

Tensor cached_logits(ParallelModel& model,
                     const std::vector<int64_t>& tokens,
                     const CachedStep& step) {
  const NoGradGuard guard;
  std::vector<int64_t> ids = tokens;
  std::vector<int64_t> positions;
  for (const CachedSegment& s : step.segments) {
    for (int64_t i = 0; i < s.count; ++i) {
      positions.push_back(s.position + i);
    }
  }
  const auto unit = static_cast<size_t>(model.sequence_unit());
  const size_t padded = (ids.size() + unit - 1) / unit * unit;
  ids.resize(padded, 0);
  positions.resize(padded, 0);
  const auto count = static_cast<int64_t>(padded);
  ModelInput input;
  input.tokens = tensor(ids, {1, count});
  input.position_ids = tensor(positions, {1, count});
  input.cached = &step;

  Tensor logits;
  PipelineWork work;
  work.chunks = model.stage().num_chunks();
  work.forward_only = true;
  work.messages.dtype = model.hidden_dtype();
  // Context-parallel ranks do not divide what continues texts: each has all of it.
  const int64_t length = count * context_parallel_layout().size;
  work.messages.shape = [&](int64_t /*micro_batch*/) { return model.hidden_shape(1, length); };
  work.forward = [&](int chunk, int64_t /*micro_batch*/, const Tensor& hidden) {
    input.chunk = chunk;
    input.hidden = hidden;
    ModelOutput output = model(input);
    logits = output.logits;
    return StageOutput{output.hidden, {}};
  };
  get_forward_backward_func(work.chunks)(work);
  return logits.defined() ? logits.reshape({logits.size(0) * logits.size(1), logits.size(2)})
                                .to(kFloat32)
                                .contiguous()
                          : logits;
}

bool all_stages_can(bool can) {
  if (pipeline_place().size == 1) {
    return can;
  }
  const Tensor all = full({1}, can ? 1.0 : 0.0);
  get_pipeline_model_parallel_group().all_reduce(all, ReduceOp::kMin);
  return all.data<float>()[0] > 0;
}

void take_from_last_stage(std::span<double> values) {
  const PipelinePlace place = pipeline_place();
  if (place.size == 1 || values.empty()) {
    return;
  }
  const auto count = static_cast<int64_t>(values.size());
  const Tensor shared = tensor(std::vector<double>(values.begin(), values.end()), {count});
  get_pipeline_model_parallel_group().broadcast(shared, place.size - 1);
  std::copy_n(shared.data<double>(), values.size(), values.begin());
}

}  // namespace tapestry
