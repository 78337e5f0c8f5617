#include "parallel_core/config/config.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "parallel_core/config/batch_rampup.h"
#include "parallel_core/config/registered_names.h"

namespace tapestry {
namespace {

std::string joined_lines(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) {
    text += (text.empty() ? "" : "\n") + line;
  }
  return text;
}

}  // namespace

ConfigError::ConfigError(std::vector<std::string> findings)
    : ValueError(joined_lines(findings)), findings_(std::move(findings)) {}

TransformerConfig::TransformerConfig() = default;
TransformerConfig::TransformerConfig(const TransformerConfig& other) = default;
TransformerConfig::TransformerConfig(TransformerConfig&& other) noexcept = default;
TransformerConfig& TransformerConfig::operator=(const TransformerConfig& other) = default;
TransformerConfig& TransformerConfig::operator=(TransformerConfig&& other) noexcept = default;
TransformerConfig::~TransformerConfig() = default;

AllConfig::AllConfig() = default;
AllConfig::AllConfig(const AllConfig& other) = default;
AllConfig::AllConfig(AllConfig&& other) noexcept = default;
AllConfig& AllConfig::operator=(const AllConfig& other) = default;
AllConfig& AllConfig::operator=(AllConfig&& other) noexcept = default;
AllConfig::~AllConfig() = default;

bool AllConfig::same_values(const AllConfig& other) const {
  return training_config == other.training_config && parallel_config == other.parallel_config &&
         dataset_config == other.dataset_config && model_config == other.model_config &&
         optimizer_config == other.optimizer_config && moe_config == other.moe_config &&
         lora_config == other.lora_config && post_training_config == other.post_training_config &&
         tensorboard == other.tensorboard && telemetry == other.telemetry &&
         monitor_config == other.monitor_config && without_effect == other.without_effect;
}

void require_complete(const AllConfig& config) {
  check<ValueError>(!config.origins.empty(),
                    "the configuration was made in C++ and is not complete; call resolve(config)");
}

void require_supported(const AllConfig& config) {
  require_complete(config);
  if (!config.unsupported.empty()) {
    throw ConfigError(config.unsupported);
  }
}

std::optional<GradClipConfig> gradient_clipping(const AllConfig& config) {
  if (config.training_config.grad_clip_kwargs) {
    return config.training_config.grad_clip_kwargs;
  }
  if (config.optimizer_config.clip_grad > 0) {
    return GradClipConfig{"ClipGlobalNorm", config.optimizer_config.clip_grad};
  }
  return std::nullopt;
}

StartWeights start_weights(const AllConfig& config) {
  const auto origin = config.origins.find("training_config.load_checkpoint");
  const bool given = origin != config.origins.end() && !origin->second.place.empty();
  const std::string& path = config.training_config.load_checkpoint;
  const std::optional<std::string>& dense = config.moe_config.upcycle_from;
  if (path.empty() && dense) {
    return {.path = *dense, .dense = true};
  }
  return {.path = given || !path.empty() ? path : config.model_config.from_hf.value_or("")};
}

int zero_level(const AllConfig& config) {
  if (const auto& level = config.parallel_config.zero_level) {
    return *level == "z3" ? 3 : *level == "z2" ? 2 : 1;
  }
  return config.training_config.use_distributed_optimizer ? 1 : 0;
}

bool keeps_gathered_weights(const AllConfig& config) {
  const std::optional<RecomputeConfig>& recompute = config.parallel_config.recompute_config;
  return zero_level(config) == 3 && recompute &&
         !recompute->parallel_optimizer_comm_recompute.value_or(true);
}

int64_t bucket_size(const AllConfig& config, int64_t data_parallel_size) {
  return config.training_config.bucket_size.value_or(
      std::max<int64_t>(40'000'000, 1'000'000 * data_parallel_size));
}

bool fuses_head_and_loss(const TransformerConfig& config) {
  return config.fused_linear_cross_entropy.value_or(config.use_fused_kernels &&
                                                    config.compute_dtype != kFloat16);
}

int64_t all_layers(const TransformerConfig& config) {
  return config.num_layers + config.mtp_num_layers;
}

int64_t kind_of(const TransformerConfig& config, int64_t layer) {
  const bool ahead = layer >= config.num_layers && layer < all_layers(config);
  return ahead ? config.num_layers - 1 : layer;
}

bool is_moe_layer(const TransformerConfig& config, int64_t layer) {
  const MoEConfig& moe = config.moe;
  const int64_t kind = kind_of(config, layer);
  if (moe.num_experts == 1 || kind < moe.first_k_dense_replace) {
    return false;
  }
  const std::vector<int64_t>& freq = moe.moe_layer_freq;
  return freq.size() == 1 ? kind % freq.front() == 0 : freq.at(static_cast<size_t>(kind)) != 0;
}

MixerKind mixer_kind(const std::string& layer_type) {
  return layer_type == "linear_attention" ? MixerKind::kGatedDelta
         : layer_type == "conv"           ? MixerKind::kShortConv
         : layer_type == "mamba"          ? MixerKind::kMamba
                                          : MixerKind::kAttention;
}

MixerKind mixer_kind(const TransformerConfig& config, int64_t layer) {
  return config.layer_types
             ? mixer_kind(config.layer_types->at(static_cast<size_t>(kind_of(config, layer))))
             : MixerKind::kAttention;
}

bool has_mixer(const TransformerConfig& config, MixerKind kind) {
  if (!config.layer_types) {
    return kind == MixerKind::kAttention;
  }
  return std::any_of(config.layer_types->begin(), config.layer_types->end(),
                     [&](const std::string& type) { return mixer_kind(type) == kind; });
}

bool has_recurrent_layers(const TransformerConfig& config) {
  return has_mixer(config, MixerKind::kGatedDelta) || has_mixer(config, MixerKind::kShortConv) ||
         has_mixer(config, MixerKind::kMamba);
}

bool is_gated(const std::string& hidden_act) {
  const config::RegisteredName* own =
      config::find_registered(ModuleType::kActivationFunc, hidden_act);
  return hidden_act == "swiglu" || hidden_act == "fused_swiglu" || hidden_act == "clamped_swiglu" ||
         (own != nullptr && own->is_gated);
}

bool has_gated_mlp(const TransformerConfig& config) {
  return is_gated(config.hidden_act) || config.gated_linear_unit;
}

bool has_window(const TransformerConfig& config, int64_t layer) {
  return config.window_size &&
         (!config.layer_types || config.layer_types->at(static_cast<size_t>(
                                     kind_of(config, layer))) == "sliding_attention");
}

std::optional<int64_t> window_left(const TransformerConfig& config, int64_t layer) {
  return has_window(config, layer) ? std::optional(config.window_size->front()) : std::nullopt;
}

bool has_rotation(const TransformerConfig& config, int64_t layer) {
  return config.position_embedding_type == "rope" &&
         (!config.no_rope_layers ||
          config.no_rope_layers->at(static_cast<size_t>(kind_of(config, layer))) != 0);
}

std::optional<RotaryConfig> sliding_rotation(const TransformerConfig& config) {
  const RotaryConfig& rotary = config.rotary_config;
  if (!rotary.sliding_rotary_base) {
    return std::nullopt;
  }
  RotaryConfig out;
  out.rotary_percent = rotary.rope_type == "proportional" ? 1.0 : rotary.rotary_percent;
  out.rotary_interleaved = rotary.rotary_interleaved;
  out.rotary_backward = rotary.rotary_backward;
  out.rotary_base = *rotary.sliding_rotary_base;
  return out;
}

RotaryConfig rotation_of(const TransformerConfig& config, int64_t layer) {
  return has_window(config, layer) ? sliding_rotation(config).value_or(config.rotary_config)
                                   : config.rotary_config;
}

const std::string& norm_placement(const TransformerConfig& config, int64_t layer) {
  return config.mixer_norm_placement && mixer_kind(config, layer) != MixerKind::kAttention
             ? *config.mixer_norm_placement
             : config.norm_placement;
}

bool norms_inputs(const TransformerConfig& config, int64_t layer) {
  return norm_placement(config, layer) != "post";
}
bool norms_outputs(const TransformerConfig& config, int64_t layer) {
  const std::string& placement = norm_placement(config, layer);
  return placement == "post" || placement == "sandwich";
}
bool has_parallel_blocks(const TransformerConfig& config, int64_t layer) {
  return norm_placement(config, layer) == "parallel" || shares_norm(config, layer);
}
bool shares_norm(const TransformerConfig& config, int64_t layer) {
  return norm_placement(config, layer) == "parallel_one_norm";
}
bool norms_outputs_somewhere(const TransformerConfig& config) {
  const auto does = [](const std::string& placement) {
    return placement == "post" || placement == "sandwich";
  };
  return does(config.norm_placement) || does(config.mixer_norm_placement.value_or(""));
}

namespace {

const std::string& kind_name(const TransformerConfig& config, int64_t layer) {
  static const std::string kNone;
  return config.layer_types ? config.layer_types->at(static_cast<size_t>(kind_of(config, layer)))
                            : kNone;
}

bool is_full_attention(const TransformerConfig& config, int64_t layer) {
  return kind_name(config, layer) == "full_attention";
}

double scale_of(const TransformerConfig& config, int64_t channels) {
  if (config.attention_scale) {
    return *config.attention_scale;
  }
  const RotaryConfig& rotary = config.rotary_config;
  const double plain = 1.0 / std::sqrt(static_cast<double>(channels));
  const bool grows = config.multi_latent_attention && rotary.rope_type == "yarn";
  const double growth =
      grows ? 0.1 * rotary.mscale_all_dim.value_or(0) * std::log(rotary.rope_scaling_factor) + 1
            : 1;
  return plain * growth * growth;
}

int64_t rotated_of(const RotaryConfig& rotary, int64_t channels) {
  return rotary.rope_type == "proportional"
             ? channels
             : static_cast<int64_t>(static_cast<double>(channels) * rotary.rotary_percent);
}

}  // namespace

int64_t kv_channels(const TransformerConfig& config, int64_t layer) {
  return is_full_attention(config, layer)
             ? config.full_attention_kv_channels.value_or(config.kv_channels.value())
             : config.kv_channels.value();
}

int64_t num_query_groups(const TransformerConfig& config, int64_t layer) {
  return is_full_attention(config, layer)
             ? config.full_attention_num_query_groups.value_or(config.num_query_groups)
             : config.num_query_groups;
}

bool value_is_key(const TransformerConfig& config, int64_t layer) {
  return config.full_attention_value_is_key && is_full_attention(config, layer);
}

std::optional<int64_t> keys_from(const TransformerConfig& config, int64_t layer) {
  const int64_t own = config.num_layers - config.num_kv_shared_layers;
  if (config.num_kv_shared_layers == 0 || layer < own || layer >= config.num_layers ||
      mixer_kind(config, layer) != MixerKind::kAttention) {
    return std::nullopt;
  }
  for (int64_t earlier = own - 1; earlier >= 0; --earlier) {
    if (kind_name(config, earlier) == kind_name(config, layer)) {
      return earlier;
    }
  }
  return std::nullopt;
}

bool gives_keys(const TransformerConfig& config, int64_t layer) {
  for (int64_t later = config.num_layers - config.num_kv_shared_layers; later < config.num_layers;
       ++later) {
    if (keys_from(config, later) == layer) {
      return true;
    }
  }
  return false;
}

int64_t ffn_hidden_size(const TransformerConfig& config, int64_t layer) {
  return config.use_double_wide_mlp && keys_from(config, layer) ? 2 * config.ffn_hidden_size
                                                                : config.ffn_hidden_size;
}

bool has_experts_beside_dense(const TransformerConfig& config, int64_t layer) {
  return config.moe.moe_beside_dense && is_moe_layer(config, layer);
}

int64_t per_layer_vocab_size(const TransformerConfig& config) {
  return config.per_layer_vocab_size.value_or(config.vocab_size);
}

double attention_scale(const TransformerConfig& config) {
  return scale_of(config, config.kv_channels.value());
}

double attention_scale(const TransformerConfig& config, int64_t layer) {
  return scale_of(config, kv_channels(config, layer));
}

int64_t rotated_channels(const TransformerConfig& config) {
  return config.multi_latent_attention
             ? config.qk_pos_emb_head_dim
             : rotated_of(config.rotary_config, config.kv_channels.value());
}

int64_t rotated_channels(const TransformerConfig& config, int64_t layer) {
  return config.multi_latent_attention
             ? config.qk_pos_emb_head_dim
             : rotated_of(rotation_of(config, layer), kv_channels(config, layer));
}

int64_t value_channels(const TransformerConfig& config) {
  return config.multi_latent_attention ? config.v_head_dim : config.kv_channels.value();
}

int64_t moe_ffn_hidden_size(const TransformerConfig& config) {
  return config.moe.moe_ffn_hidden_size.value_or(config.ffn_hidden_size);
}

int64_t expert_tensor_parallel_size(const ModelParallelConfig& config) {
  return config.expert_tensor_parallel_size.value_or(config.tensor_model_parallel_size);
}

int64_t global_batch_size(const AllConfig& config, int64_t data_parallel_size) {
  return config.dataset_config.batch_size * config.dataset_config.micro_batch_num *
         data_parallel_size;
}

int64_t total_training_iters(const AllConfig& config, int64_t data_parallel_size) {
  return config.training_config.training_iters > 0
             ? config.training_config.training_iters
             : BatchSchedule(config, data_parallel_size)
                   .steps_within(config.dataset_config.train_samples);
}

}  // namespace tapestry
