// The normalisations that a configuration can name, and the residual stream that they read.
#pragma once

#include <memory>
#include <string>

#include "autograd/ops/norm.h"
#include "autograd/tape/recompute.h"
#include "nn/module.h"
#include "nn/module_call.h"
#include "parallel_core/config/config.h"
#include "parallel_core/precision.h"

namespace tapestry {

/// A norm over the last axis whose result has the activations' dtype. Statistics are float32; what
/// it reads is first rounded to `precision.norm` if that is narrower.
class ParallelNorm : public nn::UnaryModule {
 public:
  /// The sum residual + block.output (+ block.bias), in the residual stream's dtype, and its norm;
  /// one op where kernels are fused.
  AddNorm add(const OutputAndBias& block, const Tensor& residual);
  /// Whether it is one op for such a residual stream.
  virtual bool adds_in_one_pass(const Tensor& residual) const = 0;

 private:
  virtual AddNorm sum_and_norm(const OutputAndBias& block, const Tensor& residual) = 0;
};

/// By config.normalization: "LayerNorm" (in-memory parameters gamma and beta) or "RMSNorm",
/// "FusedRMSNorm" (weight), of `size` elements. `logical_name` is the name without ".weight";
/// `scale` is the initial gain; with config.layernorm_zero_centered_gamma the gain is 1 + weight,
/// computed in float32, and the parameter starts at scale - 1. Without norm_has_bias there is no
/// beta, without norm_has_gain no weight. `tp` says how the ranks' gradients relate. ValueError for
/// another name.
std::unique_ptr<ParallelNorm> get_norm(const TransformerConfig& config,
                                       int64_t size,
                                       const std::string& logical_name,
                                       nn::TensorParallel tp,
                                       double scale = 1.0);

/// The same for hidden states of a model of the configuration: hidden_size elements, and each
/// rank's gradients a share where sequence parallelism divides hidden states.
std::unique_ptr<ParallelNorm> get_norm(const AllConfig& config, const std::string& logical_name);

/// The residual stream between two blocks. The last block's output is not added to it until the
/// next norm reads the sum, which is then one pass over memory instead of two.
struct ResidualStream {
  Tensor value;
  OutputAndBias pending = {};  ///< output undefined: nothing to add
  /// What the layer that made them recomputes, to be let go once they were read; may be null.
  std::shared_ptr<RecomputedValues> recomputed = {};

  /// value + pending in the dtype of the stream.
  Tensor sum(const Precision& precision) const;
  /// The same and its norm.
  AddNorm normalize(ParallelNorm& norm) const;
  /// The value itself stays, whoever has made it.
  void keep() const {
    if (recomputed != nullptr) {
      recomputed->keep(value);
    }
  }
  /// Both have been read.
  void release() const {
    if (recomputed != nullptr) {
      recomputed->drop();
    }
  }
};
inline void append_observed(TensorList& out, const ResidualStream& stream) {
  out.push_back(stream.value);
  append_observed(out, stream.pending);
}

}  // namespace tapestry
