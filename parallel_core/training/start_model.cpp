#include <optional>
#include <string>
#include <vector>

#include "autograd/ops/map.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tape/leaf_state.h"
#include "autograd/tensor/error.h"
#include "parallel_core/deferred_values.h"
#include "parallel_core/dist_checkpointing/upcycle.h"
#include "parallel_core/distributed/distributed_data_parallel.h"
#include "parallel_core/frozen_parameters.h"
#include "parallel_core/lora/freeze_base.h"
#include "parallel_core/lora/quantize_base.h"
#include "parallel_core/optimizer/get_optimizer.h"
#include "parallel_core/parameter_ranks.h"
#include "parallel_core/training/log/logging.h"
#include "parallel_core/training/log/parameter_rules_log.h"
#include "parallel_core/training/ranks/equal_configurations.h"
#include "parallel_core/training/ranks/placement.h"
#include "parallel_core/training/start_summary.h"
#include "parallel_core/training/starting_run.h"
#include "parallel_core/training/step/given_state.h"
#include "text/util/numbers.h"

namespace tapestry {

namespace {

// A frozen base has one copy in params_dtype from the start: its float32 start values come and go
// one by one, and not at all where weights are loaded.
std::unique_ptr<ParallelModel> make_adapted_model(const AllConfig& config, bool is_loaded) {
  const DType params = config.model_config.params_dtype;
  const std::optional<BlockFormat> blocks = kernels::block_format(config.lora_config.base_dtype);
  if (params == kFloat32 && !is_loaded && !blocks) {
    return get_model(config);
  }
  const DeferInitialValues deferred(DeferInitialValues::Values::kInitial);
  std::unique_ptr<ParallelModel> model = get_model(config);
  const NoGradGuard guard;
  if (blocks) {
    quantize_base(*model, {.format = *blocks, .values_come_later = is_loaded});
  }
  if (is_loaded) {
    clear_frozen(*model, params);
  } else {
    store_frozen(*model, params);
  }
  for (const nn::Module::NamedParameter& entry : model->trained_parameters()) {
    set_data(*entry.parameter, dense_copy(entry.parameter->detach()));
  }
  return model;
}

std::unique_ptr<ParallelModel> make_model(const AllConfig& config,
                                          const PretrainOptions& options,
                                          bool in_pieces,
                                          bool all_are_loaded) {
  if (config.lora_config.use_lora) {
    check<ValueError>(
        !options.model,
        "lora_config.use_lora: a model of one's own has no adapters; set it to False");
    return make_adapted_model(config, all_are_loaded);
  }
  std::optional<DeferInitialValues> deferred;
  if (in_pieces) {
    deferred.emplace(all_are_loaded ? DeferInitialValues::Values::kZeros
                                    : DeferInitialValues::Values::kInitial);
  }
  return options.model ? get_model(options.model, config) : get_model(config);
}

// Loads into a model that this rank holds as a whole, or its share of it by other means than z3.
void load_run_weights(const StartingRun& run) {
  const RunWeights& weights = run.weights;
  const AdapterRun& adapter = weights.adapter;
  if (!weights.in_pieces && weights.upcycles) {
    load_upcycled(*run.model, run.config.model_config, weights.path);
  } else if (!weights.in_pieces) {
    TransformerConfig loaded = run.config.model_config;
    if (adapter.on && !adapter.base.path.empty()) {
      loaded.from_hf = adapter.base.path;
    }
    load_weights(*run.model, loaded, weights.path);
  }
  log_info(concat("loaded ", weights.path,
                  weights.upcycles ? ": experts are copies of the MLPs of this dense model" : ""));
  if (adapter.on && adapter.adapter != weights.path && !adapter.adapter.empty()) {
    log_info(concat("the adapter starts as that in ", adapter.adapter));
  } else if (adapter.on && !adapter.adapter.empty()) {
    log_info(adapter.base.path.empty()
                 ? std::string("the adapter's base has the start values of this seed")
                 : concat("the adapter's base is ", adapter.base.path));
  }
  const std::string remark = other_tokenizer_remark(run.config, run.data, weights.path);
  if (!remark.empty()) {
    log_warning(remark);
  }
}

// Weights that come as values, from a program that compares runs for example.
void take_given_weights(const StartingRun& run) {
  const PretrainOptions& options = run.options;
  check<ValueError>(!run.resume, options.start_weights_name,
                    ": a run that goes on with a checkpoint has weights already; set "
                    "training_config.resume_training: False, or do not give others");
  set_weights(*run.model, *run.optimizer, options.start_weights(), options.start_weights_name);
  if (run.data_parallel != nullptr) {
    run.data_parallel->parameters_changed();
  }
  log_info("weights are those of " + options.start_weights_name);
}

}  // namespace

void make_run_model(StartingRun& run) {
  const RunWeights& weights = run.weights;
  const AdapterRun& adapter = weights.adapter;
  const bool all_are_loaded = !weights.path.empty() && !weights.upcycles && adapter.loads_base();
  const bool new_head =
      all_are_loaded && !run.options.model && adapter.adapter.empty() &&
      starts_score_head(run.config.model_config, adapter.on ? adapter.base.path : weights.path);
  run.model = make_model(run.config, run.options, weights.in_pieces, all_are_loaded && !new_head);
  if (new_head) {
    log_info(concat("score.weight is new: ", run.config.model_config.hidden_size,
                    " numbers of the seed's start values (init_method_std ",
                    number_text(run.config.model_config.init_method_std),
                    "), as the weights are of a language model"));
  }
  if (!weights.path.empty()) {
    load_run_weights(run);
  }
  if (weights.path.empty() && !adapter.adapter.empty()) {
    load_adapter(*run.model, run.config.model_config, adapter.adapter);
    log_info(concat("the adapter starts as that in ", adapter.adapter));
  } else if (adapter.on && adapter.adapter.empty()) {
    start_magnitudes(*run.model);
  }
}

void log_summary(const StartingRun& run, const std::string& time) {
  const PretrainOptions& options = run.options;
  const ParallelModel& model = *run.model;
  const std::string own_model = options.model
                                    ? concat(model.type_name(), ", this rank holds ",
                                             with_thousands(model.num_parameters()), " parameters")
                                    : std::string();
  if (options.model || model.stage().size > 1) {
    log_detail(concat("model: this rank holds ", model.num_parameters(), " parameters"));
  }
  const std::vector<RankPlacement> placements =
      gather_placements(*options.world, RankPlacement::own());
  for (const std::string& line : placement_lines(placements)) {
    log_detail(line);
  }
  log_lines(start_summary(run.config, run.data,
                          {.own_model = own_model,
                           .ranks = options.world->size(),
                           .ranks_on_host = options.ranks_on_host,
                           .available = run.available,
                           .progress_text = options.progress_text,
                           .time = time,
                           .placements = placements}),
            log_info);
  for (const std::string& warning : placement_warnings(placements)) {
    log_warning(warning);
  }
}

void make_run_optimizer(StartingRun& run) {
  const AllConfig& config = run.config;
  const RunWeights& weights = run.weights;
  ParallelModel& model = *run.model;
  check_equal_parameters(model, copies_group(/*of_expert=*/false));
  run.data_parallel = get_data_parallel(config, model);
  run.optimizer =
      run.options.param_groups
          ? get_optimizer(config, model, run.options.param_groups(model), run.data_parallel.get())
          : get_optimizer(config, model, run.data_parallel.get());
  log_parameter_rules(config, model);
  if (weights.in_pieces && !weights.path.empty()) {
    if (weights.upcycles) {
      load_upcycled(model, config.model_config, weights.path, run.optimizer.get());
    } else {
      load_own_weights(model, config.model_config, weights.path, *run.optimizer);
    }
    run.data_parallel->parameters_changed();
  }
  if (run.options.start_weights) {
    take_given_weights(run);
  }
}

}  // namespace tapestry
