// Which token of a micro-batch an element of a tensor belongs to.
#pragma once

#include <cstdint>

#include "autograd/tensor/tensor.h"

namespace tapestry::autopsy {

struct TokenPlace {
  int64_t row = -1;       ///< of the micro-batch; -1: not known
  int64_t position = -1;  ///< in the whole sequence; -1: not known

  bool known() const { return row >= 0; }
};

/// The token of element number `element`, row-major, of a tensor that an op of the current rank has
/// made of a micro-batch of `batch` sequences of `seq` tokens: hidden states [B, S, ...], or
/// [S, B, ...] where sequence_axis is 0, their rows [B * S, ...], heads [B, N, S, ...]; S the
/// tokens that the rank has of each sequence, which context and sequence parallelism divide. Not
/// known for a tensor of another form.
TokenPlace token_place(
    const Shape& shape, int64_t element, int64_t batch, int64_t seq, int64_t sequence_axis);

}  // namespace tapestry::autopsy
