#include "parallel_core/transformer/rotary_pos_embedding.h"

#include <algorithm>
#include <utility>

#include "autograd/ops/shape_ops.h"

namespace tapestry {

RotaryEmbedding::RotaryEmbedding(const TransformerConfig& config,
                                 const RotaryConfig& rotary,
                                 int64_t channels)
    : layout_(context_parallel_layout()),
      config_(rotary),
      rotary_dim_(channels),
      dtype_(config.rotary_dtype),
      fused_(config.apply_rope_fusion.value_or(config.use_fused_kernels)),
      frequencies_(rotary_frequencies(config_, rotary_dim_, 0)) {}

void RotaryEmbedding::make_table(int64_t length) {
  if (length <= length_) {
    return;
  }
  // Growing by doubling: generation asks for one more position each time.
  length_ = length_ == 0 ? length : std::max(length, 2 * length_);
  table_ = rope_table(length_, frequencies_.of_pairs, kFloat32, frequencies_.factor);
  table_ = {table_.cos.to(dtype_).to(kFloat32), table_.sin.to(dtype_).to(kFloat32)};
}

// Another table where a text of this length has other frequencies.
void RotaryEmbedding::follow_length(int64_t length) {
  if (!frequencies_depend_on_length(config_)) {
    return;
  }
  RotaryFrequencies wanted = rotary_frequencies(config_, rotary_dim_, length);
  if (wanted.of_pairs != frequencies_.of_pairs) {
    frequencies_ = std::move(wanted);
    length_ = 0;
    own_ = {};
  }
}

Tensor RotaryEmbedding::apply(const Tensor& x, const Tensor& positions) {
  const int64_t own = x.size(2);
  follow_length(own * layout_.size);
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
  const RopeOptions options = {.interleaved = config_.rotary_interleaved, .positions = positions};
  return dtype_ == kFloat32 ? turn(x, table, options)
                            : turn(x.to(dtype_), table, options).to(x.dtype());
}

}  // namespace tapestry
