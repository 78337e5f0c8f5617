// One fused pass of an optimizer over the arrays of its parameters.
//
// A step over many parameters is one parallel loop over all their elements, so that small ones cost
// no team of their own. Values are read in blocks, widened to float32 (float64 parameters:
// float64), updated and stored; gradients are multiplied by grad_scale (clipping, 1 / loss scale)
// and limited to +-grad_limit as they are read. Constants that depend on the step are computed in
// float64. Arrays are contiguous and do not overlap. Results do not depend on the number of
// threads, nor on which parameters share a call.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "autograd/kernels/machine/dtype.h"
#include "autograd/kernels/random_rows.h"

namespace tapestry::kernels {

inline constexpr double kNoGradLimit = std::numeric_limits<double>::infinity();

/// One parameter in a step of Adam or AdamW.
struct AdamTensor {
  int64_t n = 0;
  /// float32 or float64; or bfloat16, the upper half of a float32 whose rest is in low_bits.
  DType param_dtype = kFloat32;
  void* p = nullptr;
  uint16_t* low_bits = nullptr;  ///< see split_float32
  DType grad_dtype = kFloat32;   ///< any floating dtype
  const void* g = nullptr;
  /// The type of computation, or bfloat16 beside float32: then rounded stochastically, with the
  /// halves of a 32-bit word for each element: exp_avg takes the lower, exp_avg_sq the upper.
  DType exp_avg_dtype = kFloat32;
  void* exp_avg = nullptr;
  DType exp_avg_sq_dtype = kFloat32;
  void* exp_avg_sq = nullptr;
  std::span<const RandomRows> rounding;  ///< which words these are; not empty where there are some
  /// A further array that gets the new values of float32 parameters rounded to nearest even:
  /// float16 or bfloat16. Null: none.
  DType copy_dtype = kBFloat16;
  void* copy = nullptr;
  double lr = 0;
  double weight_decay = 0;
  int64_t step = 1;  ///< counts from 1
};

/// What the parameters of one step have in common.
struct AdamSettings {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  bool decoupled = true;
  double grad_scale = 1;
  double grad_limit = kNoGradLimit;
  uint64_t seed = 0;
};

/// Adam (Kingma & Ba 2015, algorithm 1) and AdamW (Loshchilov & Hutter 2019):
///   decoupled: p -= lr wd p;  else: g += wd p
///   m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
///   p -= lr (m / (1 - b1^step)) / (sqrt(v / (1 - b2^step)) + eps)
void adamw(std::span<const AdamTensor> tensors, const AdamSettings& settings);

/// One parameter in a step of stochastic gradient descent; the members are those of AdamTensor.
struct SgdTensor {
  int64_t n = 0;
  DType param_dtype = kFloat32;  ///< float32 or float64
  void* p = nullptr;
  DType grad_dtype = kFloat32;
  const void* g = nullptr;
  void* momentum_buffer = nullptr;  ///< of param_dtype; null without momentum
  bool first_step = false;          ///< the buffer may hold anything
  DType copy_dtype = kBFloat16;
  void* copy = nullptr;
  double lr = 0;
  double weight_decay = 0;
};

struct SgdSettings {
  double momentum = 0;
  double dampening = 0;
  bool nesterov = false;
  double grad_scale = 1;
  double grad_limit = kNoGradLimit;
};

/// g += wd p;  buf = g at the first step, else momentum buf + (1 - dampening) g;
/// p -= lr (g + momentum buf) with nesterov, else p -= lr buf; without a buffer p -= lr g.
void sgd(std::span<const SgdTensor> tensors, const SgdSettings& settings);

/// One parameter in a step of Lion; the members are those of AdamTensor.
struct LionTensor {
  int64_t n = 0;
  DType param_dtype = kFloat32;  ///< float32 or float64
  void* p = nullptr;
  DType grad_dtype = kFloat32;
  const void* g = nullptr;
  DType exp_avg_dtype = kFloat32;
  void* exp_avg = nullptr;
  std::span<const RandomRows> rounding;
  DType copy_dtype = kBFloat16;
  void* copy = nullptr;
  double lr = 0;
  double weight_decay = 0;
};

struct LionSettings {
  double beta1 = 0.9;
  double beta2 = 0.99;
  double grad_scale = 1;
  double grad_limit = kNoGradLimit;
  uint64_t seed = 0;
};

/// u = sign(b1 m + (1 - b1) g), sign(0) = 0;  m = b2 m + (1 - b2) g;  p -= lr (u + wd p).
/// Source: Chen et al. 2023, arXiv:2302.06675, algorithm 2.
void lion(std::span<const LionTensor> tensors, const LionSettings& settings);

/// Some elements of a parameter in a step of Muon, before its matrices are orthogonalised.
struct MuonMomentum {
  int64_t n = 0;
  DType dtype = kFloat32;  ///< of the buffer and the direction: float32 or float64
  DType grad_dtype = kFloat32;
  const void* g = nullptr;
  void* momentum_buffer = nullptr;
  void* direction = nullptr;  ///< written
};

struct MuonSettings {
  double momentum = 0.95;
  bool nesterov = true;
  double grad_scale = 1;
  double grad_limit = kNoGradLimit;
};

/// buf = momentum buf + g; direction = g + momentum buf with nesterov, else buf.
void muon_momentum(std::span<const MuonMomentum> tensors, const MuonSettings& settings);

/// The same after it; the members are those of AdamTensor.
struct MuonApply {
  int64_t n = 0;
  DType dtype = kFloat32;
  void* p = nullptr;
  const void* direction = nullptr;
  DType copy_dtype = kBFloat16;
  void* copy = nullptr;
  double step = 0;   ///< lr, times the scale for the matrix's shape
  double decay = 0;  ///< lr wd
};

/// p -= decay p + step direction.
void muon_apply(std::span<const MuonApply> tensors);

/// A float32 x as a bfloat16 and 16 bits: high is x rounded to nearest even, so that computing in
/// bfloat16 can use it as it is, and low_bits are the lower half of x. They give back every x but
/// for one doubt: where low_bits is 0x8000 (x lay half way) an even `high` may have been rounded up
/// or down. The bit that decides is the sign of exp_avg_sq, which has no other use for it: negative
/// means up. A NaN stays a NaN, but becomes a quiet one.
///
/// exp_avg_sq (float32 or bfloat16) keeps its magnitudes and takes the signs.
void split_float32(int64_t n,
                   const float* x,
                   BFloat16* high,
                   uint16_t* low_bits,
                   DType exp_avg_sq_dtype,
                   void* exp_avg_sq);
/// x from its parts.
void join_float32(int64_t n,
                  const BFloat16* high,
                  const uint16_t* low_bits,
                  DType exp_avg_sq_dtype,
                  const void* exp_avg_sq,
                  float* x);

/// sum += x in a bfloat16 sum of many terms: added in float32 and rounded stochastically, so that
/// terms too small to change a bfloat16 are not lost on average. x is of any floating dtype.
///
/// An element uses the lower half r in [0, 2^16) of the 32-bit word that `rounding` (not empty)
/// gives it: it adds r to the float32's bits and keeps the upper half; infinities, NaN, and values
/// that this could make infinite are cut off instead.
void add_stochastic(DType dtype,
                    int64_t n,
                    const void* x,
                    uint64_t seed,
                    std::span<const RandomRows> rounding,
                    BFloat16* sum);

}  // namespace tapestry::kernels
