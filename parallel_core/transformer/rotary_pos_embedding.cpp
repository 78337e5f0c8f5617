#include "parallel_core/transformer/rotary_pos_embedding.h"

namespace tapestry {

RotaryEmbedding::RotaryEmbedding(const TransformerConfig& config)
    : rotary_dim_(static_cast<int64_t>(static_cast<double>(config.kv_channels.value()) *
                                       config.rotary_config.rotary_percent)),
      interleaved_(config.rotary_config.rotary_interleaved),
      base_(config.rotary_config.rotary_base),
      interpolation_factor_(config.rotary_config.seq_len_interpolation_factor.value_or(1.0)) {}

Tensor RotaryEmbedding::apply(const Tensor& x) {
  const int64_t length = x.size(2);
  auto found = tables_.find(length);
  if (found == tables_.end()) {
    const RopeTable table =
        rope_table(length, rotary_dim_,
                   {.base = base_, .seq_len_interpolation_factor = interpolation_factor_});
    found = tables_.emplace(length, table).first;
  }
  return rope(x, found->second, {.interleaved = interleaved_});
}

}  // namespace tapestry
