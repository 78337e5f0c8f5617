// Anomaly mode (AnomalyGuard in grad_mode.h): the check of one op's results.
#pragma once

#include <span>
#include <string_view>

#include "autograd/tensor/tensor.h"

namespace tapestry::detail {

/// RuntimeError if an op made a NaN or an infinity out of finite inputs; `pass` is "forward" or
/// "backward".
void check_anomaly(std::string_view name,
                   std::string_view pass,
                   std::span<const Tensor> inputs,
                   std::span<const Tensor> outputs);

}  // namespace tapestry::detail
