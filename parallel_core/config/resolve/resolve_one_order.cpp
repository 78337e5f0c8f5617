// post_training_config.zero_mismatch: what stands in its way.
#include <optional>
#include <string>

#include "autograd/tensor/error.h"
#include "parallel_core/config/resolve/resolve.h"

namespace tapestry::config {

namespace {

constexpr const char* kZeroMismatch = "post_training_config.zero_mismatch";

// Why a pass of training cannot have the bits of sampling, and the key that says so.
struct Obstacle {
  std::string key;
  std::string reason;
};

std::optional<Obstacle> obstacle_in_model(const TransformerConfig& m) {
  const auto in_model = [](const char* key, std::string reason) {
    return Obstacle{concat("model_config.", key), std::move(reason)};
  };
  if (m.compute_dtype != kFloat32 && m.compute_dtype != kBFloat16) {
    return in_model("compute_dtype",
                    concat("attention over a cache in ", name_of(m.compute_dtype),
                           " has no order of its own; expected float32 or bfloat16"));
  }
  if (!m.use_fused_kernels) {
    return in_model("use_fused_kernels", "attention in single ops sums over the whole row");
  }
  if (m.softmax_compute_dtype != kFloat32) {
    return in_model("softmax_compute_dtype",
                    "attention in single ops sums over the whole row; expected float32");
  }
  if (has_mixer(m, MixerKind::kGatedDelta) || has_mixer(m, MixerKind::kMamba)) {
    return in_model("layer_types",
                    "gated delta and Mamba layers compute many tokens in chunks, and single ones "
                    "from a state");
  }
  const std::string& rope_type = m.rotary_config.rope_type;
  if (m.position_embedding_type == "rope" && (rope_type == "longrope" || rope_type == "dynamic")) {
    return in_model("rotary_config.rope_type",
                    concat("with ", rope_type,
                           " the rotation depends on the length of the row, which holds other "
                           "sequences in training"));
  }
  return std::nullopt;
}

std::optional<Obstacle> obstacle_in_training(const AllConfig& config) {
  const TransformerConfig& m = config.model_config;
  if (!config.post_training_config.disable_dropout.value_or(false) &&
      (m.hidden_dropout > 0 || m.attention_dropout > 0)) {
    return Obstacle{
        m.hidden_dropout > 0 ? "model_config.hidden_dropout" : "model_config.attention_dropout",
        "training drops what sampling keeps; post_training_config.disable_dropout "
        "would help"};
  }
  const LoraConfig& lora = config.lora_config;
  if (lora.use_lora && lora.lora_dropout > 0) {
    return Obstacle{"lora_config.lora_dropout", "training drops what sampling keeps"};
  }
  const MoEConfig& moe = config.moe_config;
  if (moe.num_experts <= 1) {
    return std::nullopt;
  }
  if (moe.moe_expert_capacity_factor) {
    return Obstacle{"moe_config.moe_expert_capacity_factor",
                    "what experts drop in training depends on the other tokens"};
  }
  if (moe.moe_input_jitter_eps.value_or(0) > 0) {
    return Obstacle{"moe_config.moe_input_jitter_eps", "training routes by inputs with noise"};
  }
  if (moe.moe_router_force_load_balancing) {
    return Obstacle{"moe_config.moe_router_force_load_balancing",
                    "training routes by random scores"};
  }
  return std::nullopt;
}

}  // namespace

void resolve_one_order(Resolution& r) {
  AllConfig& config = r.config();
  PostTrainingConfig& p = config.post_training_config;
  if (!r.sound({kZeroMismatch, "post_training_config.task", "model_config.layer_types",
                "model_config.rotary_config"}) ||
      p.task != "grpo" || !p.zero_mismatch) {
    return;
  }
  std::optional<Obstacle> found = obstacle_in_model(config.model_config);
  if (!found) {
    found = obstacle_in_training(config);
  }
  if (!found) {
    return;
  }
  if (r.given(kZeroMismatch)) {
    r.error(kZeroMismatch, concat("cannot be had with ", found->key, ": ", found->reason,
                                  "; leave it out or set it to False, and the log-probabilities of "
                                  "sampling and training differ by their rounding"));
    return;
  }
  p.zero_mismatch = false;
  r.derived(kZeroMismatch, found->key);
}

}  // namespace tapestry::config
