// Several residual streams, and how a block reads from and writes to them.
//
// Source: manifold-constrained hyper-connections, arXiv:2512.24880; start values as in MindFormers
// 2.0.
#pragma once

#include <cstdint>
#include <string>

#include "autograd/ops/transformer/hyper_connection.h"
#include "nn/module.h"
#include "nn/module_call.h"
#include "parallel_core/config/config.h"
#include "parallel_core/precision.h"
#include "parallel_core/tensor_parallel/tensor_parallel_layout.h"

namespace tapestry {

/// One block's connection to n streams x [n, h] of each token: the block reads sum_i pre[i] x[i],
/// and its output o makes them sum_j res[i, j] x[j] + post[i] o. hyper_connection_read() has the
/// formulas of the gates pre, post and res.
///
/// Parameters: weight [2 n + n^2, n h], which starts normal with variance 1e-4; alpha [3], all
/// mhc_init_gating_factor; bias [2 n + n^2], -ln 3 for pre, 0 for post, and for res 0 on the
/// diagonal and -5 beside it. So in the beginning a block reads a quarter of the streams' sum, all
/// streams have the same output added, and each stays nearly as it is. All three are on every
/// tensor-parallel rank; alpha and bias do not decay. Logical names: NAME.weight, NAME.bias,
/// NAME.alpha.weight.
class HyperConnection final : public nn::Module, public nn::Callable<HyperConnection> {
 public:
  /// `name`: "layers.0.hyper_connection.attention".
  HyperConnection(const TransformerConfig& config,
                  const std::string& name,
                  const TensorParallelLayout& layout);

  std::string type_name() const override { return "HyperConnection"; }
  std::string extra_repr() const override;

  /// streams [.., n h], of the rank's tokens, in the residual stream's dtype, in which `input` is
  /// too.
  HyperConnectionReading forward(const Tensor& streams) const;
  /// The streams behind the block; output [.., h] of any floating dtype.
  Tensor write(const HyperConnectionReading& reading, const Tensor& output) const;

 private:
  HyperConnectionOptions options_;
  Precision precision_;
  nn::Parameter* weight_;
  nn::Parameter* alpha_;
  nn::Parameter* bias_;
};
inline void append_observed(TensorList& out, const HyperConnectionReading& reading) {
  out.insert(out.end(), {reading.input, reading.gates, reading.streams});
}

/// n equal streams of hidden states: [.., h] to [.., n h].
Tensor copy_to_streams(const Tensor& hidden, int64_t n);
/// The mean of n streams: [.., n h] to [.., h].
Tensor mean_of_streams(const Tensor& streams, int64_t n);

}  // namespace tapestry
