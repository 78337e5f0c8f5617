#include "parallel_core/training/train_one_step.h"

#include <cmath>
#include <numeric>
#include <utility>

#include "autograd/ops/map.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "optim/grad_clip.h"
#include "parallel_core/optimizer/get_optimizer.h"
#include "parallel_core/optimizer/global_norm.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/random.h"

namespace tapestry {

namespace {

// A model in one process needs no groups.
int data_parallel_size() {
  return model_parallel_is_initialized() ? get_data_parallel_world_size() : 1;
}

bool model_is_split() {
  return model_parallel_is_initialized() && (get_tensor_model_parallel_world_size() > 1 ||
                                             get_pipeline_model_parallel_world_size() > 1);
}

double token_count(const data::Batch& batch) {
  return std::accumulate(batch.loss_mask.begin(), batch.loss_mask.end(), 0.0);
}

// [batch, 1, seq, seq], true = may look, from what hides keys in the data.
Tensor visibility(const data::Batch& batch) {
  const int64_t b = batch.batch;
  const int64_t s = batch.seq;
  if (batch.attention_mask.empty() && batch.document_starts.empty()) {
    return {};
  }
  Tensor mask = full({b, 1, s, s}, 1, kBool);
  auto* visible = mask.data<bool>();
  if (!batch.attention_mask.empty()) {
    for (int64_t i = 0; i < b * s * s; ++i) {
      visible[i] = batch.attention_mask[static_cast<size_t>(i)] == 0;
    }
  }
  for (size_t row = 0; row < batch.document_starts.size(); ++row) {
    for (const int64_t start : batch.document_starts[row]) {
      for (int64_t query = start; query < s; ++query) {
        bool* keys = visible + (static_cast<int64_t>(row) * s + query) * s;
        std::fill(keys, keys + start, false);
      }
    }
  }
  return mask;
}

}  // namespace

GPTInput to_model_input(const data::Batch& batch) {
  const Shape shape = {batch.batch, batch.seq};
  GPTInput input;
  input.tokens = tensor(batch.tokens, shape);
  if (!batch.labels.empty()) {
    input.labels = tensor(batch.labels, shape);
  }
  if (!batch.loss_mask.empty()) {
    input.loss_mask = tensor(batch.loss_mask, shape);
  }
  if (!batch.position_ids.empty()) {
    input.position_ids = tensor(batch.position_ids, shape);
  }
  input.attention_mask = visibility(batch);
  return input;
}

std::map<std::string, Tensor> logical_gradients(const nn::Module& model) {
  std::map<std::string, Tensor> out;
  for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
    const Tensor gradient = entry.parameter->grad();
    for (const nn::LogicalTensor& logical : entry.parameter->logical()) {
      out.emplace(logical.name, gradient.defined()
                                    ? dense_copy(logical.view_of(gradient)).view(logical.shape)
                                    : zeros(logical.shape));
    }
  }
  return out;
}

TrainOneStepCell::TrainOneStepCell(GPTModel& network_with_loss,
                                   optim::Optimizer& optimizer,
                                   const optim::Schedule& schedule,
                                   const AllConfig& config,
                                   DistributedDataParallel* data_parallel)
    : network_(network_with_loss),
      optimizer_(optimizer),
      schedule_(schedule),
      scaler_(get_grad_scaler(config)),
      clip_(gradient_clipping(config)),
      per_token_(config.training_config.calculate_per_token_loss),
      mean_(config.training_config.loss_reduction == "mean"),
      log_grad_norms_(config.training_config.log_param_grad_norms),
      data_parallel_(data_parallel) {
  const int ranks = data_parallel_size();
  check<ValueError>(data_parallel != nullptr || ranks == 1, "a training step on ", ranks,
                    " data-parallel ranks needs the object that get_data_parallel makes");
  if (data_parallel_ != nullptr) {
    return;
  }
  if (config.optimizer_config.optimizer_in_backward) {
    backward_update_.emplace(network_, optimizer_, log_grad_norms_);
  } else {
    gradients_.emplace(
        network_.named_parameters(),
        ParamAndGradBuffer::Options{.dtype = config.optimizer_config.main_grads_dtype,
                                    .seed = static_cast<uint64_t>(config.training_config.seed),
                                    .memory = GradientMemory::kOnDemand});
  }
}

double TrainOneStepCell::sum_over_data_parallel(double value) const {
  if (data_parallel_ == nullptr) {
    return value;
  }
  const Tensor sum = full({1}, value, kFloat64);
  data_parallel_->group().all_reduce(sum);
  return sum.item();
}

void TrainOneStepCell::count_tokens(const std::vector<data::Batch>& micro_batches,
                                    StepResult& result) const {
  double tokens = 0;
  for (const data::Batch& batch : micro_batches) {
    result.loss_tokens += token_count(batch);
    tokens += static_cast<double>(batch.batch * batch.seq);
  }
  if (data_parallel_ != nullptr) {
    const Tensor sums = tensor(std::vector<double>{result.loss_tokens, tokens}, {2});
    data_parallel_->group().all_reduce(sums);
    result.loss_tokens = sums.data<double>()[0];
    tokens = sums.data<double>()[1];
  }
  result.tokens = static_cast<int64_t>(tokens);
}

double TrainOneStepCell::forward_backward(const std::vector<data::Batch>& micro_batches,
                                          StepResult& result) {
  count_tokens(micro_batches, result);
  const double parts = static_cast<double>(micro_batches.size()) * data_parallel_size();
  RandomContext& random = random_context();
  random.step = position_.seen;
  double loss = 0;
  for (const data::Batch& batch : micro_batches) {
    random.sample_ids = batch.sample_ids;
    GPTOutput output = network_.forward(to_model_input(batch));
    output.logits = {};  // nobody else holds them: their gradient can take their place
    // The model's loss is the mean over its micro-batch. Its share is that among the micro-batches
    // of all ranks, so that gradients are simply summed.
    double share = mean_ ? 1.0 / parts : 1.0;
    if (per_token_) {
      share = output.token_count / std::max(result.loss_tokens, 1.0);
    }
    loss += output.loss.item() * share;
    output.loss.backward(scalar(share * result.loss_scale, output.loss.dtype()));
  }
  return sum_over_data_parallel(loss);
}

void TrainOneStepCell::apply_schedule(StepResult& result) {
  schedule_.apply(optimizer_, position_);
  for (const optim::ParamGroup& group : optimizer_.param_groups()) {
    result.lr.push_back(group.lr);
  }
}

void TrainOneStepCell::start_gradients(size_t micro_batches) {
  if (data_parallel_ != nullptr) {
    data_parallel_->start_step(position_.seen, static_cast<int64_t>(micro_batches));
  } else {
    gradients_->zero(position_.seen);
  }
}

// Shows the gradients to whoever wants to see them whole.
void TrainOneStepCell::observe_gradients(double unscale, bool observed, StepResult& result) {
  if (!observed && !log_grad_norms_) {
    return;
  }
  if (data_parallel_ != nullptr) {
    data_parallel_->gather_gradients();
  }
  if (log_grad_norms_) {
    for (const auto& [name, gradient] : logical_gradients(network_)) {
      result.grad_norms.emplace(name, optim::global_norm({gradient}) * unscale);
    }
  }
  if (observed) {
    gradient_observer_(position_.seen + 1);
  }
  if (data_parallel_ != nullptr) {
    data_parallel_->release_gradients();
  }
}

void TrainOneStepCell::step_after_backward(const std::vector<data::Batch>& micro_batches,
                                           StepResult& result) {
  start_gradients(micro_batches.size());
  result.loss = forward_backward(micro_batches, result);
  if (data_parallel_ != nullptr) {
    data_parallel_->finish_reduce();
  }
  // Unscaling is left to the pass that updates, unless somebody wants to see the gradients.
  double unscale = 1.0 / result.loss_scale;
  const int64_t step = position_.seen + 1;
  const bool observed = gradient_observer_ && (!observer_wanted_ || observer_wanted_(step));
  if (observed && unscale != 1) {
    data_parallel_ != nullptr ? data_parallel_->scale(unscale) : gradients_->scale(unscale);
    unscale = 1;
  }
  const bool is_split = data_parallel_ != nullptr || model_is_split();
  result.grad_norm =
      (is_split ? global_grad_norm(network_, data_parallel_) : gradients_->norm()) * unscale;
  result.finite = std::isfinite(result.grad_norm);
  observe_gradients(unscale, observed, result);
  apply_schedule(result);
  if (result.finite) {
    optim::GradTransform transform{.scale = unscale};
    if (clip_ && clip_->grad_clip_type == "ClipGlobalNorm") {
      transform.scale *= optim::clip_coefficient(result.grad_norm, clip_->clip_value);
    } else if (clip_) {
      transform.limit = clip_->clip_value;
    }
    optimizer_.step(transform);
    if (data_parallel_ != nullptr) {
      data_parallel_->parameters_changed();
    }
    ++position_.applied;
  }
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
  backward_update_->start(transform);
  result.loss = forward_backward(micro_batches, result);
  BackwardUpdate::Norms norms = backward_update_->finish();
  result.grad_norm = norms.total;
  result.grad_norms = std::move(norms.logical);
  ++position_.applied;
}

StepResult TrainOneStepCell::operator()(const std::vector<data::Batch>& micro_batches) {
  check<ValueError>(!micro_batches.empty(), "a step needs at least one micro-batch");
  StepResult result;
  result.loss_scale = scaler_.scale();
  network_.train();
  if (backward_update_) {
    step_in_backward(micro_batches, result);
  } else {
    step_after_backward(micro_batches, result);
  }
  ++position_.seen;
  scaler_.update(result.finite);
  return result;
}

}  // namespace tapestry
