// Which parameter a tensor that an op was given belongs to, and which parameters look wrong.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "diagnosis/autopsy/value_range.h"
#include "nn/module.h"

namespace tapestry::autopsy {

/// A place in a parameter, under the name that no layout changes.
struct ParameterPlace {
  std::string logical;
  int64_t row = -1;  ///< of the whole logical tensor; -1: of one axis alone, or not known
};

/// A parameter of this rank as it is before the step.
struct ParameterState {
  std::string name;  ///< its path in the model
  const nn::Parameter* parameter = nullptr;
  ValueRange values;
  ParameterPlace place;  ///< of its first bad value, or if there is none, of its largest
  /// Its values are no finite numbers, or far larger than those of the model's other parameters
  /// (kOutlier times the median of their largest magnitudes).
  bool is_suspect = false;
};

/// What makes a parameter a suspect.
inline constexpr double kOutlier = 1e4;

class KnownParameters {
 public:
  /// Looks at all parameters; where ranks share their memory (z3) that is collective, and nothing
  /// else is. The model outlives the object.
  explicit KnownParameters(const nn::Module& model);

  const std::vector<ParameterState>& all() const { return states_; }
  /// The parameter whose values, or 16-bit copy of them, the tensor is or is a part of; or whose
  /// gradient sum. -1: none.
  int32_t of_values(const Tensor& t) const;
  int32_t of_gradient(const Tensor& t) const;

 private:
  std::vector<ParameterState> states_;
  std::unordered_multimap<const Storage*, int32_t> by_storage_;
};

}  // namespace tapestry::autopsy
