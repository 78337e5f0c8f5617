// Rules of what looks at attention's scores: QK-clip, which has to be able to change them by
// weights, and the monitor.
#include <string>

#include "autograd/tensor/error.h"
#include "parallel_core/config/resolve/resolve.h"

namespace tapestry::config {
namespace {

constexpr const char* kClip = "optimizer_config.qk_clip_enabled";
constexpr const char* kThreshold = "optimizer_config.qk_clip_threshold";
constexpr const char* kInterval = "monitor_config.max_logits_interval";

bool has_attention(const TransformerConfig& model) {
  for (int64_t layer = 0; layer < all_layers(model); ++layer) {
    if (mixer_kind(model, layer) == MixerKind::kAttention) {
      return true;
    }
  }
  return false;
}

}  // namespace

void resolve_attention_scores(Resolution& r) {
  const AllConfig& config = r.config();
  const TransformerConfig& model = config.model_config;
  if (!config.optimizer_config.qk_clip_enabled) {
    r.idle(kThreshold, "without qk_clip_enabled");
  }
  if (r.sound({"model_config.num_layers", "model_config.layer_types"}) && !has_attention(model)) {
    r.idle(kInterval, ": no layer has attention");
    r.idle(kClip, ": no layer has attention");
    return;
  }
  if (!config.optimizer_config.qk_clip_enabled) {
    return;
  }
  const auto refuse = [&](const char* key, bool on, const char* why) {
    if (on && r.sound({key})) {
      r.error(kClip, concat("cannot stand beside ", key, ": ", why));
    }
  };
  refuse("model_config.qk_layernorm", model.qk_layernorm,
         "queries and keys are normed behind their weights, which undoes any scaling of these; "
         "leave qk_clip_enabled out, the norms bound the scores");
  refuse("model_config.attention_softcap", model.attention_softcap > 0,
         "the cap bounds the scores, and capped scores do not follow the weights; leave one of "
         "them out");
  refuse("model_config.clip_qkv", model.clip_qkv.has_value(),
         "queries and keys are clipped behind their weights, so their scores do not follow these; "
         "leave one of them out");
  refuse("lora_config.use_lora", config.lora_config.use_lora,
         "the weights of queries and keys are frozen, and adapters alone cannot scale them; leave "
         "qk_clip_enabled out");
}

}  // namespace tapestry::config
