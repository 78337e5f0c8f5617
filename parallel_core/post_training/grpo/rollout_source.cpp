#include "parallel_core/post_training/grpo/rollout_source.h"

#include <limits>
#include <numeric>
#include <vector>

#include "autograd/tensor/error.h"

namespace tapestry::post_training {

GenerationPlan GenerationPlan::of(const AllConfig& config, int64_t data_parallel_size) {
  const PostTrainingConfig& p = config.post_training_config;
  const int64_t of_step = global_batch_size(config, data_parallel_size);
  GenerationPlan plan;
  plan.num_iterations = p.num_iterations;
  plan.steps_per_generation = p.steps_per_generation.value_or(1);
  if (p.generation_batch_size) {
    check<ValueError>(
        *p.generation_batch_size % of_step == 0, "post_training_config.generation_batch_size ",
        *p.generation_batch_size, " is no multiple of the ", of_step,
        " completions of a step (batch_size * micro_batch_num * data-parallel ranks); give a "
        "multiple, or steps_per_generation in its place");
    plan.steps_per_generation = *p.generation_batch_size / of_step;
  }
  plan.generation_batch = plan.steps_per_generation * of_step;
  check<ValueError>(
      plan.generation_batch % p.num_generations == 0, "post_training_config.num_generations ",
      p.num_generations, " does not divide the ", plan.generation_batch,
      " completions of a generation batch (batch_size * micro_batch_num * data-parallel ranks * "
      "steps_per_generation), which has whole groups; change dataset_config.batch_size or "
      "num_generations");
  return plan;
}

RolloutSource::RolloutSource(RolloutSupplier& supplier,
                             const GenerationPlan& plan,
                             const RowRoom& room)
    : supplier_(supplier), plan_(plan), room_(room) {}

int64_t RolloutSource::size_in_samples() const { return std::numeric_limits<int64_t>::max() / 2; }

int64_t RolloutSource::epoch(int64_t first_sample) const {
  const int64_t trained = plan_.generation_batch * plan_.num_iterations;
  return supplier_.epoch(first_sample / trained * plan_.generation_batch);
}

data::Batch RolloutSource::micro_batch(data::BatchPosition position,
                                       int64_t micro_index,
                                       int64_t micro_batch_num,
                                       int64_t micro_batch_size,
                                       int64_t dp_rank,
                                       int64_t dp_size) {
  data::internal::check_layout(position, micro_index, micro_batch_num, micro_batch_size, dp_rank,
                               dp_size);
  const RolloutBatch& batch = supplier_.batch(plan_.batch_of(position.step));
  *drawn_ = {&batch, position.step};
  const int64_t of_step = plan_.generation_batch / plan_.steps_per_generation;
  const int64_t first =
      plan_.part_of(position.step) * of_step + (micro_index * dp_size + dp_rank) * micro_batch_size;
  std::vector<int64_t> numbers(static_cast<size_t>(micro_batch_size));
  std::iota(numbers.begin(), numbers.end(), first);
  check<ValueError>(first + micro_batch_size <= batch.completions.size(), "rollouts: a batch has ",
                    batch.completions.size(), " completions, the step asks for number ",
                    first + micro_batch_size - 1);
  return pack_sequences(batch.completions, numbers, room_);
}

}  // namespace tapestry::post_training
