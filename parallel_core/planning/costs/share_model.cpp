#include "parallel_core/planning/costs/share_model.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <vector>

#include "autograd/tensor/error.h"
#include "parallel_core/config/init_configs.h"
#include "parallel_core/config/model_matrices.h"
#include "parallel_core/config/show/render.h"

namespace tapestry::planning {

namespace {

// Layers beyond one of each kind: with fewer, weights and activations would stay in caches that
// they do not stay in otherwise.
constexpr int64_t kLeastLayers = 3;
// Where a step has several: gradients are written by the first and added to by the others.
constexpr int64_t kMicroBatches = 2;

bool are_alike(const TransformerConfig& model, int64_t a, int64_t b) {
  return is_moe_layer(model, a) == is_moe_layer(model, b) &&
         mixer_kind(model, a) == mixer_kind(model, b) &&
         has_window(model, a) == has_window(model, b) &&
         kv_channels(model, a) == kv_channels(model, b) &&
         num_query_groups(model, a) == num_query_groups(model, b) &&
         ffn_hidden_size(model, a) == ffn_hidden_size(model, b);
}

int64_t layers_of_share(const TransformerConfig& model) {
  int64_t count = std::min(kLeastLayers, model.num_layers);
  for (int64_t layer = count; layer < model.num_layers; ++layer) {
    bool is_new = true;
    for (int64_t before = 0; before < count && is_new; ++before) {
      is_new = !are_alike(model, before, layer);
    }
    count = is_new ? layer + 1 : count;
  }
  return count;
}

class Overrides {
 public:
  void set(std::string_view key, const std::string& value) {
    all_.push_back(concat(key, "=", value));
  }
  void set(std::string_view key, int64_t value) { set(key, std::to_string(value)); }
  template <class T>
  void cut(std::string_view key, const std::vector<T>& values, int64_t count) {
    std::string list = "[";
    for (int64_t i = 0; i < count; ++i) {
      list += concat(i == 0 ? "" : ", ", values[static_cast<size_t>(i)]);
    }
    set(key, list + "]");
  }
  std::vector<std::string> take() { return std::move(all_); }

 private:
  std::vector<std::string> all_;
};

void cut_layers(const TransformerConfig& model, int64_t layers, Overrides& overrides) {
  overrides.set("model_config.num_layers", layers);
  if (model.layer_types) {
    overrides.cut("model_config.layer_types", *model.layer_types, layers);
  }
  if (model.no_rope_layers) {
    overrides.cut("model_config.no_rope_layers", *model.no_rope_layers, layers);
  }
  if (model.moe.num_experts > 1 && model.moe.moe_layer_freq.size() > 1) {
    overrides.cut("moe_config.moe_layer_freq", model.moe.moe_layer_freq, layers);
  }
}

// How the ranks of one stage of the pipeline divide its work, with so many copies of the model.
ModelParallelConfig stage_of(const AllConfig& config, int64_t copies, bool shares_out) {
  const ModelParallelConfig& given = config.parallel_config;
  ModelParallelConfig stage;
  stage.tensor_model_parallel_size = given.tensor_model_parallel_size;
  stage.context_parallel_size = given.context_parallel_size;
  stage.data_parallel_size = copies;
  stage.expert_model_parallel_size = given.expert_model_parallel_size;
  stage.expert_tensor_parallel_size = given.expert_tensor_parallel_size;
  stage.sequence_parallel = given.sequence_parallel;
  stage.recompute_config = given.recompute_config;
  if (const int level = zero_level(config); level > 0 && shares_out) {
    stage.zero_level = concat("z", level);
  }
  return stage;
}

// The run without what belongs to its beginning and end, and to its data.
AllConfig plain_run(const AllConfig& config) {
  AllConfig plain = config;
  plain.training_config = {};
  plain.training_config.training_iters = 1;
  plain.training_config.seed = 1;
  plain.training_config.exact = config.training_config.exact;
  plain.training_config.grad_clip_kwargs = config.training_config.grad_clip_kwargs;
  plain.dataset_config = {};
  plain.dataset_config.batch_size = config.dataset_config.batch_size;
  plain.dataset_config.micro_batch_num =
      std::min(kMicroBatches, config.dataset_config.micro_batch_num);
  plain.dataset_config.data_layout = config.dataset_config.data_layout;
  plain.model_config.from_hf.reset();
  plain.model_config.hf_model_type.reset();
  plain.moe_config.upcycle_from.reset();
  plain.model_config.moe.upcycle_from.reset();
  plain.lora_config.adapter.reset();
  plain.model_config.lora.adapter.reset();
  plain.post_training_config = {};
  plain.tensorboard = {};
  plain.monitor_config = {};
  plain.optimizer_config = {};
  OptimizerConfig& optimizer = plain.optimizer_config;
  const OptimizerConfig& given = config.optimizer_config;
  optimizer.optimizer_type = given.optimizer_type;
  optimizer.optimizer_kwargs = given.optimizer_kwargs;
  optimizer.clip_grad = given.clip_grad;
  optimizer.momentum = given.momentum;
  optimizer.ns_steps = given.ns_steps;
  optimizer.ns_dtype = given.ns_dtype;
  optimizer.exp_avg_dtype = given.exp_avg_dtype;
  optimizer.exp_avg_sq_dtype = given.exp_avg_sq_dtype;
  optimizer.main_grads_dtype = given.main_grads_dtype;
  optimizer.store_param_remainders = given.store_param_remainders;
  optimizer.optimizer_in_backward = given.optimizer_in_backward;
  return plain;
}

// What of an optimizer its time depends on.
constexpr std::string_view kOfOptimizer[] = {
    "optimizer_type", "exp_avg_dtype",          "exp_avg_sq_dtype",     "main_grads_dtype",
    "ns_steps",       "store_param_remainders", "optimizer_in_backward"};

std::string key_of(const AllConfig& config) {
  std::string key = concat(
      "batch_size=", config.dataset_config.batch_size, " x ", config.dataset_config.micro_batch_num,
      config.training_config.exact ? " exact" : "", gradient_clipping(config) ? " clip" : "");
  for (const ResolvedKey& entry : resolved_keys(config)) {
    const bool counts = entry.section == "model_config" || entry.section == config.model_section ||
                        entry.section == "moe_config" || entry.section == "lora_config" ||
                        (entry.section == "optimizer_config" &&
                         std::find(std::begin(kOfOptimizer), std::end(kOfOptimizer), entry.key) !=
                             std::end(kOfOptimizer)) ||
                        entry.section == "parallel_config";
    if (counts && entry.origin != "default" && !entry.value.empty()) {
      key += concat(" ", entry.key, "=", entry.value);
    }
  }
  return key;
}

// Copies of the model that the experts of a layer are spread over.
int64_t least_copies(const Layout& layout) {
  const ModelParallelConfig& p = layout.config.parallel_config;
  const int64_t dense = p.tensor_model_parallel_size * p.context_parallel_size;
  const int64_t experts = p.expert_model_parallel_size * expert_tensor_parallel_size(p);
  return layout.config.model_config.moe.num_experts > 1 ? std::lcm(dense, experts) / dense : 1;
}

}  // namespace

ShareModel share_model(const Layout& layout, bool has_all_copies) {
  const AllConfig& config = layout.config;
  ShareModel share;
  share.copies = has_all_copies ? layout.data_parallel_size : least_copies(layout);
  share.has_all_copies = has_all_copies;
  AllConfig plain = plain_run(config);
  plain.parallel_config = stage_of(config, share.copies, has_all_copies);
  plain.training_config.use_distributed_optimizer = plain.parallel_config.zero_level.has_value();
  if (has_all_copies) {
    plain.training_config.wrap_with_ddp = config.training_config.wrap_with_ddp;
    plain.training_config.overlap_grad_reduce = config.training_config.overlap_grad_reduce;
    plain.training_config.bucket_size = config.training_config.bucket_size;
    plain.optimizer_config.overlap_param_gather = config.optimizer_config.overlap_param_gather;
  }
  Overrides overrides;
  cut_layers(config.model_config, layers_of_share(config.model_config), overrides);
  share.config =
      init_configs_from_text(resolved_yaml(plain), "the share of a stage",
                             {.model_type = config.model_section, .overrides = overrides.take()});
  share.key = key_of(share.config);
  return share;
}

int64_t ShareModel::ranks() const {
  const ModelParallelConfig& p = config.parallel_config;
  return p.tensor_model_parallel_size * p.context_parallel_size * copies;
}

int64_t layer_of_share(const TransformerConfig& model,
                       const TransformerConfig& share,
                       int64_t layer) {
  for (int64_t candidate = 0; candidate < share.num_layers; ++candidate) {
    if (are_alike(model, candidate, layer)) {
      return candidate;
    }
  }
  return 0;
}

}  // namespace tapestry::planning
