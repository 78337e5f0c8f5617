// Residual streams of hyper-connections, and what cannot be had beside them.
#include <string>

#include "autograd/tensor/error.h"
#include "parallel_core/config/resolve/resolve.h"

namespace tapestry::config {

void resolve_hyper_connections(Resolution& r) {
  constexpr const char* kEnabled = "model_config.enable_hyper_connections";
  AllConfig& config = r.config();
  TransformerConfig& model = config.model_config;
  if (!r.sound({kEnabled})) {
    return;
  }
  if (!model.hyper_connections.enabled) {
    for (const char* key : {"num_residual_streams", "mhc_sinkhorn_iterations",
                            "mhc_init_gating_factor", "mhc_layernorm_epsilon"}) {
      r.idle(concat("model_config.", key), "without enable_hyper_connections");
    }
    model.hyper_connections = {};
    return;
  }
  const auto refuse = [&](const char* key, bool refused, const std::string& message) {
    if (r.sound({key}) && refused) {
      r.error(kEnabled, concat("is True, but ", message));
    }
  };
  refuse("model_config.norm_placement", model.norm_placement.starts_with("parallel"),
         concat("norm_placement is ", model.norm_placement,
                ", where both blocks read the same stream and are added to it at once; use pre, "
                "post or sandwich"));
  refuse(
      "model_config.apply_residual_connection_post_norm", model.apply_residual_connection_post_norm,
      "apply_residual_connection_post_norm adds blocks to what a norm has made, and a norm reads "
      "a mixture of the streams here; leave one of them out");
  refuse("model_config.per_layer_embedding_size", model.per_layer_embedding_size > 0,
         "per_layer_embedding_size is above 0, and per-layer embeddings are added to a single "
         "stream; set per_layer_embedding_size: 0");
  refuse("model_config.layer_scalar", model.layer_scalar,
         "layer_scalar multiplies a single stream; leave layer_scalar out");
  refuse("moe_config.moe_beside_dense", config.moe_config.moe_beside_dense,
         "moe_beside_dense has a router that reads a single stream; leave moe_beside_dense out");
  refuse("moe_config.upcycle_from", config.moe_config.upcycle_from.has_value(),
         "a mixture is made of a dense model (moe_config.upcycle_from), whose weights were trained "
         "with a single stream; start from the mixture's own weights");
}

}  // namespace tapestry::config
