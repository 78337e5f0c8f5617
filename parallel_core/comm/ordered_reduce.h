// Element-wise reduction of several arrays in one fixed order.
#pragma once

#include <cstdint>
#include <vector>

#include "autograd/kernels/dtype.h"
#include "parallel_core/comm/process_group.h"

namespace tapestry {

/// y[i] = ((x0[i] op x1[i]) op x2[i]) ..., so that every way to cut an array gives the same bits.
/// float16 and bfloat16 are carried in float32 and rounded once; a sum of bools is their `or`. y
/// may be one of the inputs. At least one input.
void ordered_reduce(
    ReduceOp op, DType dtype, int64_t n, const std::vector<const void*>& inputs, void* y);

}  // namespace tapestry
