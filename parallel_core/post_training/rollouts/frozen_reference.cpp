#include "parallel_core/post_training/rollouts/frozen_reference.h"

#include <numeric>
#include <optional>
#include <vector>

#include "autograd/tensor/error.h"
#include "parallel_core/dist_checkpointing/adapter_folder.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/inference/open_model.h"
#include "parallel_core/post_training/reference/score_sequences.h"
#include "parallel_core/tensor_parallel/low_rank.h"
#include "parallel_core/training/step/get_model.h"

namespace tapestry::post_training {

namespace {

// The values that training starts with where nothing is loaded.
std::unique_ptr<ParallelModel> initial_model(const AllConfig& config) {
  std::unique_ptr<ParallelModel> model = get_model(config);
  for (const nn::Module::NamedParameter& entry : model->named_parameters()) {
    entry.parameter->set_requires_grad(false);
  }
  model->eval();
  return model;
}

}  // namespace

FrozenReference::FrozenReference(const AllConfig& config, const ModelBeforeTraining& model)
    : config_(config) {
  const std::string reference = config.post_training_config.reference.value_or("");
  const bool adapts = config.lora_config.use_lora;
  check<ValueError>(adapts || reference != "adapter_off",
                    "post_training_config.reference adapter_off: the run has no adapter; name a "
                    "folder, or leave it out for the model as it was at the start");
  const StartWeights start = start_weights(config);
  check<ValueError>(!reference.empty() || !start.dense,
                    "post_training_config.reference: name the folder of a mixture; the start of "
                    "this run is a dense model, of which the mixture is made");
  if (adapts && (reference == "adapter_off" ||
                 (reference.empty() && !config.lora_config.adapter.has_value()))) {
    policy_ = &model.model;
    is_off_ = true;
    description_ = "the model with its adapter off";
    return;
  }
  const std::string named = reference.empty() ? start.path : reference;
  const std::string path = named.empty() ? named : resolve_checkpoint(named);
  check<ValueError>(path.empty() || !reference.empty() || path != model.checkpoint,
                    "training_config.load_checkpoint ", named,
                    ": is where the run goes on, so that the model as it was at its start is not "
                    "known; name its folder as post_training_config.reference");
  is_off_ = adapts && !path.empty() && !reference.empty() && !holds_adapter(path);
  if (path.empty()) {
    own_ = initial_model(config);
  } else {
    AllConfig of_reference = config;
    of_reference.model_config.from_hf = path;
    own_ = model_without_weights(of_reference);
    load_weights(*own_, of_reference.model_config, path);
  }
  description_ = concat("a second model in memory, ", path.empty() ? "of the start values" : path);
}

FrozenReference::~FrozenReference() = default;

CompletionValues FrozenReference::log_probs(const SequenceSet& completions,
                                            const RowRoom& room) const {
  std::vector<int64_t> numbers(static_cast<size_t>(completions.size()));
  std::iota(numbers.begin(), numbers.end(), int64_t{0});
  LogProbTable table(completions);
  std::optional<AdaptersOff> off;
  if (is_off_) {
    off.emplace();
  }
  score_shared(policy_ != nullptr ? *policy_ : *own_, completions, numbers,
               {.room = room,
                .rows = config_.dataset_config.batch_size,
                .temperature = config_.post_training_config.temperature,
                .overlap_p2p = config_.parallel_config.overlap_p2p_comm},
               table);
  CompletionValues values;
  for (int64_t i = 0; i < completions.size(); ++i) {
    const std::span<const float> tokens = table.tokens(i);
    values.add(std::vector<double>(tokens.begin(), tokens.end()));
  }
  return values;
}

}  // namespace tapestry::post_training
