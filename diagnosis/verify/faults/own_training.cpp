#include "diagnosis/verify/faults/own_training.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "autograd/ops/map.h"
#include "autograd/tape/grad_mode.h"
#include "diagnosis/dump/run/rounding_noise.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/optimizer/get_optimizer.h"
#include "parallel_core/optimizer/parameter_rules.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/transformer/activation_recorder.h"

namespace tapestry {

namespace {

// Values as ActivationRecorder keeps them, and their order.
class OrderedRecorder final : public ActivationRecorder {
 public:
  explicit OrderedRecorder(std::vector<std::string>& order) : order_(order) {}
  void value_made(const ObservedValue& value) override {
    const std::string name(value.name);
    if (!values().contains(name)) {
      order_.push_back(name);
    }
    ActivationRecorder::value_made(value);
  }

 private:
  std::vector<std::string>& order_;
};

// What the configuration says of each parameter: by names if it has lists of these, else by flags.
std::map<std::string, bool> configured_decays(const AllConfig& config, const nn::Module& model) {
  std::map<std::string, bool> out;
  for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
    out[entry.name] = entry.parameter->flags().decay;
  }
  if (has_decay_rules(config.optimizer_config)) {
    for (const ParameterChoice& choice : decay_choices(config, model)) {
      out[choice.parameter] = choice.chosen;
    }
  }
  return out;
}

}  // namespace

bool equal_bits(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape() || a.dtype() != b.dtype()) {
    return false;
  }
  const Tensor x = dense(a);
  const Tensor y = dense(b);
  return std::memcmp(x.raw(), y.raw(), static_cast<size_t>(x.numel() * size_of(x.dtype()))) == 0;
}

std::string OwnRun::described(const std::string& path) const {
  const auto type = types.find(path);
  return type == types.end() ? path : type->second + " " + path;
}

OwnTraining::OwnTraining(const AllConfig& config, const VerifyOptions& options)
    : guard_(context_), config_(config), options_(options) {
  initialize_model_parallel();
}

OwnTraining::~OwnTraining() { destroy_model_parallel(); }

LogicalState OwnTraining::start_weights() {
  ComparedTraining training(config_, options_, true);
  load_start(training);
  return get_logical_state(*training.model);
}

std::vector<std::vector<data::Batch>> OwnTraining::batches(int64_t steps) {
  const ComparedTraining training(config_, options_, true);
  std::vector<std::vector<data::Batch>> out;
  for (int64_t step = 0; step < steps; ++step) {
    out.push_back(training.batches(step));
  }
  return out;
}

OwnRun OwnTraining::train(int64_t steps, const std::optional<uint64_t>& draw) {
  return train(steps, draw, {});
}

OwnRun OwnTraining::train_by_rule(int64_t steps,
                                  const UpdateRule& rule,
                                  const std::function<bool(const OwnRun&)>& goes_on) {
  const RuleFollower follower = follow_rule(rule);
  std::map<std::string, Tensor> masters;
  const auto take_over = [&](ComparedTraining& training, OwnRun& run) {
    ObservedUpdate& update = run.steps.back().update;
    for (auto& [name, entry] : update.entries) {
      if (const auto before = masters.find(name); before != masters.end()) {
        entry.before = before->second;
      }
    }
    masters = follower(update);
    LogicalState state = get_logical_state(*training.model);
    for (auto& [name, entry] : update.entries) {
      entry.after = masters.at(name);
      state.at(name) = entry.after;
    }
    set_logical_state(*training.model, state, "updates by another rule");
    return goes_on(run);
  };
  return train(steps, std::nullopt, take_over);
}

OwnRun OwnTraining::train(int64_t steps,
                          const std::optional<uint64_t>& draw,
                          const AfterStep& after_step) {
  ComparedTraining training(config_, options_, true);
  OwnRun run;
  for (const nn::Module::NamedModule& entry : training.model->named_modules()) {
    run.types[entry.name] = entry.module->type_name();
  }
  Parameters parameters;
  parameters.schedule = get_optimizer_param_scheduler(config_, get_data_parallel_world_size());
  const std::map<std::string, bool> decays = configured_decays(config_, *training.model);
  for (const nn::Module::NamedParameter& entry : training.model->named_parameters()) {
    for (const nn::LogicalTensor& logical : entry.parameter->logical()) {
      run.tensors.push_back(logical.name);
      run.paths[logical.name] = entry.name.substr(0, entry.name.rfind('.'));
      parameters.decays[logical.name] = decays.at(entry.name);
      parameters.owner[logical.name] = entry.name;
    }
  }
  load_start(training);
  if (options_.parts.started) {
    options_.parts.started(*training.model);
  }
  training.start({});
  for (int64_t step = 1; step <= steps; ++step) {
    if (options_.parts.before_step) {
      options_.parts.before_step(*training.model, step);
    }
    std::vector<std::string> value_order;
    run.steps.push_back(train_step(training, step, draw, parameters, value_order));
    if (step == 1) {
      for (const std::string& name : value_order) {
        run.value_order.emplace(name, std::ssize(run.value_order));
      }
    }
    if (after_step && !after_step(training, run)) {
      break;
    }
  }
  return run;
}

void OwnTraining::load_start(ComparedTraining& training) const {
  if (options_.start_weights) {
    set_logical_state(*training.model, options_.start_weights(*training.model),
                      "the given start weights");
  } else if (const std::string& path = config_.training_config.load_checkpoint; !path.empty()) {
    load_weights(*training.model, config_.model_config, path);
  }
}

std::string OwnTraining::stale_copy(const ComparedTraining& training,
                                    const LogicalState& masters) const {
  if (config_.model_config.params_dtype == kFloat32 ||
      config_.optimizer_config.store_param_remainders) {
    return {};
  }
  const NoGradGuard guard;
  for (const auto& [name, copy] : get_logical_state(*training.model)) {
    if (copy.dtype() != kFloat32 && !equal_bits(copy, masters.at(name).to(copy.dtype()))) {
      return name;
    }
  }
  return {};
}

OwnStep OwnTraining::train_step(ComparedTraining& training,
                                int64_t step,
                                const std::optional<uint64_t>& draw,
                                const Parameters& parameters,
                                std::vector<std::string>& value_order) {
  OwnStep own;
  own.update.step = step;
  // What the configuration says, whatever optimizer and step are made of.
  const double decay = parameters.schedule->weight_decay(training.cell->position()).value();
  const LogicalState before = get_logical_state(*training.model, training.optimizer.get());
  own.stale_copy = stale_copy(training, before);
  training.cell->set_gradient_observer(
      [&](int64_t /*step*/) { own.gradients = logical_gradients(*training.model); });
  const std::vector<data::Batch> batches = training.batches(step - 1);
  {
    std::optional<RoundingNoise> noise;
    std::optional<ObserverScope> noisy;
    if (draw) {
      noise.emplace(*draw * 1000003 + static_cast<uint64_t>(step));
      noisy.emplace(*noise);
    }
    const std::unique_ptr<Observer> observer =
        options_.parts.observer ? options_.parts.observer() : nullptr;
    std::optional<ObserverScope> observed;
    if (observer != nullptr) {
      observed.emplace(*observer);
    }
    const OrderedRecorder recorder(value_order);
    own.result = (*training.cell)(batches);
    own.values = recorder.values();
  }
  training.cell->set_gradient_observer({});
  const LogicalState after = get_logical_state(*training.model, training.optimizer.get());
  std::map<std::string, const optim::ParamGroup*> groups;
  for (const optim::ParamGroup& group : training.optimizer->param_groups()) {
    for (const std::string& name : group.names) {
      groups[name] = &group;
    }
  }
  for (const auto& [name, gradient] : own.gradients) {
    const auto group = groups.find(parameters.owner.at(name));
    own.update.entries[name] = {.gradient = gradient,
                                .before = before.at(name),
                                .after = after.at(name),
                                .lr = group != groups.end() ? group->second->lr.value() : 0,
                                .weight_decay = decay,
                                .decays = parameters.decays.at(name)};
  }
  return own;
}

}  // namespace tapestry
