#include "parallel_core/inference/head_rows.h"

#include <utility>

#include "autograd/tape/grad_mode.h"
#include "parallel_core/inference/cached_pass.h"
#include "parallel_core/training/step/forward_step.h"

namespace tapestry {

std::vector<HeadRows> head_rows(ParallelModel& model,
                                const std::vector<data::Batch>& micro_batches) {
  const NoGradGuard guard;
  const EvaluationMode evaluation(model);
  const TokenScoresRequest request = {.head_rows = true, .gradients = false};
  std::vector<HeadRows> rows(micro_batches.size());
  PipelineWork work = pipeline_work(
      model, micro_batches,
      [&](int64_t micro_batch, ModelOutput& output) {
        rows[static_cast<size_t>(micro_batch)] = *std::move(output.scores->head_rows);
        return StageOutput{};
      },
      &request);
  work.forward_only = true;
  get_forward_backward_func(work.chunks)(work);
  return rows;
}

}  // namespace tapestry
