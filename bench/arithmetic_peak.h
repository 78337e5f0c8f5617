// What the processor's arithmetic can do at most: multiply-adds on registers, without any memory.
#pragma once

#include "autograd/kernels/machine/dtype.h"

namespace tapestry {

/// GFLOP/s of the team, the best of several runs of about `seconds` in all; float32 by fused
/// multiply-adds, bfloat16 by AVX512-BF16's products of pairs. 0 where that is not what the
/// fastest products of the level in use are made of (AMX, float32), or the processor has neither.
double arithmetic_peak(DType dtype, double seconds);

}  // namespace tapestry
