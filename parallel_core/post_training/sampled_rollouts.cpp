// What the policy's own completions need of a configuration.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "autograd/tensor/error.h"
#include "parallel_core/dist_checkpointing/checkpoint_folder.h"
#include "parallel_core/inference/generation_config.h"
#include "parallel_core/post_training/grpo_task.h"
#include "parallel_core/post_training/rewards/model_reward.h"
#include "parallel_core/post_training/rollouts/policy_sampler.h"
#include "parallel_core/post_training/task_data.h"
#include "parallel_core/training/data/example_format.h"
#include "parallel_core/training/log/logging.h"
#include "text/tokenizers/turn_end.h"

namespace tapestry::post_training {

namespace {

void add_stop_id(std::vector<int32_t>& ids, int64_t id) {
  const auto narrow = static_cast<int32_t>(id);
  if (id >= 0 && std::find(ids.begin(), ids.end(), narrow) == ids.end()) {
    ids.push_back(narrow);
  }
}

// What ends a completion: the tokenizer's end of a text, the end of a turn where conversations are
// written, and what the folder of the weights says that its model ends with.
std::vector<int32_t> stop_ids_of(const AllConfig& config, const data::Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  add_stop_id(ids, config.dataset_config.eos_token_id.value_or(tokenizer.eod_id()));
  if (const auto format = chat_format_of_examples(config, tokenizer)) {
    const data::TurnEnd turn = data::find_turn_end(*format, tokenizer);
    add_stop_id(ids, turn.id);
  }
  const std::string start = start_weights(config).path;
  if (const std::string folder = start.empty() ? start : resolve_checkpoint(start);
      std::filesystem::is_directory(folder)) {
    for (const int32_t id : read_generation_config(folder).eos_token_ids) {
      add_stop_id(ids, id);
    }
  }
  check<ValueError>(!ids.empty(),
                    "post_training_config.task grpo: the tokenizer has no token that ends a text; "
                    "name one with dataset_config.eos_token_id");
  return ids;
}

}  // namespace

SupplierFactory sampled_rollouts() {
  return [](const AllConfig& config, const GenerationPlan& plan, const RowRoom& room,
            ProcessGroup& world) -> std::unique_ptr<RolloutSupplier> {
    const PostTrainingConfig& p = config.post_training_config;
    SamplerParts parts;
    parts.rewards = make_reward_functions(
        p.reward_funcs, p.reward_timeout,
        [](const std::string& folder) { return std::make_unique<ModelReward>(folder); });
    check<ValueError>(!parts.rewards.empty(),
                      "post_training_config.reward_funcs is empty: nothing would be learned; give "
                      "one, for example ['exact: answer']");
    TaskData data = open_task_data(config, world, DataUse::kTraining, nullptr);
    for (const std::string& remark : data.run.remarks) {
      log_info("data: " + remark);
    }
    parts.prompts = std::move(data.examples);
    RunData tokenizer_facts;
    parts.tokenizer = tokenizer_of_examples(config, "post_training_config.data", tokenizer_facts);
    parts.stop_ids = stop_ids_of(config, *parts.tokenizer);
    RowRoom own = room;
    own.seq_length = std::min(room.seq_length, most_tokens(config));
    return std::make_unique<PolicySampler>(config, plan, own, std::move(parts));
  };
}

}  // namespace tapestry::post_training
