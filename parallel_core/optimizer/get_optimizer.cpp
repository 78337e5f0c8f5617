#include "parallel_core/optimizer/get_optimizer.h"

#include <map>
#include <string>
#include <utility>

#include "autograd/tensor/error.h"
#include "autograd/tensor/rank_context.h"
#include "optim/adafactor.h"
#include "optim/adam.h"
#include "optim/came.h"
#include "optim/lion.h"
#include "optim/muon.h"
#include "optim/sgd.h"
#include "parallel_core/frozen_parameters.h"
#include "parallel_core/optimizer/model_layout.h"
#include "parallel_core/optimizer/own_schedule.h"
#include "parallel_core/pipeline_parallel/pipeline_stage.h"
#include "parallel_core/register.h"
#include "parallel_core/row_turns.h"

namespace tapestry {

namespace {

using Groups = std::vector<optim::ParamGroup>;
using Made = std::unique_ptr<optim::Optimizer>;

optim::StateStorage state_storage(const OptimizerConfig& config, uint64_t seed) {
  return {.exp_avg_dtype = config.exp_avg_dtype,
          .exp_avg_sq_dtype = config.exp_avg_sq_dtype,
          .store_param_remainders = config.store_param_remainders,
          .seed = seed};
}

optim::AdamOptions adam_options(const OptimizerConfig& config, uint64_t seed) {
  return {.lr = config.learning_rate,
          .beta1 = config.betas.at(0),
          .beta2 = config.betas.at(1),
          .eps = config.eps,
          .weight_decay = config.weight_decay,
          .storage = state_storage(config, seed)};
}

Made make_adamw(const OptimizerConfig& config,
                const nn::Module& /*model*/,
                Groups groups,
                uint64_t seed) {
  return std::make_unique<optim::AdamW>(std::move(groups), adam_options(config, seed));
}

Made make_adam(const OptimizerConfig& config,
               const nn::Module& /*model*/,
               Groups groups,
               uint64_t seed) {
  return std::make_unique<optim::Adam>(std::move(groups), adam_options(config, seed));
}

Made make_sgd(const OptimizerConfig& config,
              const nn::Module& /*model*/,
              Groups groups,
              uint64_t /*seed*/) {
  return std::make_unique<optim::SGD>(std::move(groups),
                                      optim::SGDOptions{.lr = config.learning_rate,
                                                        .momentum = config.momentum,
                                                        .dampening = config.dampening,
                                                        .weight_decay = config.weight_decay,
                                                        .nesterov = config.nesterov});
}

Made make_lion(const OptimizerConfig& config,
               const nn::Module& /*model*/,
               Groups groups,
               uint64_t seed) {
  return std::make_unique<optim::Lion>(std::move(groups),
                                       optim::LionOptions{.lr = config.learning_rate,
                                                          .beta1 = config.betas.at(0),
                                                          .beta2 = config.betas.at(1),
                                                          .weight_decay = config.weight_decay,
                                                          .storage = state_storage(config, seed)});
}

Made make_came(const OptimizerConfig& config,
               const nn::Module& /*model*/,
               Groups groups,
               uint64_t /*seed*/) {
  optim::CameOptions options{.lr = config.learning_rate,
                             .beta1 = config.betas.at(0),
                             .beta3 = config.beta3,
                             .eps1 = config.eps1,
                             .eps2 = config.eps2,
                             .eps3 = config.eps3,
                             .clip_threshold = config.clip_threshold,
                             .scale_parameter = config.scale_parameter,
                             .weight_decay = config.weight_decay};
  if (config.decay_rate) {
    options.decay_rate = *config.decay_rate;
  } else {
    options.beta2 = config.betas.at(1);
  }
  return std::make_unique<optim::Came>(std::move(groups), options);
}

Made make_adafactor(const OptimizerConfig& config,
                    const nn::Module& /*model*/,
                    Groups groups,
                    uint64_t /*seed*/) {
  return std::make_unique<optim::Adafactor>(
      std::move(groups),
      optim::AdafactorOptions{
          .lr = config.learning_rate,
          .scale_parameter = config.scale_parameter,
          .eps1 = config.eps1,
          .eps2 = config.eps2,
          .clip_threshold = config.clip_threshold,
          .decay_rate = config.decay_rate.value(),
          .beta1 = config.momentum > 0 ? std::optional(config.momentum) : std::nullopt,
          .weight_decay = config.weight_decay});
}

// Rows {a, b, c, iterations}, or {a, b, c} for ns_steps.
std::vector<optim::NewtonSchulzSegment> segments_of(const OptimizerConfig& config) {
  std::vector<optim::NewtonSchulzSegment> out;
  for (const std::vector<double>& row : config.ns_coefficients.value_or(FloatTable())) {
    check<ValueError>(row.size() == 3 || row.size() == 4, "ns_coefficients: a row has ", row.size(),
                      " numbers, expected a, b, c, or these and a number of iterations");
    out.push_back({.a = row[0],
                   .b = row[1],
                   .c = row[2],
                   .steps = row.size() == 4 ? static_cast<int64_t>(row[3]) : config.ns_steps});
  }
  return out;
}

void add_row_turns(const nn::Module& module, RowTurns& to) {
  if (const auto* own = dynamic_cast<const HasRowTurns*>(&module)) {
    to.merge(own->row_turns());
  }
  for (const nn::Module::NamedModule& child : module.named_children()) {
    add_row_turns(*child.module, to);
  }
}

Made make_muon(const OptimizerConfig& config,
               const nn::Module& model,
               Groups groups,
               uint64_t seed) {
  optim::MuonOptions options{.lr = config.learning_rate,
                             .momentum = config.momentum,
                             .nesterov = config.nesterov,
                             .ns_steps = config.ns_steps,
                             .coefficients = segments_of(config),
                             .scale = config.adjust_lr == "original"
                                          ? optim::MuonScale::kOriginal
                                          : optim::MuonScale::kMatchRmsAdamW,
                             .matched_adamw_rms = config.matched_adamw_rms,
                             .weight_decay = config.weight_decay,
                             .beta1 = config.betas.at(0),
                             .beta2 = config.betas.at(1),
                             .eps = config.eps,
                             .storage = state_storage(config, seed)};
  if (config.ns_dtype != "auto") {
    options.products = config.ns_dtype == "bfloat16" ? kBFloat16 : kFloat32;
  }
  add_row_turns(model, options.row_turns);
  return std::make_unique<optim::Muon>(std::move(groups), options);
}

// By the names that optimizer_type has.
using Maker = Made (*)(const OptimizerConfig&, const nn::Module&, Groups, uint64_t);
const std::map<std::string, Maker>& makers() {
  static const std::map<std::string, Maker> all = {
      {"AdamW", make_adamw}, {"Adam", make_adam},           {"SGD", make_sgd},  {"Lion", make_lion},
      {"Came", make_came},   {"Adafactor", make_adafactor}, {"Muon", make_muon}};
  return all;
}

// A registered one.
Made make_own(const OptimizerConfig& config, Groups groups, uint64_t seed) {
  size_t given = 0;
  for (const optim::ParamGroup& group : groups) {
    given += group.params.size();
  }
  Made made = ModuleRegistry::get_item<ModuleType::kOptimizer>(config.optimizer_type)(
      std::move(groups), {.learning_rate = config.learning_rate,
                          .weight_decay = config.weight_decay,
                          .options = config.optimizer_kwargs,
                          .seed = seed});
  check<ValueError>(made != nullptr, "optimizer_type ", config.optimizer_type,
                    ": what is registered makes no optimizer");
  size_t taken = 0;
  for (const optim::ParamGroup& group : made->param_groups()) {
    taken += group.params.size();
  }
  check<ValueError>(taken == given, "optimizer_type ", config.optimizer_type,
                    ": what is registered makes an optimizer of ", taken,
                    " parameters, given were ", given);
  return made;
}

Made make_optimizer(const OptimizerConfig& config,
                    const nn::Module& model,
                    Groups groups,
                    uint64_t seed) {
  for (optim::ParamGroup& group : groups) {
    group.lr = config.learning_rate * group.lr_mult;
  }
  const auto found = makers().find(config.optimizer_type);
  if (found == makers().end() &&
      ModuleRegistry::has_item(ModuleType::kOptimizer, config.optimizer_type)) {
    return make_own(config, std::move(groups), seed);
  }
  if (found == makers().end()) {
    std::string known;
    for (const auto& [name, make] : makers()) {
      known += concat(known.empty() ? "" : ", ", name);
    }
    for (const std::string& name : config::registered_names(ModuleType::kOptimizer)) {
      known += ", " + name;
    }
    throw ValueError(
        concat("optimizer_type '", config.optimizer_type, "' is not known; choose one of ", known));
  }
  return found->second(config, model, std::move(groups), seed);
}

// The optimizer of complete groups, with parameters in the dtypes that are configured.
std::unique_ptr<optim::Optimizer> finished_optimizer(const AllConfig& config,
                                                     const nn::Module& model,
                                                     std::vector<optim::ParamGroup> groups,
                                                     const DistributedDataParallel* data_parallel) {
  const DType params = config.model_config.params_dtype;
  const bool remainders = config.optimizer_config.store_param_remainders;
  auto optimizer = make_optimizer(config.optimizer_config, model, std::move(groups),
                                  static_cast<uint64_t>(config.training_config.seed));
  if (updates_pieces(data_parallel)) {
    for (const ParameterPiece& piece : data_parallel->pieces()) {
      if (piece.place.dtype() != piece.values.dtype()) {
        optimizer->store_parameter_as(piece.name, piece.place.dtype(), piece.place);
      }
    }
    optimizer->set_shards(data_parallel->shards());
  } else {
    for (const nn::Module::NamedParameter& entry : model.trained_parameters()) {
      const bool split = remainders && entry.parameter->flags().matmul;
      const DType stored = trained_dtype(*entry.parameter, params);
      if (entry.parameter->dtype() == kFloat32 && (stored != kFloat32 || split)) {
        optimizer->store_parameter_as(entry.name, stored != kFloat32 ? stored : kBFloat16);
      }
    }
  }
  store_frozen(model, params);
  optimizer->set_fixed(frozen_parameters(model));
  optimizer->set_layout(model_layout(model, data_parallel));
  // What start values were made in, and the float32 weights that were.
  RankContext::current().allocator().release_cache();
  return optimizer;
}

}  // namespace

std::unique_ptr<optim::Optimizer> get_optimizer(const AllConfig& config,
                                                const nn::Module& model,
                                                const DistributedDataParallel* data_parallel) {
  return finished_optimizer(config, model, configured_groups(config, model, data_parallel),
                            data_parallel);
}

std::unique_ptr<optim::Optimizer> get_optimizer(const AllConfig& config,
                                                const nn::Module& model,
                                                std::vector<optim::ParamGroup> groups,
                                                const DistributedDataParallel* data_parallel) {
  return finished_optimizer(config, model,
                            completed_groups(config, model, std::move(groups), data_parallel),
                            data_parallel);
}

std::optional<optim::LearningRateSchedulerOptions> learning_rate_scheduler_options(
    const AllConfig& config) {
  const OptimizerConfig& o = config.optimizer_config;
  if (!o.learning_rate_scheduler_kwargs) {
    return std::nullopt;
  }
  const LearningRateSchedulerConfig& k = *o.learning_rate_scheduler_kwargs;
  return optim::LearningRateSchedulerOptions{.learning_rate = o.learning_rate,
                                             .end_learning_rate = k.end_learning_rate,
                                             .warmup_steps = k.warmup_steps,
                                             .decay_steps = k.decay_steps,
                                             .power = k.power,
                                             .use_cosine = k.use_cosine,
                                             .weight_decay = o.weight_decay};
}

std::optional<OptimizerParamSchedulerOptions> param_scheduler_options(const AllConfig& config,
                                                                      int64_t data_parallel_size) {
  const OptimizerConfig& o = config.optimizer_config;
  // Where only `epochs` limits the run there is no length to stretch a schedule over.
  if (o.learning_rate_scheduler_kwargs || own_schedule(config, data_parallel_size) ||
      total_training_iters(config, data_parallel_size) == 0) {
    return std::nullopt;
  }
  return OptimizerParamSchedulerOptions{
      .learning_rate = o.learning_rate,
      .min_lr = o.min_lr,
      .lr_warmup_init = o.lr_warmup_init,
      .lr_decay_style = o.lr_decay_style.value_or("constant"),
      .lr_wsd_decay_style = o.lr_wsd_decay_style,
      .weight_decay = o.weight_decay,
      .start_weight_decay = o.start_weight_decay,
      .end_weight_decay = o.end_weight_decay,
      .weight_decay_incr_style = o.weight_decay_incr_style,
      .lr_warmup_fraction = o.lr_warmup_fraction,
      .lr_num_cycles = o.lr_num_cycles,
      .lr_decay_power = o.lr_decay_power,
      .final_lr = o.final_lr,
      .lr_keep_iters = o.lr_keep_iters,
      .lr_final_iters = o.lr_final_iters,
      .lr_restart_iters = o.lr_restart_iters,
      .lr_restart_mult = o.lr_restart_mult,
      .global_batch_size = global_batch_size(config, data_parallel_size),
      .training_iters = config.training_config.training_iters,
      .lr_warmup_iters = o.lr_warmup_iters,
      .lr_decay_iters = o.lr_decay_iters,
      .lr_wsd_decay_iters = o.lr_wsd_decay_iters,
      .train_samples = config.dataset_config.train_samples,
      .lr_warmup_samples = o.lr_warmup_samples,
      .lr_decay_samples = o.lr_decay_samples,
      .lr_wsd_decay_samples = o.lr_wsd_decay_samples};
}

std::unique_ptr<optim::Schedule> get_optimizer_param_scheduler(const AllConfig& config,
                                                               int64_t data_parallel_size) {
  if (const auto by_updates = learning_rate_scheduler_options(config)) {
    return std::make_unique<optim::LearningRateScheduler>(*by_updates);
  }
  if (const auto own = own_schedule(config, data_parallel_size)) {
    return make_own_schedule(*own);
  }
  if (const auto by_samples = param_scheduler_options(config, data_parallel_size)) {
    return std::make_unique<OptimizerParamScheduler>(*by_samples);
  }
  return std::make_unique<optim::ConstantSchedule>(config.optimizer_config.learning_rate,
                                                   config.optimizer_config.weight_decay);
}

optim::GradScaler get_grad_scaler(const AllConfig& config) {
  const TrainingConfig& t = config.training_config;
  if (t.loss_scale) {
    return optim::GradScaler(*t.loss_scale);
  }
  if (config.model_config.compute_dtype == kFloat16 && t.loss_scale_value && t.loss_scale_factor &&
      t.loss_scale_window) {
    return {*t.loss_scale_value, static_cast<double>(*t.loss_scale_factor), *t.loss_scale_window};
  }
  return optim::GradScaler();
}

}  // namespace tapestry
