// Hyper-connections once more, stream by stream and gate by gate, in float64 and elementary
// operations.
#pragma once

#include <functional>
#include <string>

#include "parallel_core/config/config.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry::testing {

/// n copies of x [B, S, H], one behind the other: [B, S, n H]; and the mean of such.
Tensor plain_streams(const TransformerConfig& config, const Tensor& x);
Tensor plain_mean(const TransformerConfig& config, const Tensor& streams);

/// The streams behind a block that is written to them. `weights` are logical, in float64; `name`:
/// "layers.0.hyper_connection.attention".
Tensor plain_connection(const TransformerConfig& config,
                        const Tensor& streams,
                        const State& weights,
                        const std::string& name,
                        const std::function<Tensor(const Tensor&)>& block);

}  // namespace tapestry::testing
