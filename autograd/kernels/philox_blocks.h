// Random numbers for the loops of other sources in kernels/isa/.
#pragma once

#include <cstdint>

#include "autograd/kernels/machine/cpu.h"

namespace tapestry::kernels {

/// words[0 .. 4 count): the Philox blocks first_block, first_block + 1, ... of a stream.
TAPESTRY_DECLARE_PER_ISA(void philox_blocks(
    uint64_t seed, uint64_t stream, uint64_t first_block, int64_t count, uint32_t* words))

#if defined(__x86_64__) && !defined(TAPESTRY_WITHOUT_AVX512_BF16)
// Sources of that level use the loops of the level below, which are the same.
namespace avx512_bf16 {
using avx512::philox_blocks;
}
#endif

// For philox.cpp: one part of the array.
TAPESTRY_DECLARE_PER_ISA(void bernoulli_range(int64_t n,
                                              uint64_t seed,
                                              uint64_t stream,
                                              uint64_t first_index,
                                              uint64_t threshold,
                                              bool* y);
                         void dropout_range(DType dtype,
                                            int64_t n,
                                            uint64_t seed,
                                            uint64_t stream,
                                            uint64_t first_index,
                                            uint64_t threshold,
                                            double scale,
                                            const void* x,
                                            void* y))

}  // namespace tapestry::kernels
