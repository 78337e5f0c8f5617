// Parameters of a parallel model: built from logical tensors, initialised by their names.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "nn/parameter.h"

namespace tapestry {

/// How a logical tensor starts.
struct InitMethod {
  enum class Kind {
    kConstant,
    kNormal,
    kTruncatedNormal,  ///< drawn again beyond two standard deviations
    kUniform,          ///< around 0
    // Of a matrix [out, in]: Glorot & Bengio 2010, He et al. 2015.
    kXavierUniform,  ///< within sqrt(6 / (in + out))
    kHeUniform,      ///< within sqrt(6 / in)
    kHeNormal,       ///< standard deviation sqrt(2 / in)
    kLogUniform,     ///< ln of a number that is uniform between 0.01 and `value`
    kLogCount,       ///< ln 1, ln 2, ..: of an element its number, from 1, in the whole tensor
    kGiven,          ///< `given`, the elements of the whole tensor
  };
  Kind kind = Kind::kNormal;
  double value = 0;  ///< the constant, the standard deviation, or for those of a matrix a factor
  std::vector<float> given = {};

  static InitMethod normal(double std) { return {Kind::kNormal, std}; }
  static InitMethod constant(double value) { return {Kind::kConstant, value}; }
  static InitMethod numbers(std::vector<float> given) {
    return {Kind::kGiven, 0, std::move(given)};
  }
};

/// One logical tensor and its start values.
struct LogicalInit {
  nn::LogicalTensor logical;
  InitMethod init;
};

/// The logical tensor that fills a parameter of the given shape alone.
LogicalInit whole(std::string name, const Shape& shape, InitMethod init);

/// A float32 tensor of `shape` in which every logical tensor has its start values: element i of the
/// global tensor is number i of the stream of its name, whatever parameter it is cut into and
/// whichever slice this rank holds. What belongs to no logical tensor is 0. Without memory of its
/// own where DeferInitialValues says so. ValueError for an InitMethod that needs a matrix of a
/// tensor that is none, or gives another number of elements.
Tensor initial_value(const Shape& shape, const std::vector<LogicalInit>& parts);

/// The logical tensors alone, for Parameter::set_logical.
std::vector<nn::LogicalTensor> logical_of(const std::vector<LogicalInit>& parts);

}  // namespace tapestry
