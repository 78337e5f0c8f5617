// A module for tests of where gradients lie.
#pragma once

#include <string>
#include <utility>

#include "autograd/ops/ops.h"
#include "autograd/tensor/factory.h"
#include "nn/module.h"

namespace tapestry::testing {

/// Parameters a [17], b [16] and c [3] of ones: more than a cache line of float32, exactly one, and
/// less.
class ThreeParameters final : public nn::Module {
 public:
  ThreeParameters() {
    for (const auto& [name, size] : {std::pair{"a", 17}, std::pair{"b", 16}, std::pair{"c", 3}}) {
      register_parameter(name, ones({size}));
    }
  }
  std::string type_name() const override { return "ThreeParameters"; }

  nn::Parameter& at(size_t i) const { return *named_parameters()[i].parameter; }
  nn::Parameter& a() const { return at(0); }
  nn::Parameter& b() const { return at(1); }
  nn::Parameter& c() const { return at(2); }

  /// Adds its own size to each element of each parameter's gradient.
  void add_sizes_to_gradients() const {
    Tensor total = scalar(0);
    for (const auto& entry : named_parameters()) {
      total = total + sum(*entry.parameter * static_cast<double>(entry.parameter->numel()));
    }
    total.backward();
  }
};

}  // namespace tapestry::testing
