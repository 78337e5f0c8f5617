// A short convolution between two gates. Source: Liquid AI 2025 (LFM2), arXiv:2511.23404.
#pragma once

#include <string>

#include "parallel_core/transformer/mixers/mixer_parts.h"
#include "parallel_core/transformer/token_mixer.h"

namespace tapestry {

/// out_proj(c * conv(b * x)), where in_proj gives b, c and x of each channel, one below the other
/// in its rows. There is no state but the convolution's last inputs. Tensor-parallel ranks have
/// channels.
class GatedShortConv final : public TokenMixer {
 public:
  /// `layer_number` counts from 1. ValueError if the ranks do not divide hidden_size.
  GatedShortConv(const TransformerConfig& config, int64_t layer_number, bool sequence_first);
  GatedShortConv(const AllConfig& config, int64_t layer_number)
      : GatedShortConv(config.model_config, layer_number, is_sequence_first(config)) {}

  std::string type_name() const override { return "GatedShortConv"; }
  using TokenMixer::forward;
  OutputAndBias forward(const Tensor& x,
                        const AttentionContext& context,
                        const LayerPass& pass) override;

 private:
  Tensor convolve(const Tensor& x, const AttentionContext& context) const;

  int64_t layer_;  // from 0
  bool sequence_first_;
  int64_t first_channel_;
  int64_t total_channels_;
  ContextParallelLayout context_layout_;
  ColumnParallelLinear* in_proj_;
  ConvolutionTaps* conv_;
  RowParallelLinear* out_proj_;
};

}  // namespace tapestry
