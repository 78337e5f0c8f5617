#include "parallel_core/transformer/hyper_connection.h"

#include <cmath>
#include <vector>

#include "autograd/ops/reduction.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tensor/error.h"
#include "parallel_core/parameter_builder.h"

namespace tapestry {

namespace {

constexpr double kWeightStd = 0.01;  // variance 1e-4
constexpr float kBesideDiagonal = -5;

std::vector<float> start_of_bias(int64_t n) {
  std::vector<float> values(static_cast<size_t>(n), -std::log(3.0F));
  values.resize(static_cast<size_t>(2 * n), 0);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      values.push_back(i == j ? 0 : kBesideDiagonal);
    }
  }
  return values;
}

}  // namespace

HyperConnection::HyperConnection(const TransformerConfig& config,
                                 const std::string& name,
                                 const TensorParallelLayout& layout)
    : options_({.streams = config.hyper_connections.num_streams,
                .iterations = config.hyper_connections.sinkhorn_iterations,
                .eps = config.hyper_connections.norm_epsilon}),
      precision_(precision_of(config)) {
  const int64_t n = options_.streams;
  const int64_t gates = n * (n + 2);
  const auto add = [&](const char* member, const LogicalInit& start, bool decay) {
    nn::Parameter& parameter =
        register_parameter(member, initial_value(start.logical.shape, {start}),
                           {.decay = decay, .tp = layout.hidden_gradient()});
    parameter.set_logical({start.logical});
    return &parameter;
  };
  weight_ =
      add("weight",
          whole(name + ".weight", {gates, n * config.hidden_size}, InitMethod::normal(kWeightStd)),
          true);
  alpha_ = add("alpha",
               whole(name + ".alpha.weight", {3},
                     InitMethod::constant(config.hyper_connections.init_gating_factor)),
               false);
  bias_ = add("bias", whole(name + ".bias", {gates}, InitMethod::numbers(start_of_bias(n))), false);
}

std::string HyperConnection::extra_repr() const {
  return concat("streams=", options_.streams, ", iterations=", options_.iterations,
                ", eps=", options_.eps);
}

HyperConnectionReading HyperConnection::forward(const Tensor& streams) const {
  const auto read = precision_.fused ? hyper_connection_read : composed_hyper_connection_read;
  return read(streams, float_or_wider(*weight_), float_or_wider(*alpha_), float_or_wider(*bias_),
              options_);
}

Tensor HyperConnection::write(const HyperConnectionReading& reading, const Tensor& output) const {
  const nn::ModuleScope scope(*this);
  const auto write = precision_.fused ? hyper_connection_write : composed_hyper_connection_write;
  return write(reading.streams, output, reading.gates, options_.streams);
}

Tensor copy_to_streams(const Tensor& hidden, int64_t n) {
  Shape shape = hidden.shape();
  shape.insert(shape.size() - 1, n);
  const Tensor copies = hidden.unsqueeze(-2).expand(shape);
  Shape packed = hidden.shape();
  packed.back() *= n;
  return copies.reshape(packed);
}

Tensor mean_of_streams(const Tensor& streams, int64_t n) {
  Shape shape = streams.shape();
  shape.back() /= n;
  shape.insert(shape.size() - 1, n);
  return mean(streams.reshape(shape), {-2});
}

}  // namespace tapestry
