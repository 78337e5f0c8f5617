#include <map>
#include <string>

#include "autograd/ops/map.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/error.h"
#include "parallel_core/deferred_values.h"
#include "parallel_core/dist_checkpointing/adapter_folder.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/dist_checkpointing/checkpoint_folder.h"
#include "parallel_core/dist_checkpointing/upcycle.h"
#include "parallel_core/distributed/distributed_data_parallel.h"
#include "parallel_core/training/log/logging.h"
#include "parallel_core/training/starting_run.h"
#include "parallel_core/training/step/get_model.h"

namespace tapestry {

namespace {

// Other weights in a run's model for a while.
class OtherWeights {
 public:
  explicit OtherWeights(StartingRun& run) : run_(run) {}

  void load(const std::string& path) {
    const StartWeights start = start_weights(run_.config);
    if (!path.empty()) {
      load_from(resolve_checkpoint(path), /*is_dense=*/false);
    } else if (!start.path.empty()) {
      check_start(start);
      load_from(resolve_checkpoint(start.path), start.dense);
    } else if (is_changed_ || run_.resume) {
      load_start_values();
    }
  }

  void bring_back() {
    if (!is_changed_) {
      return;
    }
    const RunWeights& weights = run_.weights;
    if (weights.path.empty() || weights.upcycles) {
      load_start_values();  // of upcycled ones what the dense model does not have
    }
    if (!weights.path.empty()) {
      load_files(weights.path, weights.upcycles);
    }
    for (const auto& [name, values] : adapters_) {
      const nn::Parameter& parameter = *trained_.at(name);
      copy_values(values, parameter.detach());
      parameter.bump_version();
    }
  }

 private:
  // A run that goes on knows its start unless load_checkpoint has taken its place.
  void check_start(const StartWeights& start) const {
    if (run_.resume) {
      check<ValueError>(resolve_checkpoint(start.path) != run_.resume->checkpoint,
                        "training_config.load_checkpoint ", start.path,
                        ": is where the run goes on, so that the model as it was at its start is "
                        "not known; name its folder as post_training_config.reference");
    }
  }

  void load_from(const std::string& path, bool is_dense) {
    verify_weights(path, run_.config.training_config.crc_check, *run_.options.world);
    keep_adapters();
    is_changed_ = true;
    load_files(path, is_dense);
  }

  void load_files(const std::string& path, bool is_dense) {
    TransformerConfig config = run_.config.model_config;
    if (run_.weights.adapter.on) {
      // Of an adapter's folder the base is the run's; any other is a base itself.
      config.from_hf = holds_adapter(path) && !run_.weights.adapter.base.path.empty()
                           ? run_.weights.adapter.base.path
                           : path;
    }
    if (run_.weights.in_pieces) {
      if (is_dense) {
        load_upcycled(*run_.model, config, path, run_.optimizer.get());
      } else {
        load_own_weights(*run_.model, config, path, *run_.optimizer);
      }
      run_.data_parallel->parameters_changed();
    } else if (is_dense) {
      load_upcycled(*run_.model, config, path);
    } else {
      load_weights(*run_.model, config, path);
    }
  }

  // What no file has, or not the one that the base comes from.
  void keep_adapters() {
    if (!run_.weights.adapter.on || !trained_.empty()) {
      return;
    }
    for (const nn::Module::NamedParameter& entry : run_.model->trained_parameters()) {
      trained_.emplace(entry.name, entry.parameter);
      adapters_.emplace(entry.name, dense_copy(entry.parameter->detach()));
    }
  }

  // The values of the seed, one parameter after the other.
  void load_start_values() {
    check<ValueError>(!run_.weights.in_pieces && !run_.weights.adapter.on && !run_.options.model,
                      "post_training_config.reference: the run began with the start values of its "
                      "seed, which come back in a whole model of the library alone, not with "
                      "parallel_config.zero_level z3 or adapters; begin with weights in files "
                      "(model_config.from_hf, training_config.load_checkpoint)");
    is_changed_ = true;
    std::map<std::string, const nn::Parameter*> own;
    for (const nn::Module::NamedParameter& entry : run_.model->named_parameters()) {
      own.emplace(entry.name, entry.parameter);
    }
    const DeferInitialValues deferred(DeferInitialValues::Values::kInitial);
    const auto fresh = get_model(run_.config);
    for (const nn::Module::NamedParameter& entry : fresh->named_parameters()) {
      const nn::Parameter& parameter = *own.at(entry.name);
      const Tensor flat = parameter.detach().view({-1});
      for_start_values(entry.parameter->detach(), 1, [&](int64_t first, const Tensor& values) {
        copy_values(values, flat.slice(0, first, first + values.numel()));
      });
      parameter.bump_version();
    }
    std::map<std::string, Tensor> buffers;
    for (const nn::Module::NamedBuffer& entry : run_.model->named_buffers()) {
      buffers.emplace(entry.name, entry.buffer);
    }
    for (const nn::Module::NamedBuffer& entry : fresh->named_buffers()) {
      copy_values(entry.buffer, buffers.at(entry.name));
    }
  }

  StartingRun& run_;
  bool is_changed_ = false;
  std::map<std::string, const nn::Parameter*> trained_;
  std::map<std::string, Tensor> adapters_;
};

}  // namespace

void prepare_task(StartingRun& run) {
  if (run.task == nullptr) {
    return;
  }
  OtherWeights others(run);
  run.task->prepare(run.config, {.model = *run.model,
                                 .checkpoint = run.resume ? run.resume->checkpoint : std::string(),
                                 .load = [&](const std::string& path) { others.load(path); }});
  const NoGradGuard guard;
  others.bring_back();
}

}  // namespace tapestry
