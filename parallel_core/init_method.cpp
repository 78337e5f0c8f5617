#include "parallel_core/init_method.h"

#include <cmath>

#include "autograd/tensor/error.h"

namespace tapestry {

namespace {

// `std` for distributions that have one, all values times `factor`.
InitMethod start_values(const Initializer& given, double std, double factor) {
  using Kind = InitMethod::Kind;
  const std::string& name = given.name;
  if (given.constant || name == "zeros" || name == "ones") {
    return InitMethod::constant(given.constant.value_or(name == "ones" ? 1 : 0) * factor);
  }
  if (name == "normal") {
    return InitMethod::normal(std * factor);
  }
  if (name == "truncatednormal" || name == "trunc_normal") {
    return {Kind::kTruncatedNormal, std * factor};
  }
  if (name == "uniform") {
    return {Kind::kUniform, std * factor};
  }
  if (name == "xavier_uniform") {
    return {Kind::kXavierUniform, factor};
  }
  check<ValueError>(name == "he_uniform" || name == "he_normal", "unknown initialiser '", name,
                    "'");
  return {name == "he_uniform" ? Kind::kHeUniform : Kind::kHeNormal, factor};
}

}  // namespace

InitMethod weight_init(const TransformerConfig& config) {
  return start_values(config.init_method, config.init_method_std, 1);
}

InitMethod output_weight_init(const TransformerConfig& config) {
  const double scale =
      config.scaled_output_init ? std::sqrt(2.0 * static_cast<double>(config.num_layers)) : 1.0;
  return start_values(config.init_method, config.init_method_std, 1 / scale);
}

InitMethod bias_init(const TransformerConfig& config) {
  return start_values(config.bias_init, config.init_method_std, 1);
}

}  // namespace tapestry
