// Rotary position embedding: one table, as long as the longest sequence so far.
#pragma once

#include <vector>

#include "autograd/ops/transformer/rope.h"
#include "parallel_core/config/config.h"
#include "parallel_core/context_parallel/context_parallel_layout.h"
#include "parallel_core/rotary_frequencies.h"

namespace tapestry {

/// Rotates queries and keys. Source: Su et al. 2021, arXiv:2104.09864.
class RotaryEmbedding {
 public:
  explicit RotaryEmbedding(const TransformerConfig& config)
      : RotaryEmbedding(config, config.rotary_config, rotated_channels(config)) {}
  explicit RotaryEmbedding(const AllConfig& config) : RotaryEmbedding(config.model_config) {}
  /// With another rotation than the configuration's, of so many channels of a head.
  RotaryEmbedding(const TransformerConfig& config, const RotaryConfig& rotary, int64_t channels);

  /// x [B, n, S, D] -> the same shape, rotated by the tokens' positions in their sequence, which
  /// are 0 .. S-1 unless context-parallel ranks divide it, over the first rotary_percent * D
  /// channels, or with rope_type proportional all; or by `positions` [B, S], which lie in the
  /// sequence. Computed in float32; with a 16-bit rotary_dtype x and the table are first rounded to
  /// that. Where frequencies depend on a text's length, that is the length of the whole rows, so
  /// that they are the same in all layouts.
  Tensor apply(const Tensor& x, const Tensor& positions = {});
  /// From now on `positions` may be up to `length` - 1, however many tokens x has.
  void reserve(int64_t length) { make_table(length); }

 private:
  void make_table(int64_t length);
  void follow_length(int64_t length);

  ContextParallelLayout layout_;
  RotaryConfig config_;
  int64_t rotary_dim_;
  DType dtype_;
  bool fused_;
  RopeTable table_;     // of the whole sequence
  int64_t length_ = 0;  // its rows
  RotaryFrequencies frequencies_;
  RopeTable own_;  // of the rank's tokens, where ranks divide the sequence
};

}  // namespace tapestry
