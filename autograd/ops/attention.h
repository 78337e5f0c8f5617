// Attention.
#pragma once

#include <optional>

#include "autograd/tensor/generator.h"
#include "autograd/tensor/tensor.h"

namespace tapestry {

struct AttentionOptions {
  /// Query i sees keys j <= i.
  bool causal = false;
  /// Query i sees keys j >= i - window_left, so a causal window of L sees L + 1 keys.
  std::optional<int64_t> window_left = std::nullopt;
  /// Factor of the scores; 1 / sqrt(D) by default.
  std::optional<double> scale = std::nullopt;
  /// bool, broadcasts to [B, H, S, T]; true: may look. Undefined: everything may.
  Tensor mask = {};
  /// Probability with which an attention weight is dropped; the others are divided by
  /// 1 - dropout_p.
  double dropout_p = 0;
  RandomKey dropout_key = {};
};

Tensor scaled_dot_product_attention(const Tensor& q,
                                    const Tensor& k,
                                    const Tensor& v,
                                    const AttentionOptions& options = {});
/// The same in elementary ops.
Tensor composed_attention(const Tensor& q,
                          const Tensor& k,
                          const Tensor& v,
                          const AttentionOptions& options = {});

}  // namespace tapestry
