// Derivatives against finite differences.
#pragma once

#include <functional>
#include <string>

#include "autograd/tensor/tensor.h"

namespace tapestry {

struct GradcheckOptions {
  double step = 1e-6;      ///< of the central difference, times max(1, |x|)
  double absolute = 1e-6;  ///< tolerance
  double relative = 1e-4;  ///< tolerance, of the larger of both derivatives
  uint64_t seed = 0;       ///< of the random weights of the outputs
};

/// Result of a check; converts to bool. `message` names input, element and both derivatives.
struct GradcheckResult {
  bool passed = true;
  std::string message;
  explicit operator bool() const { return passed; }
};

using DifferentiableFunction = std::function<TensorList(const TensorList&)>;

/// Compares the derivative of a randomly weighted sum of all floating outputs with central
/// differences, for every element of every float64 input that requires a gradient. Inputs keep
/// their strides; an expanded input is checked through its base's elements once each.
/// TypeError if an input that requires a gradient is not float64.
GradcheckResult gradcheck(const DifferentiableFunction& function,
                          const TensorList& inputs,
                          GradcheckOptions options = {});

/// The same for the gradients themselves (as a function of inputs and output gradients).
GradcheckResult gradgradcheck(const DifferentiableFunction& function,
                              const TensorList& inputs,
                              GradcheckOptions options = {});

}  // namespace tapestry
