// One buffer behind the gradients of all parameters.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nn/module.h"

namespace tapestry {

/// Gives every parameter a main_grad that is a piece of one flat buffer, so that the finite check
/// and the norm are single passes. Parameters lie in reverse order of their making, which is about
/// the order in which backward finishes them. Each piece starts on a 64-byte boundary; the gaps
/// hold zeros.
class ParamAndGradBuffer {
 public:
  /// A bfloat16 buffer rounds its sums stochastically with numbers of (seed, parameter, step,
  /// contribution). TypeError unless dtype is float32 or bfloat16.
  explicit ParamAndGradBuffer(const std::vector<nn::Module::NamedParameter>& parameters,
                              DType dtype = kFloat32,
                              uint64_t seed = 0);

  /// The whole buffer [n].
  const Tensor& grad_data() const;
  /// Makes all gradients zero at the start of a step. The zeros are written only where they are
  /// read before something is added, which otherwise overwrites what is there.
  void zero(int64_t step = 0);
  /// Multiplies every gradient.
  void scale(double factor);
  /// Squares of all gradients but those of further copies (flag shared), summed in double
  /// precision. NaN or infinity exactly if some of them is not finite.
  double sum_of_squares() const;
  /// Its root.
  double norm() const;

 private:
  struct Piece {
    Tensor parameter;
    uint64_t stream;
    int64_t begin;  // in the buffer
    bool shared;
  };

  void settle() const;

  Tensor grad_data_;
  uint64_t seed_;
  std::vector<Piece> pieces_;
};

}  // namespace tapestry
