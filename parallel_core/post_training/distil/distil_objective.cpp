#include "parallel_core/post_training/distil/distil_objective.h"

#include <algorithm>
#include <utility>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/reduction.h"
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
                                 int64_t step,
                                 const std::vector<data::Batch>& micro_batches,
                                 bool training) {
  std::vector<double> own = {0};
  for (const data::Batch& batch : micro_batches) {
    own[0] += static_cast<double>(std::count_if(batch.loss_mask.begin(), batch.loss_mask.end(),
                                                [](float mask) { return mask > 0; }));
  }
  sum_over_step(own);
  tokens_ = own[0];
  trained_.add_step(step, micro_batches, training);
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
  sum_over_step(all);
  const double tokens = tokens_ > 0 ? tokens_ : 1;
  return {{"divergence", all[0] / tokens},
          {"data_loss", all[1] / tokens},
          {"entropy", all[2] / tokens},
          {"num_tokens", trained_.total()}};
}

}  // namespace tapestry::post_training
