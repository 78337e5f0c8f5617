// Which machines compute the same bits in exact mode (machine/exact.h).
#pragma once

#include <string_view>

#include "autograd/kernels/machine/dtype.h"

namespace tapestry {

/// The name of the class to which products in this dtype belong on this processor, at the level in
/// use: results of one class have the same bits.
///   "float32-fma"       float32 with fused multiply-adds: AVX2, AVX-512, and NEON on aarch64
///   "float32-portable"  x86-64 without them
///   "bfloat16-pairs"    AVX512-BF16 where that is the fast way (prefers_bfloat16_pairs): it rounds
///                       products of pairs of bfloat16
///   "bfloat16-widened", "float16-widened"  by the loops of float32-fma; without fused
///                       multiply-adds "bfloat16-portable" and "float16-portable"
/// And "float64-fma", "float64-portable".
std::string_view exact_class(DType compute);

}  // namespace tapestry
