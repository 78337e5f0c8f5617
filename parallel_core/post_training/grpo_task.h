// Reinforcement: completions with rewards, of a file or of the policy itself.
#pragma once

#include <functional>
#include <memory>

#include "parallel_core/post_training/grpo/rollout_source.h"
#include "parallel_core/post_training/grpo/rollout_supplier.h"
#include "parallel_core/training/run_task.h"

namespace tapestry::post_training {

/// Makes what a run's completions come from. Collective over `world`.
using SupplierFactory = std::function<std::unique_ptr<RolloutSupplier>(
    const AllConfig& config, const GenerationPlan& plan, const RowRoom& room, ProcessGroup& world)>;

/// Of post_training_config.rollouts: StoredRollouts with the run's tokenizer and end token.
SupplierFactory stored_rollouts();
/// Of post_training_config.data: PolicySampler with the run's tokenizer, prompts and rewards.
SupplierFactory sampled_rollouts();

/// The task grpo: RolloutSource and GrpoObjective over a supplier's batches.
class GrpoTask final : public RunTask {
 public:
  explicit GrpoTask(SupplierFactory make_supplier) : make_supplier_(std::move(make_supplier)) {}

  /// ValueError for a batch that grows, and as GenerationPlan::of, open_own_data and the supplier.
  RunData open_data(const AllConfig& config,
                    ProcessGroup& world,
                    DataUse use,
                    const DataState* resumed) override;
  bool has_data_before_model() const override { return !supplier_->needs_model(); }
  void prepare(const AllConfig& config, const ModelBeforeTraining& model) override;
  std::unique_ptr<StepObjective> objective(const AllConfig& config,
                                           TrainOneStepCell& cell) override;
  std::vector<std::unique_ptr<StepObserver>> observers(const AllConfig& config,
                                                       TrainOneStepCell& cell) override;

 private:
  SupplierFactory make_supplier_;
  GenerationPlan plan_;
  std::unique_ptr<RolloutSupplier> supplier_;
  RolloutSource* source_ = nullptr;  // the run's, which outlives the objective
};

}  // namespace tapestry::post_training
