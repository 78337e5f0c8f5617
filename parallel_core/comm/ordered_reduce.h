// Element-wise reduction of several arrays in one fixed order.
#pragma once

#include <cstdint>
#include <vector>

#include "autograd/kernels/machine/dtype.h"
#include "parallel_core/comm/process_group.h"

namespace tapestry {

enum class ReduceOrder : uint8_t { kRanks, kTree };

/// y[i] = ((x0[i] op x1[i]) op x2[i]) ..., so that every way to cut an array gives the same bits.
/// float16 and bfloat16 are carried in float32 and rounded once; a sum of bools is their `or`. y
/// may be one of the inputs. At least one input.
///
/// With ReduceOrder::kTree, for inputs whose number is a power of two, neighbours are taken first:
/// ((x0 op x1) op (x2 op x3)) op ...
void ordered_reduce(ReduceOp op,
                    DType dtype,
                    int64_t n,
                    const std::vector<const void*>& inputs,
                    void* y,
                    ReduceOrder order = ReduceOrder::kRanks);

/// The order of a reduction that the calling thread starts: the tree in exact mode
/// (kernels/machine/exact.h), for sums of float32 and narrower over ranks whose number is a power
/// of two. In exact mode, other numbers of ranks are as outside, and so are sums of float64, which
/// there are exact in any order.
ReduceOrder reduce_order(ReduceOp op, DType dtype, int ranks);

/// The dtype in which a reduction of `dtype` is carried.
DType carried_dtype(DType dtype);

/// One step of it, for contributions that come one after the other: y[i] = before[i] op x[i], where
/// `before` is the first contribution or what the steps before this one have made. `x` has the
/// tensor's dtype, `before` and `y` that or the one in which sums are carried. y may be x, or
/// `before` if they have one dtype.
void reduce_step(ReduceOp op,
                 DType dtype,
                 int64_t n,
                 const void* before,
                 DType before_dtype,
                 const void* x,
                 void* y,
                 DType y_dtype);

}  // namespace tapestry
