// Reading from and writing to residual streams: manifold-constrained hyper-connections
// (arXiv:2512.24880), as MindFormers 2.0 has them.
//
// A token has n streams [h], packed as n h numbers, and m = 2 n + n^2 gates: pre [n], post [n] and
// res [n, n], row by row. Gates and what makes them are float32 (float64 for float64 streams), in
// which everything is computed; results are rounded once. No number of a token depends on other
// tokens or on the number of threads.
#pragma once

#include <cstdint>

#include "autograd/tensor/tensor.h"

namespace tapestry {

struct HyperConnectionOptions {
  int64_t streams = 4;      ///< n, 1 to 16
  int64_t iterations = 20;  ///< rounds of dividing rows and columns, at least 1
  double eps = 1e-6;        ///< of the norm
};

struct HyperConnectionReading {
  Tensor input;    ///< [.., h], what the block reads, in the dtype of the streams
  Tensor gates;    ///< [.., m]
  Tensor streams;  ///< those that were read. Write to these: gradients then meet in one pass.
};

/// input = sum_i pre[i] x[i] with the gates
///
///   p = weight x / sqrt(mean(x^2) + eps), the mean over all n h numbers; z = p alpha + bias, where
///     alpha[0] is of the n for pre, alpha[1] of those for post, alpha[2] of those for res;
///   pre = sigmoid(z), post = 2 sigmoid(z), and res begins as exp(z - largest of the row): then, in
///     each round, rows and after them columns are divided by their sum + 1e-6.
///
/// streams [.., n h], of any floating dtype; weight [m, n h], alpha [3], bias [m], of the gates'
/// dtype (TypeError). Saves streams, weight, alpha, bias, gates and m + 1 numbers a token; backward
/// runs the rounds again and differentiates each. ValueError for shapes that do not fit, or options
/// out of their bounds.
HyperConnectionReading hyper_connection_read(const Tensor& streams,
                                             const Tensor& weight,
                                             const Tensor& alpha,
                                             const Tensor& bias,
                                             const HyperConnectionOptions& options = {});

/// y[i] = sum_j res[i, j] x[j] + post[i] output: [.., n h] in the dtype of the streams. output
/// [.., h] has any floating dtype, float64 with float64 streams and with no others; gates [.., m]
/// as above (TypeError). Saves all three. ValueError for shapes that do not fit.
Tensor hyper_connection_write(const Tensor& streams,
                              const Tensor& output,
                              const Tensor& gates,
                              int64_t n);

/// The same functions in elementary ops.
HyperConnectionReading composed_hyper_connection_read(const Tensor& streams,
                                                      const Tensor& weight,
                                                      const Tensor& alpha,
                                                      const Tensor& bias,
                                                      const HyperConnectionOptions& options = {});
Tensor composed_hyper_connection_write(const Tensor& streams,
                                       const Tensor& output,
                                       const Tensor& gates,
                                       int64_t n);

}  // namespace tapestry
