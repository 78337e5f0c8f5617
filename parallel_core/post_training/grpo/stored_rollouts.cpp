#include "parallel_core/post_training/grpo/stored_rollouts.h"

#include <span>
#include <utility>
#include <vector>

#include "autograd/tensor/error.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/post_training/grpo/advantages.h"
#include "parallel_core/post_training/reference/reference_model.h"
#include "text/util/numbers.h"

namespace tapestry::post_training {

namespace {

bool shuffles(const AllConfig& config) {
  return config.post_training_config.shuffle_dataset &&
         config.dataset_config.shuffle.value_or(true);
}

}  // namespace

StoredRollouts::StoredRollouts(const AllConfig& config,
                               const GenerationPlan& plan,
                               const RowRoom& room,
                               const RolloutFileOptions& options)
    : config_(config.post_training_config),
      plan_(plan),
      room_(room),
      shuffle_(shuffles(config)),
      seed_(config.training_config.seed),
      file_(read_rollouts(*config_.rollouts, options)),
      order_(file_.all.completions.size() / options.num_generations, shuffle_, seed_) {
  (void)batch(0);  // what is wrong with rewards and their weights shows now
}

RolloutBatch StoredRollouts::made(int64_t number) {
  const RolloutBatch& all = file_.all;
  const int64_t group = all.num_generations;
  RolloutBatch batch;
  batch.num_generations = group;
  batch.reward_names = all.reward_names;
  batch.rewards.resize(all.rewards.size());
  const int64_t groups = plan_.generation_batch / group;
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t first = order_.unit(number * groups + g) * group;
    for (int64_t i = first; i < first + group; ++i) {
      const auto ids = all.completions.ids(i);
      const auto prompt = static_cast<size_t>(all.completions.prompt_tokens(i));
      batch.completions.add(ids.first(prompt), ids.subspan(prompt));
      batch.truncated.push_back(all.truncated[static_cast<size_t>(i)]);
      for (size_t f = 0; f < all.rewards.size(); ++f) {
        batch.rewards[f].push_back(all.rewards[f][static_cast<size_t>(i)]);
      }
      if (!all.old_log_probs.empty()) {
        batch.old_log_probs.add(all.old_log_probs.of(i));
      }
      if (!all.ref_log_probs.empty()) {
        batch.ref_log_probs.add(all.ref_log_probs.of(i));
      }
    }
  }
  set_advantages(config_, batch);
  return batch;
}

const RolloutBatch& StoredRollouts::batch(int64_t number) {
  if (number != number_) {
    batch_ = made(number);
    number_ = number;
  }
  return batch_;
}

int64_t StoredRollouts::epoch(int64_t first) const {
  return order_.epoch(first / file_.all.num_generations);
}

void StoredRollouts::prepare(const AllConfig& config, const ModelBeforeTraining& model) {
  if (config_.beta.value_or(0) <= 0) {
    return;
  }
  TaskExamples examples;
  examples.sequences = file_.all.completions;
  const LogProbTable table =
      reference_log_probs(config, examples, room_, model, get_world_group()).sequences;
  for (int64_t i = 0; i < table.size(); ++i) {
    const std::span<const float> values = table.tokens(i);
    file_.all.ref_log_probs.add(std::vector<double>(values.begin(), values.end()));
  }
  number_ = -1;  // batches are made anew, with these
}

std::string StoredRollouts::description() const {
  return concat(file_.file.path, ": ", with_thousands(file_.all.completions.size()),
                " completions of ",
                with_thousands(file_.all.completions.size() / file_.all.num_generations),
                " prompts, each with ", file_.all.reward_names.size(), " rewards",
                file_.all.old_log_probs.empty() ? ", without log-probabilities" : "");
}

std::string StoredRollouts::fingerprint() const {
  return concat("rollouts crc64 ", file_.file.crc64, " of ", file_.all.completions.size(),
                " completions, num_generations ", file_.all.num_generations, ", generation batch ",
                plan_.generation_batch, ", num_iterations ", plan_.num_iterations,
                shuffle_ ? concat(", shuffled with seed ", seed_) : ", in the file's order");
}

}  // namespace tapestry::post_training
