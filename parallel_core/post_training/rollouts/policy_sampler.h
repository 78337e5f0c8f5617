// Completions that the policy itself writes, batch after batch.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "autograd/io/json.h"
#include "parallel_core/config/config.h"
#include "parallel_core/post_training/examples/task_examples.h"
#include "parallel_core/post_training/grpo/rollout_source.h"
#include "parallel_core/post_training/grpo/rollout_supplier.h"
#include "parallel_core/post_training/rollouts/frozen_reference.h"
#include "parallel_core/post_training/rollouts/reward_completions.h"
#include "parallel_core/post_training/rollouts/rollout_state.h"
#include "parallel_core/post_training/rollouts/samples_file.h"
#include "parallel_core/post_training/rows/unit_source.h"
#include "text/tokenizers/tokenizer.h"

namespace tapestry::post_training {

/// What a PolicySampler is made of.
struct SamplerParts {
  std::shared_ptr<const TaskExamples> prompts;  ///< kPrompt
  std::shared_ptr<const data::Tokenizer> tokenizer;
  std::vector<int32_t> stop_ids;  ///< that end a completion
  RewardFunctions rewards;
};

/// Batch n has the prompts number n * P, n * P + 1, .. of the run (P = generation_batch /
/// num_generations), in the order of the files or, with shuffle_dataset and dataset_config.shuffle,
/// in one of their own each epoch. Completion j of prompt k of batch n draws from a stream of
/// (seed, n, k, j) alone. So a batch is a function of the weights: the same in every layout and
/// whatever was stopped in between, as far as the layout's rounding lets it; with zero_mismatch to
/// the bit where OneOrderScope does.
///
/// A prompt that leaves no room for max_completion_length in seq_length (or max_length) is left
/// out, with a warning. The batch that is trained on goes with checkpoints; a run that goes on in
/// its middle samples and rewards nothing again. What rewards cannot be had is a StepNotBegun.
class PolicySampler final : public RolloutSupplier {
 public:
  /// Of a resolved configuration. ValueError where no prompt has room, and for a column that a
  /// reward function needs and a line lacks.
  PolicySampler(const AllConfig& config,
                const GenerationPlan& plan,
                const RowRoom& room,
                SamplerParts parts);
  ~PolicySampler() override;

  const RolloutBatch& batch(int64_t number) override;
  bool needs_model() const override { return true; }
  int64_t epoch(int64_t first) const override;
  void prepare(const AllConfig& config, const ModelBeforeTraining& model) override;
  void set_model(ParallelModel& model) override { model_ = &model; }
  std::vector<std::unique_ptr<StepObserver>> observers(const AllConfig& config,
                                                       TrainOneStepCell& cell) override;
  std::string description() const override;
  std::string fingerprint() const override;

 private:
  class Watch;
  struct Made {
    RolloutState state;
    RolloutBatch batch;
  };
  /// What the making of a batch has taken.
  struct Effort {
    double generation_ms = 0;
    double rewards_ms = 0;
    int64_t tokens = 0;
  };

  void read_lines();
  int64_t prompts_of_batch() const { return plan_.generation_batch / num_generations(); }
  int64_t num_generations() const { return config_.post_training_config.num_generations; }
  int64_t prompt(int64_t number, int64_t completion) const;
  std::vector<GenerationRequest> requests(int64_t number) const;
  std::vector<JudgedCompletion> judged(const RolloutState& state) const;
  RolloutState sample(int64_t number);
  RolloutBatch batch_of(const RolloutState& state) const;
  void restore(const std::string& state);

  AllConfig config_;
  GenerationPlan plan_;
  RowRoom room_;
  SamplerParts parts_;
  std::vector<int64_t> prompts_;               // sequences that have room
  std::vector<nlohmann::ordered_json> lines_;  // of these
  int64_t dropped_ = 0;
  mutable std::optional<UnitOrder> order_;  // of prompts_; draws epochs as it goes
  ParallelModel* model_ = nullptr;
  std::optional<FrozenReference> reference_;
  std::optional<SamplesFile> samples_;       // on the first rank
  std::vector<std::unique_ptr<Made>> made_;  // the last ones; the newest stands last
  std::optional<Effort> effort_;             // of a batch that was made for the step under way
  int64_t step_ = 0;                         // under way, from 1
};

}  // namespace tapestry::post_training
