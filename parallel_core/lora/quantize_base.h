// The matrices of a frozen model as blocks of 8 or 4 bits a number.
#pragma once

#include "autograd/ops/transformer/quantized_matrix.h"
#include "nn/module.h"

namespace tapestry {

struct QuantizeBaseOptions {
  BlockFormat format = BlockFormat::kQ8_0;
  bool values_come_later = false;  ///< read from files: what the parameters hold is not looked at
  bool head = false;  ///< also the output matrix, which a fused loss cannot take; not a tied table
};

/// Gives the weights of the model's ColumnParallelLinear, RowParallelLinear and Experts that want
/// no gradient blocks (nn::Parameter::set_quantized) in place of floating numbers, one after the
/// other. ValueError, naming the weight, for rows that are no multiple of 32 numbers on this rank.
void quantize_base(nn::Module& model, const QuantizeBaseOptions& options = {});

}  // namespace tapestry
