#include "parallel_core/planning/costs/share_model.h"

#include <algorithm>
#include <set>
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
  // Divides what ranks share out.
  void divide(std::string_view key, int64_t value, int64_t ranks) {
    check<ValueError>(value % ranks == 0, key, ": ", value, " is not divided by ", ranks, " ranks");
    if (ranks > 1) {
      set(key, value / ranks);
    }
  }
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

void divide_widths(const AllConfig& config, Overrides& overrides) {
  const TransformerConfig& model = config.model_config;
  const int64_t tp = config.parallel_config.tensor_model_parallel_size;
  overrides.divide("model_config.num_attention_heads", model.num_attention_heads, tp);
  if (model.kv_channels) {
    overrides.set("model_config.kv_channels", *model.kv_channels);
  }
  if (model.num_query_groups != model.num_attention_heads) {
    overrides.set("model_config.num_query_groups",
                  std::max<int64_t>(1, model.num_query_groups / tp));
  }
  overrides.divide("model_config.ffn_hidden_size", model.ffn_hidden_size, tp);
  overrides.set("model_config.vocab_size", (model.vocab_size + tp - 1) / tp);
  if (has_mixer(model, MixerKind::kGatedDelta)) {
    const LinearAttentionConfig& mixer = model.linear_attention;
    overrides.divide("model_config.linear_attention.num_key_heads", mixer.num_key_heads, tp);
    overrides.divide("model_config.linear_attention.num_value_heads", mixer.num_value_heads, tp);
  }
  if (has_mixer(model, MixerKind::kMamba)) {
    const MambaConfig& mixer = model.mamba;
    overrides.divide("model_config.mamba.num_heads", mixer.num_heads.value_or(tp), tp);
    overrides.set("model_config.mamba.num_groups", std::max<int64_t>(1, mixer.num_groups / tp));
  }
}

void divide_experts(const AllConfig& config, Overrides& overrides) {
  const TransformerConfig& model = config.model_config;
  const MoEConfig& moe = model.moe;
  if (moe.num_experts <= 1) {
    return;
  }
  const ModelParallelConfig& p = config.parallel_config;
  const int64_t slices = expert_tensor_parallel_size(p);
  // Tokens come from all ranks with other experts, each for as many experts as before.
  overrides.set("moe_config.num_experts",
                std::max(moe.num_experts / p.expert_model_parallel_size, moe.moe_router_topk));
  overrides.divide("moe_config.moe_ffn_hidden_size", moe_ffn_hidden_size(model), slices);
  if (moe.moe_shared_expert_intermediate_size) {
    overrides.divide("moe_config.moe_shared_expert_intermediate_size",
                     *moe.moe_shared_expert_intermediate_size, p.tensor_model_parallel_size);
  }
}

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

// The run without what belongs to ranks, to its beginning and end, and to its data.
AllConfig plain_run(const AllConfig& config) {
  AllConfig plain = config;
  const std::optional<RecomputeConfig> recompute = config.parallel_config.recompute_config;
  plain.parallel_config = {};
  plain.parallel_config.recompute_config = recompute;
  plain.training_config = {};
  plain.training_config.training_iters = 1;
  plain.training_config.seed = 1;
  plain.training_config.exact = config.training_config.exact;
  plain.training_config.grad_clip_kwargs = config.training_config.grad_clip_kwargs;
  plain.dataset_config = {};
  plain.dataset_config.batch_size = config.dataset_config.batch_size;
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
  std::string key = concat("batch_size=", config.dataset_config.batch_size,
                           config.training_config.exact ? " exact" : "",
                           gradient_clipping(config) ? " clip" : "");
  for (const ResolvedKey& entry : resolved_keys(config)) {
    const bool counts = entry.section == "model_config" || entry.section == config.model_section ||
                        entry.section == "moe_config" || entry.section == "lora_config" ||
                        (entry.section == "optimizer_config" &&
                         std::find(std::begin(kOfOptimizer), std::end(kOfOptimizer), entry.key) !=
                             std::end(kOfOptimizer)) ||
                        entry.key.starts_with("recompute_config");
    if (counts && entry.origin != "default" && !entry.value.empty()) {
      key += concat(" ", entry.key, "=", entry.value);
    }
  }
  return key;
}

}  // namespace

ShareModel share_model(const Layout& layout) {
  const AllConfig& config = layout.config;
  const TransformerConfig& model = config.model_config;
  Overrides overrides;
  divide_widths(config, overrides);
  divide_experts(config, overrides);
  cut_layers(model, layers_of_share(model), overrides);
  overrides.divide("model_config.seq_length", model.seq_length,
                   config.parallel_config.context_parallel_size);
  const AllConfig plain = plain_run(config);
  ShareModel share;
  share.config =
      init_configs_from_text(resolved_yaml(plain), "the share of a rank",
                             {.model_type = config.model_section, .overrides = overrides.take()});
  share.key = key_of(share.config);
  return share;
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
