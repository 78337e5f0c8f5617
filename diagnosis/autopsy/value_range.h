// How large the values of a tensor are, and the first of them that is no finite number.
#pragma once

#include <cstdint>
#include <string>

#include "autograd/tensor/tensor.h"

namespace tapestry::autopsy {

struct ValueRange {
  double largest = 0;               ///< magnitude of the finite values
  int64_t first_bad = -1;           ///< row-major number of the first NaN or infinity; -1: none
  std::string bad_value;            ///< "nan", "inf" or "-inf": that one
  bool all_bad_are_masked = false;  ///< there are bad ones, and all are minus infinity

  bool finite() const { return first_bad < 0; }
};

/// One pass over the values, on the threads of the rank. Any strides; tensors that are undefined or
/// not floating are finite and have no values. Touches the memory (Tensor::raw).
ValueRange value_range(const Tensor& x);

/// Row-major number of the first value of that magnitude; -1: none has it.
int64_t place_of_magnitude(const Tensor& x, double magnitude);

/// "nan", "inf", "-inf", or the number with six digits.
std::string value_text(double value);

}  // namespace tapestry::autopsy
