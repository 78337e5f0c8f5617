// The gradients of a model's parameters where no other data-parallel rank adds to them.
#pragma once

#include <cstdint>
#include <vector>

#include "nn/module.h"

namespace tapestry {

/// Gives every parameter a main_grad in memory of its own, which it has from its first contribution
/// to the next zero(): the activations of a step and the gradients that take their place need no
/// memory side by side.
class OnDemandGradients {
 public:
  struct Options {
    DType dtype = kFloat32;  ///< or bfloat16, whose sums are rounded stochastically
    uint64_t seed = 0;       ///< with parameter, step and contribution: of these random numbers
  };
  /// TypeError unless dtype is float32 or bfloat16.
  OnDemandGradients(const std::vector<nn::Module::NamedParameter>& parameters,
                    const Options& options);

  /// Makes all gradients zero at the start of a step. The zeros are written only where they are
  /// read before something is added.
  void zero(int64_t step = 0);
  /// Multiplies every gradient.
  void scale(double factor);
  /// Root of the squares of all gradients but those of further copies (flag shared), summed in
  /// double precision. NaN or infinity exactly if some of them is not finite.
  double norm() const;

 private:
  struct Piece {
    Tensor parameter;
    uint64_t stream;
    bool shared;
  };

  uint64_t seed_;
  std::vector<Piece> pieces_;  // in reverse order of their making, as buckets have them
};

}  // namespace tapestry
