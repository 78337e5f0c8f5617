// What layers that predict further tokens cannot stand beside.
#include "autograd/tensor/error.h"
#include "parallel_core/config/resolve/resolve.h"

namespace tapestry::config {

namespace {

// Whether a key has its value from config.json of the folder that from_hf names.
bool is_of_folder(const AllConfig& config, const std::string& key) {
  const auto origin = config.origins.find(key);
  return config.model_config.from_hf && origin != config.origins.end() &&
         origin->second.place.starts_with(*config.model_config.from_hf);
}

}  // namespace

void resolve_ahead(Resolution& r) {
  constexpr const char* kDepth = "model_config.mtp_num_layers";
  constexpr const char* kFactor = "model_config.mtp_loss_scaling_factor";
  constexpr const char* kPositions = "model_config.position_embedding_type";
  constexpr const char* kNorm = "model_config.embedding_norm";
  constexpr const char* kLora = "lora_config.use_lora";
  constexpr const char* kUpcycle = "moe_config.upcycle_from";
  AllConfig& config = r.config();
  TransformerConfig& model = config.model_config;
  if (!r.sound({kDepth})) {
    return;
  }
  if (r.sound({kLora}) && config.lora_config.use_lora && model.mtp_num_layers > 0) {
    if (!is_of_folder(config, kDepth)) {
      r.error(kDepth, concat("is ", model.mtp_num_layers,
                             ", but adapters are trained for the next token alone "
                             "(lora_config.use_lora); set mtp_num_layers: 0"));
    } else {
      r.note(kDepth, "the layers that predict further tokens are left out beside adapters");
      model.mtp_num_layers = 0;
      r.derived(kDepth, kLora);
    }
  }
  if (model.score_head && model.mtp_num_layers > 0) {
    if (!is_of_folder(config, kDepth)) {
      r.error(kDepth, concat("is ", model.mtp_num_layers,
                             ", but a model with a score head (score_head) predicts no tokens; set "
                             "mtp_num_layers: 0"));
    } else {
      r.note(kDepth, "the layers that predict further tokens are left out beside a score head");
      model.mtp_num_layers = 0;
      r.derived(kDepth, "model_config.score_head");
    }
  }
  if (model.mtp_num_layers == 0) {
    r.idle(kFactor, "without mtp_num_layers");
    return;
  }
  const auto refuse = [&](const char* key, bool refused, const std::string& message) {
    if (r.sound({key}) && refused) {
      r.error(kDepth, concat("is ", model.mtp_num_layers, ", but ", message));
    }
  };
  refuse(kPositions, model.position_embedding_type == "learned_absolute",
         "position_embedding_type is learned_absolute, whose table has the positions of the tokens "
         "themselves and not of those ahead; use rope, alibi or none");
  refuse(kNorm, model.embedding_norm,
         "embedding_norm is True, and the embeddings of tokens ahead have a norm of their own; "
         "leave embedding_norm out");
  refuse("model_config.num_kv_shared_layers", model.num_kv_shared_layers > 0,
         "num_kv_shared_layers is above 0, and the last layer, which those ahead are like, has no "
         "keys of its own; set mtp_num_layers: 0");
  refuse("model_config.per_layer_embedding_size", model.per_layer_embedding_size > 0,
         "per_layer_embedding_size is above 0, and the table has no columns for layers ahead; set "
         "mtp_num_layers: 0");
  refuse(kUpcycle, config.moe_config.upcycle_from.has_value(),
         "a mixture is made of a dense model (moe_config.upcycle_from), which is read without such "
         "layers; start from the mixture's own weights, or set mtp_num_layers: 0");
}

}  // namespace tapestry::config
