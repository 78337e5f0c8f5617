// One optimizer step over a list of micro-batches.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "autograd/tensor/generator.h"
#include "nn/module.h"
#include "optim/grad_scaler.h"
#include "optim/lr_scheduler.h"
#include "optim/optimizer.h"
#include "parallel_core/config/config.h"
#include "parallel_core/data/data_source.h"
#include "parallel_core/dist_checkpointing/logical_state.h"
#include "parallel_core/distributed/distributed_data_parallel.h"
#include "parallel_core/distributed/model_gradients.h"
#include "parallel_core/distributed/on_demand_gradients.h"
#include "parallel_core/optimizer/backward_update.h"
#include "parallel_core/pipeline_parallel/parallel_model.h"
#include "parallel_core/register.h"
#include "parallel_core/training/step/exact_losses.h"
#include "parallel_core/training/step/forward_step.h"
#include "parallel_core/training/step/norm_spikes.h"
#include "parallel_core/training/step/qk_clip.h"
#include "parallel_core/training/step/step_objective.h"
#include "parallel_core/transformer/max_logits.h"
#include "parallel_core/transformer/moe/moe_statistics.h"

namespace tapestry {

/// The share of a step that the ranks of a pipeline have waited for each other's messages.
struct PipelineBubble {
  double measured = 0;     ///< of the forward and backward passes' time, averaged over the stages
  double theoretical = 0;  ///< theoretical_bubble()
};

/// What a step did on all ranks together, measured before its update.
struct StepResult {
  double loss = 0;  ///< mean over micro-batches, over tokens with calculate_per_token_loss
  /// Of the layers that predict further tokens (mtp_num_layers), by depth: what each adds to the
  /// objective, its loss times mtp_loss_scaling_factor / mtp_num_layers. No part of `loss`.
  std::vector<double> mtp_losses;
  bool finite = true;          ///< every gradient element was; otherwise nothing was updated
  bool norm_is_spike = false;  ///< where norms are watched
  bool skipped = false;        ///< nothing was updated because the norm was a spike
  bool set_aside = false;      ///< nothing was updated because a StepExaminer said so
  double norm_threshold = 0;   ///< that the norm was held against, where norms are watched
  double loss_scale = 1;       ///< that the step used
  double grad_norm = 0;        ///< over all parameters, unscaled, before clipping
  std::vector<double> lr;      ///< of this update, per group
  double loss_tokens = 0;      ///< sum of the loss masks
  NamedValues task;            ///< what a StepObjective has measured
  int64_t tokens = 0;          ///< tokens that went through the model
  int64_t sequences = 0;       ///< the rows that these are
  std::optional<PipelineBubble> bubble;  ///< with more than one stage
  /// Per logical tensor, when asked for; in a pipeline those of all stages on the first, and none
  /// on the others.
  std::map<std::string, double> grad_norms;
  std::optional<MoEStepStatistics> moe;  ///< of a model with mixtures of experts

  /// Of the attention layers of this rank's stage; empty unless the step was measured, for
  /// monitor_config.max_logits_interval or QK-clip.
  HeadMaxima max_logits;

  // Of this rank alone.
  /// Mean loss of each of its micro-batches; empty but on the last stage.
  std::vector<double> local_losses;
  /// Sums of squares of its own gradients, unscaled, by parameter
  /// (TrainOneStepCell::measure_local): of the gradients that it would have if it were the only
  /// data-parallel rank.
  std::map<std::string, double> local_squares;
  double compute_ms = 0;  ///< of its passes, without waiting for messages between stages
};

/// Gradients of all logical tensors of this rank's stage, as copies of their own shape; of a tensor
/// with a copy on another stage the original's alone. Where other ranks share them or have other
/// experts, see gather_logical.
std::map<std::string, Tensor> logical_gradients(const nn::Module& model);

/// Euclidean norm of the gradient of each of the stage's logical tensors, on every rank of the
/// tensor-parallel group and of that with other experts, which all make the call. `exact`: with the
/// same bits in every layout, of gradients in float32.
std::map<std::string, double> logical_gradient_norms(const nn::Module& model, bool exact = false);

/// A step whose loss and norm are known, and which has changed nothing but gradients.
struct ComputedStep {
  int64_t step = 0;  ///< from 1
  const std::vector<data::Batch>& micro_batches;
  /// Without statistics of experts; `finite` as the norm says. To be replaced by that of `rerun`
  /// where the step is to go on with it.
  StepResult& result;
  /// The gradients are not there: the loss alone decides whether there will be a backward pass
  /// (optimizer_in_backward). Reruns are forward passes.
  bool forward_only = false;
  /// Runs the passes over such micro-batches with the weights and random numbers of this step, in
  /// place of what was computed before: the last call is what the step goes on with. Collective.
  std::function<StepResult(const std::vector<data::Batch>&)> rerun;
  /// Sum of squares of what this rank holds of a parameter's gradient, scaled as the loss was;
  /// empty with forward_only.
  std::function<double(const nn::Module::NamedParameter&)> gradient_squares;
};

/// Looks at every step before its update, on all ranks alike: what it decides must follow from
/// numbers that all have.
class StepExaminer {
 public:
  StepExaminer() = default;
  StepExaminer(const StepExaminer&) = delete;
  StepExaminer& operator=(const StepExaminer&) = delete;
  virtual ~StepExaminer() = default;

  /// With optimizer_in_backward: whether such a loss, which this rank has, is to be examined before
  /// it is run backwards. All ranks have the same.
  virtual bool suspects_loss(double loss) = 0;
  /// False: the step is set aside, nothing is updated.
  virtual bool examine(ComputedStep& step) = 0;
};

/// Forward and backward over the micro-batches, unscale, finite check, clip, update, schedules.
class TrainOneStepCell {
 public:
  /// All arguments outlive the cell. Without a schedule (null) each group keeps its learning rate
  /// and weight decay, which the program may change between steps. A step's gradients are there
  /// until the next step, or with optimizer_in_backward used up one by one; with several
  /// data-parallel ranks `data_parallel` (get_data_parallel) has them, and ValueError if it is
  /// missing.
  TrainOneStepCell(ParallelModel& network_with_loss,
                   optim::Optimizer& optimizer,
                   const optim::Schedule* schedule,
                   const AllConfig& config,
                   DistributedDataParallel* data_parallel = nullptr);
  TrainOneStepCell(ParallelModel& network_with_loss,
                   optim::Optimizer& optimizer,
                   const optim::Schedule& schedule,
                   const AllConfig& config,
                   DistributedDataParallel* data_parallel = nullptr)
      : TrainOneStepCell(network_with_loss, optimizer, &schedule, config, data_parallel) {}

  /// Runs step number `position().seen` (from 0). The micro-batches are those of this rank.
  StepResult operator()(const std::vector<data::Batch>& micro_batches);

  /// Parameters whose local gradients the next steps measure (ModelGradients::measure_local).
  /// ValueError with optimizer_in_backward, unless there are none.
  void measure_local(std::set<std::string> names);
  /// What tells norms that are spikes, where steps with such a norm are skipped or end the run;
  /// else null.
  NormSpikes* norm_spikes() { return spikes_ ? &*spikes_ : nullptr; }

  /// Called when the gradients of a step are complete, unscaled, before clipping and update. The
  /// step counts from 1. `wanted` says for which steps; left out, for all. Never called with
  /// optimizer_in_backward. Takes the place of the observer of the same name; an empty one ends it.
  void set_gradient_observer(std::function<void(int64_t step)> observer,
                             std::function<bool(int64_t step)> wanted = {},
                             const std::string& name = {}) {
    gradient_observers_.erase(name);
    if (observer) {
      gradient_observers_.emplace(name, GradientObserver{std::move(observer), std::move(wanted)});
    }
  }

  /// Who looks at the steps before their updates; null: nobody. Has to outlive its time here.
  void set_examiner(StepExaminer* examiner) { examiner_ = examiner; }

  /// What the steps minimise in place of the model's loss, over losses of further tokens too; null:
  /// that. Has to outlive its time here. ValueError with optimizer_in_backward.
  void set_objective(StepObjective* objective);
  StepObjective* objective() { return objective_; }

  /// Whole gradients of a step by logical name, unscaled, the same on every rank, and where they
  /// are from; none: those that were computed. Asked on every rank before the norm is taken. What
  /// is found takes the place of what was computed for norm, clipping and update; gradient
  /// observers and log_param_grad_norms still see the latter. ValueError with
  /// optimizer_in_backward, and in the step for names and shapes that are not the model's.
  using GradientSource = std::function<std::optional<LogicalState>(int64_t step)>;
  void set_gradient_source(GradientSource source, std::string name);

  ParallelModel& network() { return network_; }
  optim::Optimizer& optimizer() { return optimizer_; }
  /// Those of the last step; null with optimizer_in_backward.
  const ModelGradients* gradients() const { return gradients_; }
  optim::Schedule::Position position() const { return position_; }
  void set_position(optim::Schedule::Position position) { position_ = position; }
  optim::GradScaler& grad_scaler() { return scaler_; }

 private:
  struct GradientObserver {
    std::function<void(int64_t)> observe;
    std::function<bool(int64_t)> wanted;

    bool wants(int64_t step) const { return !wanted || wanted(step); }
  };
  void count_tokens(const std::vector<data::Batch>& micro_batches, StepResult& result);
  StageOutput objective(ModelOutput& output, double share, StepResult& result) const;
  TokenWeights token_weights(const StepResult& result) const;
  void take_losses(ExactLosses& losses, StepResult& result) const;
  double local_factor(const std::vector<data::Batch>& micro_batches,
                      const StepResult& result) const;
  /// What becomes of a micro-batch's loss.
  enum class LossUse : uint8_t {
    kBackward,
    kExamined,  ///< run backwards unless the examiner suspects it
    kAlone,     ///< never run backwards
  };
  double forward_backward(const std::vector<data::Batch>& micro_batches,
                          StepResult& result,
                          LossUse use);
  void observe_gradients(double unscale, bool observed, StepResult& result);
  void apply_schedule(StepResult& result);
  void start_passes(double loss_scale, int64_t micro_batches);
  void clip_scores(const StepResult& result) const;
  double compute_gradients(const std::vector<data::Batch>& micro_batches,
                           bool observed,
                           const LogicalState* given,
                           bool again,
                           StepResult& result);
  bool loss_passes(const std::vector<data::Batch>& micro_batches, StepResult& result);
  bool examined(const std::vector<data::Batch>& micro_batches,
                const std::function<void(const std::vector<data::Batch>&, StepResult&)>& compute,
                StepResult& result);
  void step_after_backward(const std::vector<data::Batch>& micro_batches, StepResult& result);
  void step_in_backward(const std::vector<data::Batch>& micro_batches, StepResult& result);

  ParallelModel& network_;
  optim::Optimizer& optimizer_;
  const optim::Schedule* schedule_;
  optim::GradScaler scaler_;
  MoEStatistics experts_;
  MaxLogits max_logits_;
  std::optional<int64_t> max_logits_interval_;
  std::optional<QkClip> qk_clip_;
  bool skips_spikes_;
  bool counts_overflows_;  // of the schedules
  std::optional<NormSpikes> spikes_;
  std::optional<GradClipConfig> clip_;
  GradProcess own_clip_;              // of a registered grad_clip_type
  double ahead_factor_;               // of the loss of each depth ahead
  std::vector<double> ahead_tokens_;  // that count at each depth, on all ranks in this step
  bool exact_;
  bool per_token_;
  bool mean_;
  bool log_grad_norms_;
  bool overlap_p2p_;
  ModelGradients* gradients_;  // data_parallel's or own ones; null with backward_update_
  std::optional<OnDemandGradients> own_gradients_;
  std::optional<BackwardUpdate> backward_update_;
  optim::Schedule::Position position_;
  std::map<std::string, GradientObserver> gradient_observers_;
  GradientSource gradient_source_;
  std::string gradient_source_name_;
  StepExaminer* examiner_ = nullptr;
  StepObjective* objective_ = nullptr;
  Generator::State random_before_;  // of the rank's default generator, when the step began
};

}  // namespace tapestry
