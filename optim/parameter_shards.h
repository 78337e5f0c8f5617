// What an optimizer must know that updates only pieces of its parameters.
#pragma once

#include <cstdint>
#include <string>

#include "autograd/tensor/tensor.h"

namespace tapestry::optim {

/// Which contiguous piece of each parameter (of its elements in order) this rank updates, where the
/// ranks of a group share the update: between them they have every element once. A piece may be
/// empty. ValueError for an unknown name.
class ParameterShards {
 public:
  ParameterShards() = default;
  ParameterShards(const ParameterShards&) = delete;
  ParameterShards& operator=(const ParameterShards&) = delete;
  virtual ~ParameterShards() = default;

  /// Shape of the whole parameter.
  virtual Shape shape(const std::string& name) const = 0;
  /// Number of the first element of this rank's piece.
  virtual int64_t first_element(const std::string& name) const = 0;
  /// A copy of this rank's piece [n] of a tensor of the parameter's shape.
  virtual Tensor piece_of(const std::string& name, const Tensor& whole) const = 0;
  /// The tensor of the parameter's shape whose pieces the ranks hold. Collective: every rank of the
  /// group makes the same calls in the same order.
  virtual Tensor whole_of(const std::string& name, const Tensor& piece) const = 0;
};

}  // namespace tapestry::optim
