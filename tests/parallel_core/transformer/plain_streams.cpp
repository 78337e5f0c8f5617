#include "tests/parallel_core/transformer/plain_streams.h"

#include <algorithm>
#include <vector>

#include "autograd/ops/ops.h"

namespace tapestry::testing {

namespace {

TensorList streams_of(const TransformerConfig& config, const Tensor& packed) {
  return split(packed, config.hidden_size, 2);
}

using Matrix = std::vector<TensorList>;  // of numbers [B, S, 1]

// Divides the elements res[i(k)][j(k)], k = 0, .., by their sum + 1e-6.
template <class At>
void divide(Matrix& res, const At& at) {
  const auto n = res.size();
  Tensor sum = at(res, 0) + 1e-6;
  for (size_t k = 1; k < n; ++k) {
    sum = sum + at(res, k);
  }
  for (size_t k = 0; k < n; ++k) {
    at(res, k) = at(res, k) / sum;
  }
}

Matrix doubly_stochastic(const TransformerConfig& config, const TensorList& logits) {
  const auto n = static_cast<size_t>(config.hyper_connections.num_streams);
  Matrix res(n, TensorList(n));
  for (size_t i = 0; i < n; ++i) {
    Tensor top = logits[i * n];
    for (size_t j = 1; j < n; ++j) {
      top = maximum(top, logits[i * n + j]);
    }
    for (size_t j = 0; j < n; ++j) {
      res[i][j] = exp(logits[i * n + j] - top);
    }
  }
  for (int64_t round = 0; round < config.hyper_connections.sinkhorn_iterations; ++round) {
    for (size_t i = 0; i < n; ++i) {
      divide(res, [i](Matrix& m, size_t k) -> Tensor& { return m[i][k]; });
    }
    for (size_t j = 0; j < n; ++j) {
      divide(res, [j](Matrix& m, size_t k) -> Tensor& { return m[k][j]; });
    }
  }
  return res;
}

}  // namespace

Tensor plain_streams(const TransformerConfig& config, const Tensor& x) {
  return cat(TensorList(static_cast<size_t>(config.hyper_connections.num_streams), x), 2);
}

Tensor plain_mean(const TransformerConfig& config, const Tensor& streams) {
  const TensorList parts = streams_of(config, streams);
  Tensor sum = parts[0];
  for (size_t i = 1; i < parts.size(); ++i) {
    sum = sum + parts[i];
  }
  return sum / static_cast<double>(parts.size());
}

Tensor plain_connection(const TransformerConfig& config,
                        const Tensor& streams,
                        const State& weights,
                        const std::string& name,
                        const std::function<Tensor(const Tensor&)>& block) {
  const auto n = static_cast<size_t>(config.hyper_connections.num_streams);
  const Tensor r =
      streams / sqrt(mean(streams * streams, {-1}, true) + config.hyper_connections.norm_epsilon);
  const TensorList p = split(matmul(r, weights.at(name + ".weight").t()), 1, 2);
  const TensorList alpha = split(weights.at(name + ".alpha.weight"), 1, 0);
  const TensorList bias = split(weights.at(name + ".bias"), 1, 0);
  TensorList z;
  for (size_t j = 0; j < p.size(); ++j) {
    z.push_back(p[j] * alpha[std::min<size_t>(j / n, 2)] + bias[j]);
  }
  const auto sigmoid_of = [&](size_t j) { return 1.0 / (exp(neg(z[j])) + 1.0); };
  const TensorList x = streams_of(config, streams);
  Tensor input = x[0] * sigmoid_of(0);
  for (size_t i = 1; i < n; ++i) {
    input = input + x[i] * sigmoid_of(i);
  }
  const Tensor output = block(input);
  const auto squares = static_cast<std::ptrdiff_t>(2 * n);
  const Matrix res = doubly_stochastic(config, TensorList(z.begin() + squares, z.end()));
  TensorList written;
  for (size_t i = 0; i < n; ++i) {
    Tensor sum = output * sigmoid_of(n + i) * 2.0;
    for (size_t j = 0; j < n; ++j) {
      sum = sum + res[i][j] * x[j];
    }
    written.push_back(sum);
  }
  return cat(written, 2);
}

}  // namespace tapestry::testing
