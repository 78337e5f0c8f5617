// The memory in which the gradients of a model's parameters are accumulated.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nn/module.h"

namespace tapestry {

/// Where gradients lie.
enum class GradientMemory : uint8_t {
  /// All in one flat buffer, for as long as it lives: what is communicated lies together.
  kContiguous,
  /// Each in memory of its own that it has from its first contribution to the next zero(): the
  /// activations of a step and the gradients that take their place need no memory side by side.
  kOnDemand,
};

/// Gives every parameter a main_grad. In a contiguous buffer parameters lie in reverse order of
/// their making, which is about the order in which backward finishes them; each piece starts on a
/// 64-byte boundary, and the gaps hold zeros.
class ParamAndGradBuffer {
 public:
  struct Options {
    DType dtype = kFloat32;  ///< or bfloat16, whose sums are rounded stochastically
    uint64_t seed = 0;       ///< with parameter, step and contribution: of these random numbers
    GradientMemory memory = GradientMemory::kContiguous;
  };
  /// TypeError unless dtype is float32 or bfloat16.
  explicit ParamAndGradBuffer(const std::vector<nn::Module::NamedParameter>& parameters,
                              const Options& options);
  explicit ParamAndGradBuffer(const std::vector<nn::Module::NamedParameter>& parameters)
      : ParamAndGradBuffer(parameters, Options{}) {}

  /// The whole contiguous buffer [n]; RuntimeError if gradients lie apart.
  const Tensor& grad_data() const;
  /// Makes all gradients zero at the start of a step. The zeros are written only where they are
  /// read before something is added, which otherwise overwrites what is there.
  void zero(int64_t step = 0);
  /// Multiplies every gradient.
  void scale(double factor);
  /// Euclidean norm of all gradients, squares summed in double precision. NaN or infinity exactly
  /// if some gradient element is not finite.
  double norm() const;

 private:
  struct Piece {
    Tensor parameter;
    uint64_t stream;
  };

  void lay_out(const std::vector<nn::Module::NamedParameter>& parameters);
  // The memory with all gradients written that it may only stand for: the buffer or its pieces.
  std::vector<Tensor> settled() const;

  Options options_;
  Tensor grad_data_;  // contiguous: all gradients
  std::vector<Piece> pieces_;
};

}  // namespace tapestry
