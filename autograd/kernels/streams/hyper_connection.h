// Reading from and writing to n residual streams by weights that follow from the streams
// themselves: manifold-constrained hyper-connections (arXiv:2512.24880).
//
// Of a token with streams x [n, h], packed as one row of n h numbers:
//
//   p = W x / sqrt(mean(x^2) + eps), z = p alpha + bias: m = 2 n + n^2 numbers, of which the first
//   n
//     have alpha[0], the next n alpha[1], the rest alpha[2];
//   pre = sigmoid(z of the first n), post = 2 sigmoid(z of the next n), and res [n, n] is what
//     `iterations` rounds of dividing rows and then columns by their sums + 1e-6 make of
//     exp(z - largest of the row);
//   input = sum_i pre[i] x[i], and with the block's output o:  y[i] = sum_j res[i, j] x[j] +
//   post[i] o.
//
// Streams and outputs are of any floating dtype; everything else is of the compute type: float64
// where streams are float64, else float32. No result depends on the number of threads, and that of
// a token on no other token.
#pragma once

#include <cstdint>

#include "autograd/kernels/machine/dtype.h"

namespace tapestry::kernels {

inline constexpr int64_t kMostStreams = 16;

/// What all passes share.
struct HyperConnectionShape {
  int64_t rows = 0;     ///< tokens
  int64_t streams = 0;  ///< n, up to kMostStreams
  int64_t hidden = 0;   ///< h
  DType dtype = kFloat32;

  int64_t width() const { return streams * hidden; }
  int64_t gates() const { return streams * (streams + 2); }
};

/// How the gates are made.
struct HyperConnectionGates {
  const void* weight = nullptr;  ///< [m, n h]
  const void* alpha = nullptr;   ///< [3]
  const void* bias = nullptr;    ///< [m]
  int64_t iterations = 0;
  double eps = 0;
};

/// Writes p as `logits` [rows, m], `rstd` [rows], `gates` [rows, m] (pre, post, res) and `input`
/// [rows, h] in the dtype of x [rows, n h].
struct HyperConnectionRead {
  HyperConnectionShape shape;
  HyperConnectionGates maker;
  const void* x = nullptr;
  void* logits = nullptr;
  void* rstd = nullptr;
  void* gates = nullptr;
  void* input = nullptr;
};
void hyper_connection_read(const HyperConnectionRead& call);

/// The gradients of what made the gates and of x, to which `dpassed` (dtype of x) is added. The
/// rounds are run again and each is differentiated. dinput, dgates and dpassed may be null: zero;
/// so may dx, dweight, dalpha and dbias: not wanted.
struct HyperConnectionReadBackward {
  HyperConnectionShape shape;
  HyperConnectionGates maker;
  const void* x = nullptr;
  const void* logits = nullptr;
  const void* rstd = nullptr;
  const void* gates = nullptr;
  const void* dinput = nullptr;
  const void* dgates = nullptr;
  const void* dpassed = nullptr;
  void* dx = nullptr;
  void* dweight = nullptr;
  void* dalpha = nullptr;
  void* dbias = nullptr;
};
void hyper_connection_read_backward(const HyperConnectionReadBackward& call);

/// y [rows, n h] in the dtype of x; output [rows, h].
struct HyperConnectionWrite {
  HyperConnectionShape shape;
  DType output_dtype = kFloat32;
  const void* x = nullptr;
  const void* output = nullptr;
  const void* gates = nullptr;
  void* y = nullptr;
};
void hyper_connection_write(const HyperConnectionWrite& call);

/// Each of the three results may be null; of dgates, what belongs to pre is 0.
struct HyperConnectionWriteBackward {
  HyperConnectionShape shape;
  DType output_dtype = kFloat32;
  const void* dy = nullptr;
  const void* x = nullptr;
  const void* output = nullptr;
  const void* gates = nullptr;
  void* dx = nullptr;
  void* doutput = nullptr;
  void* dgates = nullptr;
};
void hyper_connection_write_backward(const HyperConnectionWriteBackward& call);

}  // namespace tapestry::kernels
