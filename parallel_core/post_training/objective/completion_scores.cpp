#include "parallel_core/post_training/objective/completion_scores.h"

#include <algorithm>

#include "autograd/ops/map.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/error.h"
#include "parallel_core/inference/cached_pass.h"
#include "parallel_core/training/step/forward_step.h"

namespace tapestry::post_training {

std::vector<CompletionPlace> completion_places(const data::Batch& batch) {
  std::vector<CompletionPlace> places;
  for (size_t row = 0; row < batch.sequences.size(); ++row) {
    const int64_t begin = static_cast<int64_t>(row) * batch.seq;
    for (const data::RowSequence& sequence : batch.sequences[row]) {
      const int64_t prompt = std::max<int64_t>(sequence.prompt, 1);
      places.push_back({.number = sequence.number,
                        .first = begin + sequence.first + prompt - 1,
                        .count = std::max<int64_t>(sequence.tokens - prompt, 0)});
    }
  }
  return places;
}

std::vector<double> values_at(const Tensor& scores, const CompletionPlace& place) {
  const Tensor whole = dense(scores.detach());
  const float* first = whole.data<float>() + place.first;
  return {first, first + place.count};
}

void score_without_gradients(
    ParallelModel& model,
    const std::vector<data::Batch>& micro_batches,
    TokenScoresRequest request,
    const std::function<void(int64_t micro_batch, const TokenScores& scores)>& visit) {
  const NoGradGuard no_gradients;
  const EvaluationMode evaluation(model);
  request.gradients = false;
  PipelineWork work = pipeline_work(
      model, micro_batches,
      [&](int64_t micro_batch, ModelOutput& output) {
        check<ValueError>(output.scores.has_value(), model.type_name(),
                          ": the model tells no scores of single tokens");
        visit(micro_batch, *output.scores);
        return StageOutput{};
      },
      &request);
  work.forward_only = true;
  get_forward_backward_func(work.chunks)(work);
}

}  // namespace tapestry::post_training
