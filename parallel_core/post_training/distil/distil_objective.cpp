#include "parallel_core/post_training/distil/distil_objective.h"

#include <numeric>
#include <utility>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/reduction.h"
#include "parallel_core/comm/sum_over.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/pipeline_parallel/collect.h"

namespace tapestry::post_training {

DistilObjective::DistilObjective(const DistilOptions& options, std::unique_ptr<Teacher> teacher)
    : data_loss_weight_(options.data_loss_weight), teacher_(std::move(teacher)) {
  divergence_ = {.temperature = options.temperature,
                 .beta = options.beta,
                 .add_tail = options.add_tail,
                 .target = [this](int64_t micro_batch, const std::vector<int64_t>& positions) {
                   return teacher_->target(micro_batch, positions);
                 }};
  request_ = {.entropy = true, .divergence = &divergence_};
}

void DistilObjective::begin_step(ParallelModel& /*model*/,
                                 int64_t /*step*/,
                                 const std::vector<data::Batch>& micro_batches,
                                 bool /*training*/) {
  double own = 0;
  for (const data::Batch& batch : micro_batches) {
    own = std::accumulate(batch.loss_mask.begin(), batch.loss_mask.end(), own,
                          [](double sum, float mask) { return sum + (mask > 0 ? 1 : 0); });
  }
  tokens_ = model_parallel_is_initialized() ? sum_over(get_data_parallel_group(), own) : own;
  sums_.assign(3, 0.0);
  teacher_->begin_step(micro_batches);
}

Tensor DistilObjective::part(int64_t /*micro_batch*/,
                             const data::Batch& /*batch*/,
                             ModelOutput& output) {
  const TokenScores& scores = *output.scores;
  const Tensor divergence = sum(scores.divergence.to(kFloat64));
  const Tensor data = sum(scores.log_probs.to(kFloat64)) * -1.0;
  sums_[0] += divergence.item();
  sums_[1] += data.item();
  sums_[2] += sum(scores.entropy.to(kFloat64)).item();
  if (tokens_ == 0) {
    return (divergence * 0.0).to(kFloat32);
  }
  const Tensor held = divergence * ((1 - data_loss_weight_) / tokens_);
  return (data_loss_weight_ == 0 ? held : held + data * (data_loss_weight_ / tokens_)).to(kFloat32);
}

NamedValues DistilObjective::finish_step() {
  std::vector<double> all = sums_;
  sum_over_pipeline(all);
  if (model_parallel_is_initialized()) {
    sum_over(get_data_parallel_group(), all);
  }
  const double tokens = tokens_ > 0 ? tokens_ : 1;
  return {{"divergence", all[0] / tokens},
          {"data_loss", all[1] / tokens},
          {"entropy", all[2] / tokens}};
}

}  // namespace tapestry::post_training
