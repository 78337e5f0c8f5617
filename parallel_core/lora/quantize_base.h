// The matrices of a frozen model as blocks of 8 or 4 bits a number.
#pragma once

#include <functional>
#include <optional>

#include "autograd/ops/transformer/quantized_matrix.h"
#include "nn/module.h"

namespace tapestry {

/// The format of a matrix; none for one that is to stay as it is.
using BlocksOf = std::function<std::optional<BlockFormat>(const nn::Parameter&)>;

/// The same one for all.
inline BlocksOf all_in(BlockFormat format) {
  return [format](const nn::Parameter&) { return std::optional(format); };
}

struct QuantizeBaseOptions {
  BlockFormat format = BlockFormat::kQ8_0;
  BlocksOf format_of = {};         ///< in place of `format`, if it is not empty
  bool values_come_later = false;  ///< read from files: what the parameters hold is not looked at
  bool head = false;  ///< also the output matrix, which a fused loss cannot take; not a tied table
};

/// Gives the weights of the model's ColumnParallelLinear, RowParallelLinear and Experts that want
/// no gradient blocks (nn::Parameter::set_quantized) in place of floating numbers, one after the
/// other. ValueError, naming the weight, for rows that are no multiple of 32 numbers on this rank.
void quantize_base(nn::Module& model, const QuantizeBaseOptions& options = {});

}  // namespace tapestry
