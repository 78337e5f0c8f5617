#include "parallel_core/transformer/attention.h"
#include "parallel_core/transformer/latent_attention.h"
#include "parallel_core/transformer/token_mixer.h"

namespace tapestry {

std::unique_ptr<TokenMixer> get_mixer(const TransformerConfig& config,
                                      int64_t layer_number,
                                      bool sequence_first) {
  if (config.multi_latent_attention) {
    return std::make_unique<MultiLatentAttention>(config, layer_number, sequence_first);
  }
  return std::make_unique<ParallelAttention>(config, layer_number, sequence_first);
}

const char* mixer_name(MixerKind kind) {
  switch (kind) {
    case MixerKind::kAttention:
      return "attention";
    case MixerKind::kGatedDelta:
      return "linear_attention";
    case MixerKind::kShortConv:
      return "short_conv";
    case MixerKind::kMamba:
      return "mamba";
  }
  return "";
}

}  // namespace tapestry
