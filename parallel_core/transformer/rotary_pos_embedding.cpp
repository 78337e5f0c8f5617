#include "parallel_core/transformer/rotary_pos_embedding.h"

#include <algorithm>

namespace tapestry {

RotaryEmbedding::RotaryEmbedding(const TransformerConfig& config)
    : rotary_dim_(static_cast<int64_t>(static_cast<double>(config.kv_channels.value()) *
                                       config.rotary_config.rotary_percent)),
      interleaved_(config.rotary_config.rotary_interleaved),
      base_(config.rotary_config.rotary_base),
      interpolation_factor_(config.rotary_config.seq_len_interpolation_factor.value_or(1.0)),
      dtype_(config.rotary_dtype),
      fused_(config.apply_rope_fusion.value_or(config.use_fused_kernels)) {}

Tensor RotaryEmbedding::apply(const Tensor& x) {
  const int64_t length = x.size(2);
  if (length > length_) {
    // Growing by doubling: generation asks for one more position each time.
    length_ = length_ == 0 ? length : std::max(length, 2 * length_);
    table_ = rope_table(length_, rotary_dim_,
                        {.base = base_, .seq_len_interpolation_factor = interpolation_factor_});
    table_ = {table_.cos.to(dtype_).to(kFloat32), table_.sin.to(dtype_).to(kFloat32)};
  }
  const auto turn = fused_ ? rope : composed_rope;
  const RopeOptions options = {.interleaved = interleaved_};
  return dtype_ == kFloat32 ? turn(x, table_, options)
                            : turn(x.to(dtype_), table_, options).to(x.dtype());
}

}  // namespace tapestry
