#include "parallel_core/transformer/attention.h"
#include "parallel_core/transformer/latent_attention.h"
#include "parallel_core/transformer/mixers/gated_delta_net.h"
#include "parallel_core/transformer/mixers/gated_short_conv.h"
#include "parallel_core/transformer/mixers/mamba2.h"
#include "parallel_core/transformer/token_mixer.h"

namespace tapestry {

std::unique_ptr<TokenMixer> get_mixer(const TransformerConfig& config,
                                      int64_t layer_number,
                                      bool sequence_first) {
  switch (mixer_kind(config, layer_number - 1)) {
    case MixerKind::kGatedDelta:
      return std::make_unique<GatedDeltaNet>(config, layer_number, sequence_first);
    case MixerKind::kShortConv:
      return std::make_unique<GatedShortConv>(config, layer_number, sequence_first);
    case MixerKind::kMamba:
      return std::make_unique<Mamba2>(config, layer_number, sequence_first);
    case MixerKind::kAttention:
      break;
  }
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
