// The matrices of a frozen model as blocks of 8 bits.
#pragma once

#include <functional>

#include "nn/module.h"

namespace tapestry {

struct QuantizeBaseOptions {
  bool values_come_later = false;  ///< read from files: what the parameters hold is not looked at
  bool head = false;  ///< also the output matrix, which a fused loss cannot take; not a tied table
  /// Of these matrices those that it takes alone; empty: all.
  std::function<bool(const nn::Parameter&)> takes = {};
};

/// Gives the weights of the model's ColumnParallelLinear and RowParallelLinear that want no
/// gradient blocks of Q8_0 (nn::Parameter::set_quantized) in place of floating numbers, one after
/// the other. ValueError, naming the weight, for rows that are no multiple of 32 numbers on this
/// rank.
void quantize_base(nn::Module& model, const QuantizeBaseOptions& options = {});

}  // namespace tapestry
