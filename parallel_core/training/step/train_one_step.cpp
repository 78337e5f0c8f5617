#include "parallel_core/training/step/train_one_step.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>

#include "autograd/kernels/machine/exact.h"
#include "autograd/kernels/reduce.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/map.h"
#include "autograd/tape/observer.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"
#include "optim/grad_clip.h"
#include "parallel_core/comm/sum_over.h"
#include "parallel_core/dist_checkpointing/logical_state.h"
#include "parallel_core/optimizer/exact_norms.h"
#include "parallel_core/optimizer/get_optimizer.h"
#include "parallel_core/optimizer/global_norm.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/parameter_ranks.h"
#include "parallel_core/pipeline_parallel/collect.h"
#include "parallel_core/random.h"
#include "parallel_core/training/step/given_state.h"
#include "parallel_core/training/step/rows_ahead.h"

namespace tapestry {

namespace {

// A model in one process needs no groups. With context parallelism, ranks that have parts of the
// same sequences.
int data_parallel_size(bool with_context_parallel = false) {
  return model_parallel_is_initialized() ? get_data_parallel_world_size(with_context_parallel) : 1;
}

// Sums over ranks with other sequences. Those that share sequences have the same values.
void sum_over_sequences(std::span<double> values) {
  if (model_parallel_is_initialized()) {
    sum_over(get_data_parallel_group(), values);
  }
}

double token_count(const data::Batch& batch) {
  return std::accumulate(batch.loss_mask.begin(), batch.loss_mask.end(), 0.0);
}

}  // namespace

std::map<std::string, Tensor> logical_gradients(const nn::Module& model) {
  std::vector<LogicalSlice> slices;
  for (const nn::Module::NamedParameter& entry : model.trained_parameters()) {
    if (entry.parameter->flags().shared) {
      continue;
    }
    const Tensor gradient = entry.parameter->grad();
    for (const nn::LogicalTensor& logical : entry.parameter->logical()) {
      slices.push_back({&logical,
                        gradient.defined()
                            ? dense(logical.view_of(gradient)).view(logical.local_shape())
                            : zeros(logical.local_shape()),
                        entry.parameter->flags().expert});
    }
  }
  return gather_logical(slices);
}

namespace {

// What this rank holds of the gradient of a logical tensor.
struct GradientSlice {
  std::string name;
  Tensor values;    // undefined: none was made
  int64_t holders;  // ranks that hold this same slice
};

// Of the experts' tensors, or of all others.
std::vector<GradientSlice> gradient_slices(const nn::Module& model, bool of_experts) {
  std::vector<GradientSlice> slices;
  for (const nn::Module::NamedParameter& entry : model.trained_parameters()) {
    const nn::ParameterFlags& flags = entry.parameter->flags();
    if (flags.shared || flags.expert != of_experts) {
      continue;
    }
    const Tensor gradient = entry.parameter->grad();
    const bool sharded = flags.tp == nn::TensorParallel::kSharded;
    for (const nn::LogicalTensor& logical : entry.parameter->logical()) {
      slices.push_back({logical.name, gradient.defined() ? logical.view_of(gradient) : Tensor(),
                        sharded ? logical.copies : slices_group(of_experts).size()});
    }
  }
  return slices;
}

std::vector<double> norms_of(const std::vector<GradientSlice>& slices, ProcessGroup& group) {
  std::vector<double> norms;
  for (const GradientSlice& slice : slices) {
    const double norm = slice.values.defined() ? optim::global_norm({slice.values}) : 0.0;
    // Ranks that hold the same slice have the same sum: each counts its part.
    norms.push_back(norm * norm / static_cast<double>(slice.holders));
  }
  sum_over(group, norms);
  std::transform(norms.begin(), norms.end(), norms.begin(),
                 [](double squares) { return std::sqrt(squares); });
  return norms;
}

// The same bits in every layout: of ranks that hold the same slice, the first counts it.
std::vector<double> exact_norms_of(const std::vector<GradientSlice>& slices, ProcessGroup& group) {
  ExactNorms sums(slices.size());
  for (size_t i = 0; i < slices.size(); ++i) {
    if (slices[i].values.defined() && group.rank() % slices[i].holders == 0) {
      sums.add(i, slices[i].values);
    }
  }
  return sums.result(
      [&](std::span<double> values, ReduceOp op) { reduce_over(group, values, op); });
}

std::map<std::string, double> gradient_norms_of(const nn::Module& model,
                                                bool of_experts,
                                                bool exact) {
  const std::vector<GradientSlice> slices = gradient_slices(model, of_experts);
  ProcessGroup& group = slices_group(of_experts);
  const std::vector<double> found = exact ? exact_norms_of(slices, group) : norms_of(slices, group);
  std::map<std::string, double> norms;
  for (size_t i = 0; i < slices.size(); ++i) {
    norms.emplace(slices[i].name, found[i]);
  }
  return norms;
}

}  // namespace

std::map<std::string, double> logical_gradient_norms(const nn::Module& model, bool exact) {
  std::map<std::string, double> norms = gradient_norms_of(model, /*of_experts=*/false, exact);
  if (has_experts(model)) {
    norms.merge(gather_over_experts(gradient_norms_of(model, /*of_experts=*/true, exact)));
  }
  return norms;
}

TrainOneStepCell::TrainOneStepCell(ParallelModel& network_with_loss,
                                   optim::Optimizer& optimizer,
                                   const optim::Schedule* schedule,
                                   const AllConfig& config,
                                   DistributedDataParallel* data_parallel)
    : network_(network_with_loss),
      optimizer_(optimizer),
      schedule_(schedule),
      scaler_(get_grad_scaler(config)),
      experts_(network_with_loss,
               config.model_config,
               config.monitor_config.save_tokens_per_expert_interval.has_value()),
      max_logits_(network_with_loss),
      max_logits_interval_(config.monitor_config.max_logits_interval),
      skips_spikes_(config.monitor_config.use_skip_data_by_global_norm),
      counts_overflows_(config.training_config.schedule_counts_overflows),
      clip_(gradient_clipping(config)),
      ahead_factor_(config.model_config.mtp_loss_scaling_factor /
                    static_cast<double>(std::max<int64_t>(network_with_loss.tokens_ahead(), 1))),
      exact_(config.training_config.exact),
      per_token_(config.training_config.calculate_per_token_loss),
      mean_(config.training_config.loss_reduction == "mean"),
      log_grad_norms_(config.training_config.log_param_grad_norms),
      overlap_p2p_(config.parallel_config.overlap_p2p_comm),
      gradients_(data_parallel) {
  if (clip_ && ModuleRegistry::has_item(ModuleType::kGradProcessFunc, clip_->grad_clip_type)) {
    own_clip_ = ModuleRegistry::get_item<ModuleType::kGradProcessFunc>(clip_->grad_clip_type);
  }
  if (skips_spikes_ || config.monitor_config.check_for_global_norm) {
    spikes_.emplace(norm_spike_options(config));
  }
  if (config.optimizer_config.qk_clip_enabled) {
    qk_clip_.emplace(network_, optimizer_, config.optimizer_config.qk_clip_threshold);
  }
  const int ranks = std::max(data_parallel_size(/*with_context_parallel=*/true),
                             has_experts(network_) ? copies_group(/*of_expert=*/true).size() : 1);
  check<ValueError>(data_parallel != nullptr || ranks == 1, "a training step on ", ranks,
                    " data-parallel ranks needs the object that get_data_parallel makes");
  if (data_parallel != nullptr) {
    return;
  }
  if (config.optimizer_config.optimizer_in_backward) {
    check<ValueError>(!config.training_config.exact,
                      "training_config.exact sums the gradients of all tokens before it rounds "
                      "them, optimizer_in_backward updates with those of a backward pass; switch "
                      "one of them off");
    backward_update_.emplace(network_, optimizer_, log_grad_norms_);
  } else {
    gradients_ = &own_gradients_.emplace(
        network_.trained_parameters(),
        OnDemandGradients::Options{.dtype = config.optimizer_config.main_grads_dtype,
                                   .exact = config.training_config.exact,
                                   .seed = static_cast<uint64_t>(config.training_config.seed)});
  }
}

void TrainOneStepCell::count_tokens(const std::vector<data::Batch>& micro_batches,
                                    StepResult& result) {
  const int64_t depths = per_token_ ? network_.tokens_ahead() : 0;
  std::vector<double> counts(static_cast<size_t>(3 + depths));
  for (const data::Batch& batch : micro_batches) {
    counts[0] += token_count(batch);
    counts[1] += static_cast<double>(batch.batch * batch.seq);
    counts[2] += static_cast<double>(batch.batch);
    for (int64_t depth = 1; depth <= depths; ++depth) {
      counts[static_cast<size_t>(2 + depth)] += tokens_that_count_ahead(batch, depth);
    }
  }
  sum_over_sequences(counts);
  result.loss_tokens = counts[0];
  result.tokens = static_cast<int64_t>(counts[1]);
  result.sequences = static_cast<int64_t>(counts[2]);
  ahead_tokens_.assign(counts.begin() + 3, counts.end());
}

// What the share of a micro-batch among all ranks' lacks of its share among this rank's own.
double TrainOneStepCell::local_factor(const std::vector<data::Batch>& micro_batches,
                                      const StepResult& result) const {
  if (!per_token_) {
    return mean_ ? data_parallel_size() : 1;
  }
  double own = 0;
  for (const data::Batch& batch : micro_batches) {
    own += token_count(batch);
  }
  return own > 0 ? result.loss_tokens / own : 1;
}

namespace {

// Ends a forward pass whose loss is to be examined before anything runs backwards.
struct LossToExamine {
  double loss;
};

}  // namespace

// What a micro-batch adds to the objective, `share` being that of its loss among those of all.
StageOutput TrainOneStepCell::objective(ModelOutput& output,
                                        double share,
                                        StepResult& result) const {
  const DType dtype = output.loss.dtype();
  if (exact_) {  // the model has weighed the tokens
    Tensor sum = output.loss;
    for (const AheadLoss& ahead : output.ahead) {
      sum = sum + ahead.loss;
    }
    return {std::move(sum), scalar(1, dtype)};
  }
  if (output.ahead.empty()) {
    return {output.loss, scalar(share * result.loss_scale, dtype)};
  }
  Tensor sum = output.loss * share;
  for (size_t i = 0; i < output.ahead.size(); ++i) {
    const AheadLoss& ahead = output.ahead[i];
    double weight = share;
    if (per_token_) {  // each depth over its own tokens, as the main loss is over its
      weight = ahead_tokens_[i] > 0 ? ahead.token_count / ahead_tokens_[i] : 0;
    }
    weight *= ahead_factor_;
    result.mtp_losses[i] += ahead.loss.item() * weight;
    sum = sum + ahead.loss * weight;
  }
  return {std::move(sum), scalar(result.loss_scale, dtype)};
}

// In exact mode: what each token's loss is multiplied by. One float32 for all tokens of the step,
// so that their gradients do not depend on how they are divided.
TokenWeights TrainOneStepCell::token_weights(const StepResult& result) const {
  if (!exact_) {
    return {};
  }
  const auto weight = [&](double factor, double tokens) {
    return tokens > 0 ? static_cast<float>(result.loss_scale * factor / tokens) : 0.0F;
  };
  TokenWeights weights{.own = weight(1, result.loss_tokens)};
  for (const double tokens : ahead_tokens_) {
    weights.ahead.push_back(weight(ahead_factor_, tokens));
  }
  return weights;
}

// In exact mode: the losses of the step from all ranks' sums.
void TrainOneStepCell::take_losses(ExactLosses& losses, StepResult& result) const {
  losses.sum_over_ranks();
  result.loss = result.loss_tokens > 0 ? losses.sum() / result.loss_tokens : 0;
  for (size_t i = 0; i < ahead_tokens_.size(); ++i) {
    const double tokens = ahead_tokens_[i];
    result.mtp_losses[i] = tokens > 0 ? losses.sum_ahead(i) * ahead_factor_ / tokens : 0;
  }
}

double TrainOneStepCell::forward_backward(const std::vector<data::Batch>& micro_batches,
                                          StepResult& result,
                                          LossUse use) {
  {
    const PhaseScope phase("prepare");
    count_tokens(micro_batches, result);
  }
  const double parts = static_cast<double>(micro_batches.size()) * data_parallel_size();
  random_context().step = position_.seen;
  if (objective_ != nullptr) {
    const PhaseScope phase("objective");
    objective_->begin_step(network_, position_.seen + 1, micro_batches, /*training=*/true);
  }
  result.mtp_losses.assign(static_cast<size_t>(network_.tokens_ahead()), 0);
  const auto start = std::chrono::steady_clock::now();
  double loss = 0;
  ExactLosses exact(network_.tokens_ahead());
  PipelineWork work = pipeline_work(
      network_, micro_batches,
      [&](int64_t micro_batch, ModelOutput& output) {
        if (objective_ != nullptr) {
          Tensor part = objective_->part(micro_batch,
                                         micro_batches[static_cast<size_t>(micro_batch)], output);
          const double own = part.item();
          result.local_losses.push_back(own * parts);
          loss += own;
          Tensor gradient = scalar(result.loss_scale, part.dtype());
          return StageOutput{std::move(part), std::move(gradient)};
        }
        output.logits = {};  // nobody else holds them: their gradient can take their place
        // The model's loss is the mean over its micro-batch. Its share is that among the
        // micro-batches of all ranks, so that gradients are simply summed.
        double share = mean_ ? 1.0 / parts : 1.0;
        if (per_token_) {
          share = result.loss_tokens > 0 ? output.token_count / result.loss_tokens : 0;
        }
        const double own = exact_ ? exact.add(network_, output) : output.loss.item();
        result.local_losses.push_back(own);
        if (use == LossUse::kAlone ||
            (use == LossUse::kExamined && examiner_->suspects_loss(own * share))) {
          throw LossToExamine{own * share};
        }
        loss += own * share;
        return objective(output, share, result);
      },
      objective_ != nullptr ? objective_->scores() : nullptr, token_weights(result));
  work.messages.overlap = overlap_p2p_;
  const PipelineReport report = get_forward_backward_func(work.chunks)(work);
  result.compute_ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count() -
      1000 * report.waiting_seconds;
  const PhaseScope phase("sum_loss");
  // The loss is that of the last stage, and nothing on others.
  std::vector<double> sums = {report.waiting_seconds / report.seconds, loss};
  sums.insert(sums.end(), result.mtp_losses.begin(), result.mtp_losses.end());
  sum_over_pipeline(sums);
  const int stages = network_.stage().size;
  if (stages > 1) {
    result.bubble = PipelineBubble{
        .measured = sums[0] / stages,
        .theoretical = theoretical_bubble(
            {.stages = stages, .chunks = work.chunks, .micro_batches = work.micro_batches})};
  }
  sum_over_sequences(std::span(sums).subspan(1));
  std::copy(sums.begin() + 2, sums.end(), result.mtp_losses.begin());
  if (objective_ != nullptr) {
    result.task = objective_->finish_step();
  }
  if (exact_) {
    take_losses(exact, result);
    return result.loss;
  }
  return sums[1];
}

// Before the passes of the step, or those that are run in their place.
void TrainOneStepCell::start_passes(double loss_scale, int64_t micro_batches) {
  experts_.start_step(loss_scale, micro_batches);
  const bool is_shown = max_logits_interval_ && (position_.seen + 1) % *max_logits_interval_ == 0;
  max_logits_.start_step(qk_clip_.has_value() || is_shown);
}

// Once the weights are updated.
void TrainOneStepCell::clip_scores(const StepResult& result) const {
  if (qk_clip_) {
    qk_clip_->scale_weights(result.max_logits);
  }
}

void TrainOneStepCell::apply_schedule(StepResult& result) {
  const PhaseScope phase("schedule");
  if (schedule_ != nullptr) {
    schedule_->apply(optimizer_, position_);
  }
  for (const optim::ParamGroup& group : optimizer_.param_groups()) {
    result.lr.push_back(group.lr.value());
  }
}

void TrainOneStepCell::measure_local(std::set<std::string> names) {
  check<ValueError>(gradients_ != nullptr || names.empty(),
                    "optimizer_in_backward drops each gradient before the next one comes: there "
                    "are no local norms");
  if (gradients_ != nullptr) {
    gradients_->measure_local(std::move(names));
  }
}

void TrainOneStepCell::set_objective(StepObjective* objective) {
  check<ValueError>(gradients_ != nullptr || objective == nullptr,
                    "optimizer_in_backward updates with the gradients of a mean cross entropy; "
                    "switch it off for another objective");
  objective_ = objective;
}

void TrainOneStepCell::set_gradient_source(GradientSource source, std::string name) {
  check<ValueError>(gradients_ != nullptr || !source,
                    "optimizer_in_backward updates with each gradient before the next one comes: "
                    "no others can take their place");
  gradient_source_ = std::move(source);
  gradient_source_name_ = std::move(name);
}

// Shows the gradients to whoever wants to see them whole.
void TrainOneStepCell::observe_gradients(double unscale, bool observed, StepResult& result) {
  if (!observed && !log_grad_norms_) {
    return;
  }
  gradients_->gather_gradients();
  if (log_grad_norms_) {
    for (const auto& [name, norm] : logical_gradient_norms(network_, gradients_->exact())) {
      result.grad_norms.emplace(name, norm * unscale);
    }
    result.grad_norms = gather_over_pipeline(result.grad_norms);
  }
  if (observed) {
    for (const auto& [name, observer] : gradient_observers_) {
      if (observer.wants(position_.seen + 1)) {
        observer.observe(position_.seen + 1);
      }
    }
  }
  gradients_->release_gradients();
}

// Returns what the gradients are still to be multiplied by.
double TrainOneStepCell::compute_gradients(const std::vector<data::Batch>& micro_batches,
                                           bool observed,
                                           const LogicalState* given,
                                           bool again,
                                           StepResult& result) {
  {
    const PhaseScope phase("prepare");
    gradients_->start_step(position_.seen, static_cast<int64_t>(micro_batches.size()));
  }
  result.loss = forward_backward(micro_batches, result, LossUse::kBackward);
  {
    const PhaseScope phase("reduce_gradients");
    gradients_->finish_reduce();
  }
  check_exact_sums(*gradients_, position_.seen + 1);
  // Unscaling is left to the pass that updates, unless somebody wants to see the gradients.
  double unscale = 1.0 / result.loss_scale;
  if ((observed || given != nullptr) && unscale != 1) {
    gradients_->scale(unscale);
    unscale = 1;
  }
  if (given != nullptr) {
    if (!again) {
      observe_gradients(unscale, observed, result);
    }
    set_gradients(network_, *gradients_, *given, gradient_source_name_);
  }
  {
    const PhaseScope phase("gradient_norm");
    result.grad_norm = global_grad_norm(network_, *gradients_) * unscale;
  }
  result.finite = std::isfinite(result.grad_norm);
  const double local = local_factor(micro_batches, result) / result.loss_scale;
  for (const auto& [name, squares] : gradients_->local_squares()) {
    result.local_squares.emplace(name, squares * local * local);
  }
  return unscale;
}

// What `compute` fills a result with may be computed again as often as the examiner wants.
bool TrainOneStepCell::examined(
    const std::vector<data::Batch>& micro_batches,
    const std::function<void(const std::vector<data::Batch>&, StepResult&)>& compute,
    StepResult& result) {
  Generator& generator = RankContext::current().default_generator();
  const Generator::State random = generator.state();
  ComputedStep step{.step = position_.seen + 1,
                    .micro_batches = micro_batches,
                    .result = result,
                    .forward_only = backward_update_.has_value()};
  step.rerun = [&](const std::vector<data::Batch>& batches) {
    StepResult again;
    again.loss_scale = result.loss_scale;
    start_passes(again.loss_scale, std::ssize(batches));
    generator.set_state(random_before_);
    compute(batches, again);
    return again;
  };
  if (gradients_ != nullptr) {
    step.gradient_squares = [this](const nn::Module::NamedParameter& entry) {
      const Tensor held = gradients_->held_gradient(entry).elements;
      return held.defined() ? kernels::sum_of_squares(held.dtype(), held.numel(), dense(held).raw())
                            : 0.0;
    };
  }
  const bool goes_on = examiner_->examine(step);
  generator.set_state(random);
  return goes_on;
}

void TrainOneStepCell::step_after_backward(const std::vector<data::Batch>& micro_batches,
                                           StepResult& result) {
  const int64_t step = position_.seen + 1;
  const bool observed = std::any_of(gradient_observers_.begin(), gradient_observers_.end(),
                                    [step](const auto& entry) { return entry.second.wants(step); });
  const std::optional<LogicalState> source =
      gradient_source_ ? gradient_source_(step) : std::nullopt;
  const LogicalState* given = source ? &*source : nullptr;
  double unscale = compute_gradients(micro_batches, observed, given, /*again=*/false, result);
  if (examiner_ != nullptr) {
    result.set_aside = !examined(
        micro_batches,
        [&](const std::vector<data::Batch>& batches, StepResult& again) {
          unscale = compute_gradients(batches, observed, given, /*again=*/true, again);
        },
        result);
  }
  if (spikes_) {
    result.norm_is_spike = spikes_->is_spike(result.grad_norm);
    result.skipped = skips_spikes_ && result.norm_is_spike;
    result.norm_threshold = spikes_->threshold();
    spikes_->observe(result.grad_norm);
  }
  if (given == nullptr) {
    observe_gradients(unscale, observed, result);
  }
  result.max_logits = max_logits_.finish_step();
  apply_schedule(result);
  if (result.finite && !result.skipped && !result.set_aside) {
    optim::GradTransform transform{.scale = unscale};
    if (own_clip_) {
      const optim::GradTransform own = own_clip_(result.grad_norm, clip_->clip_value);
      check<ValueError>(std::isfinite(own.scale) && own.limit >= 0, "grad_clip_type ",
                        clip_->grad_clip_type, ": scale ", own.scale, " and limit ", own.limit,
                        " cannot be applied to gradients");
      transform = {.scale = unscale * own.scale, .limit = own.limit};
    } else if (clip_ && clip_->grad_clip_type == "ClipGlobalNorm") {
      transform.scale *= optim::clip_coefficient(result.grad_norm, clip_->clip_value);
    } else if (clip_) {
      transform.limit = clip_->clip_value;
    }
    const PhaseScope phase("optimizer");
    optimizer_.step(transform);
    clip_scores(result);
    gradients_->parameters_changed();
    ++position_.applied;
  }
}

// Whether a step that updates in its backward pass may have one. False: it has been set aside.
bool TrainOneStepCell::loss_passes(const std::vector<data::Batch>& micro_batches,
                                   StepResult& result) {
  const auto forward = [&](const std::vector<data::Batch>& batches, StepResult& out) {
    try {
      forward_backward(batches, out, LossUse::kAlone);
    } catch (const LossToExamine& found) {
      out.loss = found.loss;
    }
  };
  const bool goes_on = examined(micro_batches, forward, result);
  result.set_aside = !goes_on;
  return goes_on;
}

void TrainOneStepCell::step_in_backward(const std::vector<data::Batch>& micro_batches,
                                        StepResult& result) {
  check<ValueError>(micro_batches.size() == 1,
                    "optimizer_in_backward: a step has one micro-batch, ", "got ",
                    micro_batches.size());
  apply_schedule(result);
  optim::GradTransform transform{.scale = 1.0 / result.loss_scale};
  if (clip_) {
    transform.limit = clip_->clip_value;  // by value: the configuration refuses the other
  }
  const LossUse use = examiner_ == nullptr ? LossUse::kBackward : LossUse::kExamined;
  try {
    backward_update_->start(transform);
    result.loss = forward_backward(micro_batches, result, use);
  } catch (const LossToExamine& found) {
    backward_update_->cancel();
    result.loss = found.loss;
    if (!loss_passes(micro_batches, result)) {
      return;
    }
    result.local_losses.clear();
    start_passes(result.loss_scale, std::ssize(micro_batches));
    RankContext::current().default_generator().set_state(random_before_);
    backward_update_->start(transform);
    result.loss = forward_backward(micro_batches, result, LossUse::kBackward);
  }
  const PhaseScope phase("gradient_norm");
  BackwardUpdate::Norms norms = backward_update_->finish();
  result.grad_norm = norms.total;
  result.grad_norms = std::move(norms.logical);
  result.max_logits = max_logits_.finish_step();
  clip_scores(result);
  ++position_.applied;
}

StepResult TrainOneStepCell::operator()(const std::vector<data::Batch>& micro_batches) {
  check<ValueError>(!micro_batches.empty(), "a step needs at least one micro-batch");
  const ExactScope exact(exact_);
  StepResult result;
  result.loss_scale = scaler_.scale();
  {
    const PhaseScope phase("prepare");
    network_.train();
    random_before_ = RankContext::current().default_generator().state();
    start_passes(result.loss_scale, std::ssize(micro_batches));
  }
  const int64_t applied = position_.applied;
  if (backward_update_) {
    step_in_backward(micro_batches, result);
  } else {
    step_after_backward(micro_batches, result);
  }
  if (experts_.any()) {
    const PhaseScope phase("expert_statistics");
    result.moe = experts_.finish_step(/*updated=*/position_.applied > applied);
  }
  ++position_.seen;
  const bool left_out = result.skipped || result.set_aside;
  const bool waits = left_out || (!result.finite && !counts_overflows_);
  position_.skipped += waits ? 1 : 0;
  if (position_.samples) {
    *position_.samples += waits ? 0 : result.sequences;
  }
  if (!result.finite || !left_out) {  // a skipped step says nothing of the scale
    scaler_.update(result.finite);
  }
  return result;
}

}  // namespace tapestry
