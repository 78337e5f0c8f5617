#include "parallel_core/transformer/rotary_pos_embedding.h"

#include <algorithm>

#include "autograd/ops/shape_ops.h"
#include "parallel_core/transformer/rotary_frequencies.h"

namespace tapestry {

RotaryEmbedding::RotaryEmbedding(const TransformerConfig& config)
    : layout_(context_parallel_layout()),
      interleaved_(config.rotary_config.rotary_interleaved),
      frequencies_(
          rotary_frequencies(config.rotary_config,
                             static_cast<int64_t>(static_cast<double>(config.kv_channels.value()) *
                                                  config.rotary_config.rotary_percent))),
      dtype_(config.rotary_dtype),
      fused_(config.apply_rope_fusion.value_or(config.use_fused_kernels)) {}

void RotaryEmbedding::make_table(int64_t length) {
  if (length <= length_) {
    return;
  }
  // Growing by doubling: generation asks for one more position each time.
  length_ = length_ == 0 ? length : std::max(length, 2 * length_);
  table_ = rope_table(length_, frequencies_);
  table_ = {table_.cos.to(dtype_).to(kFloat32), table_.sin.to(dtype_).to(kFloat32)};
}

Tensor RotaryEmbedding::apply(const Tensor& x, const Tensor& positions) {
  const int64_t own = x.size(2);
  make_table(own * layout_.size);
  const bool own_table = layout_.size > 1 && !positions.defined();
  if (own_table && (!own_.cos.defined() || own_.cos.size(0) != own)) {
    const auto own_rows = [&](const Tensor& t) {
      return own_chunks(t.slice(0, 0, own * layout_.size), 0, layout_);
    };
    own_ = {own_rows(table_.cos), own_rows(table_.sin)};
  }
  const RopeTable& table = own_table ? own_ : table_;
  const auto turn = fused_ ? rope : composed_rope;
  const RopeOptions options = {.interleaved = interleaved_, .positions = positions};
  return dtype_ == kFloat32 ? turn(x, table, options)
                            : turn(x.to(dtype_), table, options).to(x.dtype());
}

}  // namespace tapestry
