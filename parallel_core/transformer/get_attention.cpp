#include "parallel_core/transformer/attention.h"
#include "parallel_core/transformer/latent_attention.h"

namespace tapestry {

std::unique_ptr<AttentionBlock> get_attention(const TransformerConfig& config,
                                              int64_t layer_number,
                                              bool sequence_first) {
  if (config.multi_latent_attention) {
    return std::make_unique<MultiLatentAttention>(config, layer_number, sequence_first);
  }
  return std::make_unique<ParallelAttention>(config, layer_number, sequence_first);
}

}  // namespace tapestry
