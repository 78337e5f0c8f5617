// One float32 buffer behind the gradients of all parameters.
#pragma once

#include <vector>

#include "nn/module.h"

namespace tapestry {

/// Gives every parameter a main_grad that is a piece of one flat buffer, so that zeroing, unscaling
/// and the finite check are single passes. Parameters lie in reverse order of their making, which
/// is about the order in which backward finishes them. Each piece starts on a 64-byte boundary; the
/// gaps hold zeros.
class ParamAndGradBuffer {
 public:
  explicit ParamAndGradBuffer(const std::vector<nn::Module::NamedParameter>& parameters);

  /// The whole buffer, float32 [n].
  const Tensor& grad_data() const { return grad_data_; }
  void zero();
  /// Multiplies every gradient.
  void scale(double factor);
  /// Euclidean norm of all gradients, squares summed in double precision. NaN or infinity exactly
  /// if some gradient element is not finite.
  double norm() const;

 private:
  Tensor grad_data_;
};

}  // namespace tapestry
