#include "parallel_core/init_method.h"

#include <cmath>

namespace tapestry {

InitMethod weight_init(const TransformerConfig& config) {
  return InitMethod::normal(config.init_method_std);
}

InitMethod output_weight_init(const TransformerConfig& config) {
  const double scale =
      config.scaled_output_init ? std::sqrt(2.0 * static_cast<double>(config.num_layers)) : 1.0;
  return InitMethod::normal(config.init_method_std / scale);
}

InitMethod bias_init(const TransformerConfig& /*config*/) { return InitMethod::constant(0); }

}  // namespace tapestry
